// Runs a kernel on the CPU, right and slowly, where g++ stands in for nvcc: included before every source.
//
// The threads of a block are fibers that take turns; blocks run one after the other. A fiber runs until it
// waits (for its warp in a shuffle, for its block in __syncthreads) or returns. What hangs or is undefined
// on a GPU ends here with a message: a barrier that some threads never reach, a shuffle with a lane that
// has returned, a misaligned vector. Shared memory holds NaN when a block starts.
#pragma once
#define NXCORE_EMULATOR 1

// C's own header: libstdc++'s takes longer to read than a kernel to compile.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS

#include <link.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "emulator_fibers.h"

#define __device__
#define __host__
#define __global__
#define __constant__ static const
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

struct uint3 {
  unsigned x, y, z;
};
using dim3 = uint3;

static uint3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace nxcore_emulator {

constexpr size_t STACK = 65536;  // bytes of one thread
constexpr int THREADS = 1024;    // of one block, at most
constexpr uint64_t CANARY = 0x6e78636f72655f5full;

// What a thread waits for; a warp's or block's threads must all wait for the same.
enum Wait { NOTHING, SHUFFLE, VOTE, SYNCWARP, SYNCTHREADS, RETURNED };
static const char* const NAMES[] = {"nothing", "a shuffle", "a vote", "__syncwarp", "__syncthreads", "nothing"};

// -------------------------------------------------------------------------------------------------- state

struct Thread {
  Context context;
  char* stack;  // none before its first turn
  Wait wait;
  unsigned mask;      // the lanes it waits for
  unsigned exchange;  // how many exchanges it took part in
};

struct Warp {
  uint64_t value[2][32];  // of the exchange at hand and of the one before, which some lanes still read
  int votes[2][32];
};

static Thread threads[THREADS];
static Warp warps[THREADS / 32];
static uint3 index_of[THREADS];
static Context scheduler;
static int current, count;
static char* free_stacks[THREADS];
static int free_count;
static char* dynamic;
static char* message;
static size_t message_size;
static bool failed;
static const void* arguments;
static void (*entry)(const void*);

static thread_local char anchor;  // beside the shared variables: tells where they lie

[[noreturn]] inline void leave() {
  for (;;) nxcore_switch(&threads[current].context, &scheduler);
}

__attribute__((format(printf, 1, 2))) inline void report(const char* format, ...) {
  if (failed) return;
  failed = true;
  int used = snprintf(message, message_size, "block (%u, %u, %u), ", blockIdx.x, blockIdx.y, blockIdx.z);
  va_list rest;
  va_start(rest, format);
  vsnprintf(message + used, message_size - used, format, rest);
  va_end(rest);
}

inline void aligned(const void* pointer, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(pointer) % bytes == 0) return;
  report("thread %d: a vector of %zu bytes at the misaligned address %p", current, bytes, pointer);
  leave();
}

inline void* dynamic_shared() { return dynamic; }

inline void body() {
  entry(arguments);
  threads[current].wait = RETURNED;
  leave();
}

inline void wait_for(Wait what, unsigned mask) {
  Thread& self = threads[current];
  self.wait = what;
  self.mask = mask;
  nxcore_switch(&self.context, &scheduler);
}

// Lets a warp go on if all lanes that are waited for have come, to the same call.
inline bool release_warp(int first) {
  int last = first + 32 < count ? first + 32 : count;
  bool released = false;
  for (int t = first; t < last; ++t) {
    Thread& self = threads[t];
    if (self.wait < SHUFFLE || self.wait > SYNCWARP) continue;
    if (!(self.mask >> (t - first) & 1)) {
      report("thread %d: waits in %s whose mask %#x lacks its own lane", t, NAMES[self.wait], self.mask);
      return false;
    }
    bool all = true;
    for (int other = first; other < last && all; ++other)
      if (self.mask >> (other - first) & 1)
        all = threads[other].wait == self.wait && threads[other].mask == self.mask;
    if (!all) continue;
    unsigned mask = self.mask;
    for (int other = first; other < last; ++other)
      if (mask >> (other - first) & 1) threads[other].wait = NOTHING;
    released = true;
  }
  return released;
}

inline bool release_block() {
  bool waiting = false;
  for (int t = 0; t < count; ++t) {
    if (threads[t].wait == SYNCTHREADS) waiting = true;
    else if (threads[t].wait != RETURNED) return false;
  }
  for (int t = 0; t < count; ++t)
    if (threads[t].wait == SYNCTHREADS) threads[t].wait = NOTHING;
  return waiting;
}

inline void report_deadlock() {
  int of[RETURNED + 1] = {};
  int example[RETURNED + 1];
  for (int t = count - 1; t >= 0; --t) example[threads[t].wait] = (++of[threads[t].wait], t);
  char text[400] = "";
  size_t used = 0;
  for (int w = SHUFFLE; w <= RETURNED; ++w)
    if (of[w])
      used += snprintf(text + used, sizeof(text) - used, "%s%d of its threads %s %s (the first is thread %d)",
                       used ? ", " : "", of[w], w == RETURNED ? "have" : "wait in",
                       w == RETURNED ? "returned" : NAMES[w], example[w]);
  report("deadlock: %s", text);
}

inline void turn(int t, char*& unused) {
  Thread& self = threads[t];
  if (!self.stack) {
    if (free_count) {
      self.stack = free_stacks[--free_count];
    } else {
      self.stack = unused;
      unused += STACK;
      memcpy(self.stack, &CANARY, sizeof(CANARY));
    }
    begin(&self.context, self.stack, STACK, body);
  }
  current = t;
  threadIdx = index_of[t];
  nxcore_switch(&scheduler, &self.context);
  if (memcmp(self.stack, &CANARY, sizeof(CANARY)) != 0)
    report("thread %d: needs more than %zu bytes of stack", t, STACK);
  if (self.wait == RETURNED) free_stacks[free_count++] = self.stack;
}

inline void run_block(char* stacks) {
  free_count = 0;
  for (int t = 0; t < count; ++t) threads[t] = Thread{};
  int left = count;
  while (left && !failed) {
    bool progress = false;
    for (int first = 0; first < count && !failed; first += 32) {
      int last = first + 32 < count ? first + 32 : count;
      do {  // a warp goes on for as long as only its own lanes hold it up
        for (int t = first; t < last && !failed; ++t) {
          if (threads[t].wait != NOTHING) continue;
          turn(t, stacks);
          progress = true;
          if (threads[t].wait == RETURNED) --left;
        }
      } while (!failed && release_warp(first));
    }
    if (failed || !left) return;
    if (release_block()) continue;
    if (!progress) return report_deadlock();
  }
}

// The range of this library's thread-local variables, which are the kernel's shared ones.
struct Shared {
  char* begin;
  size_t size;
};
inline int find_shared(dl_phdr_info* info, size_t, void* out) {
  char* start = static_cast<char*>(info->dlpi_tls_data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_TLS || !start || &anchor < start || &anchor >= start + header.p_memsz) continue;
    *static_cast<Shared*>(out) = {start, header.p_memsz};
    return 1;
  }
  return 0;
}

// Runs all blocks. `shape` is grid and block, x first; `stacks` has STACK bytes for each thread,
// and as many below them, where one that needs more does no harm.
inline int run(void (*kernel)(const void*), const void* args, const unsigned* shape, char* stacks, char* shared,
               size_t shared_size, char* text, size_t text_size) {
  entry = kernel, arguments = args, dynamic = shared, message = text, message_size = text_size, failed = false;
  gridDim = {shape[0], shape[1], shape[2]};
  blockDim = {shape[3], shape[4], shape[5]};
  count = blockDim.x * blockDim.y * blockDim.z;
  for (int t = 0; t < count; ++t)
    index_of[t] = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
  anchor = 0;
  Shared fixed = {nullptr, 0};
  dl_iterate_phdr(find_shared, &fixed);
  for (unsigned z = 0; z < gridDim.z; ++z)
    for (unsigned y = 0; y < gridDim.y; ++y)
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = {x, y, z};
        if (fixed.size) memset(fixed.begin, 0xff, fixed.size);
        if (shared_size) memset(shared, 0xff, shared_size);
        run_block(stacks + STACK);
        if (failed) return 1;
      }
  return 0;
}

// ---------------------------------------------------------------------------------- exchanges in a warp

template <typename T>
inline Warp& give(T value, int vote, Wait what, unsigned mask, unsigned& turn) {
  static_assert(sizeof(T) <= 8, "a shuffle moves up to 8 bytes");
  Thread& self = threads[current];
  Warp& warp = warps[current / 32];
  turn = self.exchange++ % 2;
  memcpy(&warp.value[turn][current % 32], &value, sizeof(T));
  warp.votes[turn][current % 32] = vote;
  wait_for(what, mask);
  return warp;
}

template <typename T>
inline T shuffle(unsigned mask, T value, int source, bool inside) {
  int self = current % 32;
  unsigned turn;
  Warp& warp = give(value, 0, SHUFFLE, mask, turn);
  if (!inside) return value;
  if (!(mask >> source & 1)) {
    report("thread %d: a shuffle from lane %d, which its mask %#x lacks", current, source, mask);
    leave();
  }
  if (current - self + source < count) memcpy(&value, &warp.value[turn][source], sizeof(T));
  else memset(static_cast<void*>(&value), 0xff, sizeof(T));  // there is no such thread
  return value;
}

inline unsigned ballot(unsigned mask, int vote) {
  unsigned turn, found = 0;
  Warp& warp = give(0, vote, VOTE, mask, turn);
  int first = current / 32 * 32;
  for (int lane = 0; lane < 32 && first + lane < count; ++lane)
    if (mask >> lane & 1 && warp.votes[turn][lane]) found |= 1u << lane;
  return found;
}

// ------------------------------------------------------------------------------------------ half precision

inline float from_half(uint16_t bits) {
  uint32_t sign = uint32_t(bits & 0x8000) << 16, rest = bits & 0x7fff, wide;
  float out;
  if (rest >= 0x7c00) {
    wide = 0x7f800000 | (rest & 0x3ff) << 13;
  } else if (rest >= 0x400) {
    wide = (rest << 13) + 0x38000000;
  } else {
    out = float(rest) * 0x1p-24f;
    memcpy(&wide, &out, 4);
  }
  wide |= sign;
  memcpy(&out, &wide, 4);
  return out;
}

inline uint16_t to_half(float x) {
  uint32_t wide;
  memcpy(&wide, &x, 4);
  uint16_t sign = wide >> 16 & 0x8000;
  wide &= 0x7fffffff;
  if (wide > 0x7f800000) return sign | 0x7fff;
  if (wide >= 0x47800000) return sign | 0x7c00;
  if (wide < 0x38800000) {  // subnormal: the sum's last bits are rounded as they must be
    float shifted;
    memcpy(&shifted, &wide, 4);
    shifted += 0.5f;
    memcpy(&wide, &shifted, 4);
    return sign | uint16_t(wide - 0x3f000000);
  }
  return sign | uint16_t((wide - 0x38000000 + 0xfff + (wide >> 13 & 1)) >> 13);
}

}  // namespace nxcore_emulator

#include "emulator_builtins.h"

// What Python calls: 0, or 1 with a message.
#define NXCORE_EMULATED(SYMBOL, ...)                                                                        \
  static void SYMBOL##__body(const void* a) { SYMBOL(*static_cast<const __VA_ARGS__*>(a)); }                \
  extern "C" __attribute__((visibility("default"))) int SYMBOL##__emulated(                                 \
      const void* args, size_t size, const unsigned* shape, char* stacks, char* shared, size_t shared_size, \
      char* text, size_t text_size) {                                                                       \
    if (size != sizeof(__VA_ARGS__)) {                                                                      \
      snprintf(text, text_size, "its arguments have %zu bytes, got %zu", sizeof(__VA_ARGS__), size);        \
      return 1;                                                                                             \
    }                                                                                                       \
    return nxcore_emulator::run(SYMBOL##__body, args, shape, stacks, shared, shared_size, text, text_size); \
  }
