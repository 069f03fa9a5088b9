// An operand of a product on its way from memory to shared memory, where a term's lines, or a line's terms, are
// neighbours.
#pragma once

#include "element.cuh"
#ifdef NXCORE_EMULATOR
#include "emulator_sends.h"
#endif

namespace operand {

constexpr int FOUR = 4;     // floats of a vector
constexpr int PAD = FOUR;   // between the terms of a stage: eight terms of four lines lie in different banks
constexpr int WIDER = 8;    // another such gap: four terms of eight lines lie in different banks

// From one line to the next, and from one term to the next, in elements.
struct Steps {
  long long line, term;
};

// Four floats from global to shared memory without a register, or zeros; `arrive` waits for those of this thread.
__device__ __forceinline__ void send(float* to, const float* from, bool inside) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const unsigned at = (unsigned)__cvta_generic_to_shared(to);
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
#elif defined(NXCORE_EMULATOR)
  nxcore_emulator::send(to, from, 16, inside);
#else
  store(to, inside ? load<FOUR>(from) : Vector<float, FOUR>{});
#endif
}
// As `send`, of one float.
__device__ __forceinline__ void send_one(float* to, const float* from, bool inside) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const unsigned at = (unsigned)__cvta_generic_to_shared(to);
  const int bytes = inside ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
#elif defined(NXCORE_EMULATOR)
  nxcore_emulator::send(to, from, 4, inside);
#else
  *to = inside ? *from : 0.0f;
#endif
}
__device__ __forceinline__ void arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#elif defined(NXCORE_EMULATOR)
  nxcore_emulator::arrive();
#endif
}
// What this thread sent since the last call is a group; `arrive_but` waits for all groups but the last COUNT.
__device__ __forceinline__ void close_group() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(NXCORE_EMULATOR)
  nxcore_emulator::close_group();
#endif
}
template <int COUNT>
__device__ __forceinline__ void arrive_but() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
#elif defined(NXCORE_EMULATOR)
  nxcore_emulator::arrive_but(COUNT);
#endif
}

// How LINES x DEPTH elements lie in shared memory. BY_LINE: the terms of a line are neighbours, in vectors whose
// order differs from line to line, so that eight neighbouring lines' vectors of the same terms lie in different
// banks. Otherwise the lines of a term are neighbours, with GAP floats between terms.
template <int LINES, int DEPTH, bool BY_LINE, int GAP = PAD>
struct Stage {
  static constexpr int FLOATS = BY_LINE ? LINES * DEPTH : DEPTH * (LINES + GAP);
  static constexpr int CHUNKS = DEPTH / FOUR;  // vectors of a line

  __device__ __forceinline__ static int at(int line, int term) {
    if (!BY_LINE) return term * (LINES + GAP) + line;
    return line * DEPTH + (term / FOUR ^ line / (WARP / DEPTH) % CHUNKS) * FOUR + term % FOUR;
  }

  // What `at` gives for the lines a multiple of eight after a thread's own, and terms a multiple of four after its own:
  // the order of their vectors is its own line's.
  struct Own {
    int first, order;

    __device__ __forceinline__ Own(int line, int term)
        : first(BY_LINE ? line * DEPTH + term : at(line, term)), order(line % 8 / (WARP / DEPTH) % CHUNKS) {}
    __device__ __forceinline__ int at_after(int lines, int terms) const {
      if (!BY_LINE) return first + terms * (LINES + GAP) + lines;
      return first + lines * DEPTH + (terms / FOUR ^ order) * FOUR;
    }
  };
};

// LINES x DEPTH elements of an operand, by THREADS threads. INNER: terms are neighbours in memory, else lines.
// VECTORS: those neighbours are whole and aligned vectors of four. What lies outside is 0.
// STRAIGHT: what can't be sent to shared memory in vectors is sent one by one, not held in registers.
template <int LINES, int DEPTH, int THREADS, bool INNER, bool VECTORS, bool BY_LINE, int GAP = PAD, bool STRAIGHT = false>
struct Loader {
  using To = Stage<LINES, DEPTH, BY_LINE, GAP>;
  static constexpr bool SENT = VECTORS && INNER == BY_LINE;
  static constexpr bool ONES = STRAIGHT && !SENT;
  static constexpr int COUNT = LINES * DEPTH / FOUR / THREADS;  // vectors of a thread
  static_assert(COUNT > 0 && COUNT * FOUR * THREADS == LINES * DEPTH, "every thread has whole vectors");
  static_assert(DEPTH == 8 || DEPTH == 16 || DEPTH == 32, "two threads read eight neighbouring terms");
  static_assert(SENT || !BY_LINE, "only whole vectors lie by line");

  const float* from;
  long long line_step, term_step;
  int line, term, lines_left, terms_left, to;
  Vector<float, FOUR> held[SENT || ONES ? 1 : COUNT];

  // Where vector `index` begins. Where vectors are turned, two threads have eight terms of a line, so that a warp
  // reads whole sectors and writes to 32 banks.
  // Where they are sent one by one, eight threads have eight terms of a line, for the same reason.
  __device__ __forceinline__ static constexpr int line_of(int index) {
    if (ONES) return INNER ? index / 8 % LINES : index % LINES;
    return BY_LINE ? index / To::CHUNKS : INNER ? index / 2 % LINES : index % (LINES / FOUR) * FOUR;
  }
  __device__ __forceinline__ static constexpr int term_of(int index) {
    if (ONES) return INNER ? index / 8 / LINES * 8 + index % 8 : index / LINES;
    return BY_LINE ? index % To::CHUNKS * FOUR
                   : INNER ? index / 2 / LINES * 8 + index % 2 * FOUR : index / (LINES / FOUR);
  }
  static_assert(!BY_LINE || line_of(THREADS) % 8 == 0, "a thread's lines have one order");

  __device__ __forceinline__ Loader(const float* data, const Steps& steps, int first_line, int lines, int first_term,
                                    int terms)
      : line_step(steps.line), term_step(steps.term) {
    line = line_of(threadIdx.x);
    term = term_of(threadIdx.x);
    lines_left = lines - first_line - line;
    terms_left = terms - term;
    from = data + (first_line + line) * line_step + (first_term + term) * term_step;
    to = To::at(line, term);
#ifdef NXCORE_EMULATOR
    nxcore_emulator::forget_sends();
#endif
  }
#ifdef NXCORE_EMULATOR
  ~Loader() { nxcore_emulator::end_sends(); }
#endif

  // Starts loading the next DEPTH terms, for `stage`.
  __device__ __forceinline__ void fetch(float* stage) {
#pragma unroll
    for (int i = 0; i < (ONES ? FOUR * COUNT : COUNT); ++i) {
      // From this thread's first vector to the i-th: the same for all threads.
      const int down = line_of(i * THREADS), along = term_of(i * THREADS);
      const float* const at = from + down * line_step + along * term_step;
      if (SENT) {
        float* const into = stage + to + (BY_LINE ? down * DEPTH : along * (LINES + GAP) + down);
        send(into, at, down < lines_left && along < terms_left);
      } else if (ONES) {
        send_one(stage + to + along * (LINES + GAP) + down, at, down < lines_left && along < terms_left);
      } else if (VECTORS) {
        held[SENT || ONES ? 0 : i] = Vector<float, FOUR>{};
        if (down < lines_left && along < terms_left) held[SENT || ONES ? 0 : i] = load<FOUR>(at);
      } else {
#pragma unroll
        for (int e = 0; e < FOUR; ++e) {
          const bool inside = (INNER ? down : down + e) < lines_left && (INNER ? along + e : along) < terms_left;
          held[SENT || ONES ? 0 : i][e] = inside ? at[e * (INNER ? term_step : line_step)] : 0.0f;
        }
      }
    }
    from += DEPTH * term_step;
    terms_left -= DEPTH;
  }

  // Ends it: what was loaded lies there.
  __device__ __forceinline__ void put(float* stage) const {
    if (SENT || ONES) return arrive();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      float* const at = stage + to + term_of(i * THREADS) * (LINES + GAP) + line_of(i * THREADS);
      if (INNER) {
#pragma unroll
        for (int e = 0; e < FOUR; ++e) at[e * (LINES + GAP)] = held[SENT || ONES ? 0 : i][e];
      } else {
        store(at, held[SENT || ONES ? 0 : i]);
      }
    }
  }
};

}  // namespace operand
