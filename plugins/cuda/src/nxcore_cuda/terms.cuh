// How threads walk through the terms of a reduction, and how blocks that share an output hand over what they found.
#pragma once

#include "element.cuh"
#include "strided.cuh"

// How numbers become places: terms lie in one dimension; in more; or outputs or terms need 64 bits. One of them is
// compiled, since a small reduction waits for its instructions as well as for its elements.
enum Walk { STEADY, NARROW, WIDE };

namespace terms {

template <Walk WALK>
struct Of {
  using Number = unsigned;
};
template <>
struct Of<WIDE> {
  using Number = long long;
};
template <Walk WALK>
using Number = typename Of<WALK>::Number;

template <Walk WALK>
__device__ __forceinline__ long long place_of(Number<WALK> number, const dims& d, const strides& s) {
  long long at[1] = {0};
  if constexpr (WALK == WIDE) {
    strided::locate((unsigned long long)number, d, &s, at);
  } else {
    strided::locate(number, d, &s, at);
  }
  return at[0];
}

// Loads the vectors term, term + step, and so on: all of them where ALL, else those before last, and `fill`.
template <Walk WALK, bool ALL, int COUNT, int VECTOR, typename Args, typename T>
__device__ __forceinline__ void read(const Args& a, const T* base, Number<WALK> term, Number<WALK> last, int step,
                                     T fill, Vector<T, VECTOR> (&x)[COUNT]) {
  const long long stride = a.x_reduced.of[0];
#pragma unroll
  for (int u = 0; u < COUNT; ++u) {
    const Number<WALK> at = term + u * step;
    if (ALL || at < last) {
      const long long place = WALK == STEADY ? (long long)term * stride + u * (step * stride)
                                             : place_of<WALK>(at, a.reduced, a.x_reduced);
      x[u] = load<VECTOR>(base + place);
    } else {
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) x[u][e] = fill;
    }
  }
}

// Gives every STEPth vector from `term` to `last` to take(term, vectors), as many at once as are in flight: those
// of `term`, `term + step`, and so on. What follows the last one is `fill`.
template <Walk WALK, int UNROLL, int VECTOR, typename Args, typename T, typename Take>
__device__ __forceinline__ void gather(const Args& a, const T* base, Number<WALK> term, Number<WALK> last, int step,
                                       T fill, Take take) {
  if constexpr (WALK == STEADY) {
#pragma unroll 1
    for (; term + (UNROLL - 1) * step < last; term += UNROLL * step) {
      Vector<T, VECTOR> x[UNROLL];
      read<WALK, true>(a, base, term, last, step, fill, x);
      take(term, x);
    }
    if (term < last) {
      Vector<T, VECTOR> x[UNROLL];
      read<WALK, false>(a, base, term, last, step, fill, x);
      take(term, x);
    }
  } else {
    constexpr int FEWER = WALK == WIDE || UNROLL < 2 ? 1 : UNROLL / 2;  // a place is much code
#pragma unroll 1
    for (; term < last; term += FEWER * step) {
      Vector<T, VECTOR> x[FEWER];
      read<WALK, false>(a, base, term, last, step, fill, x);
      take(term, x);
    }
  }
}

// A slot is 0 until a block leaves its bits there, which are not all ones. The block doesn't wait for memory to have
// them; who collects them does, and puts 0 back. So nothing orders a slot and a ticket. A slot has 32 or 64 bits.
template <typename Word>
__device__ __forceinline__ void leave(Word* slot, Word bits) {
#ifdef NXCORE_EMULATOR
  *slot = ~bits;
#else
  if constexpr (sizeof(Word) == 8) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(slot), "l"(~bits) : "memory");
  } else {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(slot), "r"(~bits) : "memory");
  }
#endif
}

template <typename Word>
__device__ __forceinline__ Word peek(const Word* slot) {
#ifdef NXCORE_EMULATOR
  return ~*slot;
#else
  Word found;
  if constexpr (sizeof(Word) == 8) {
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(slot) : "memory");
  } else {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(slot) : "memory");
  }
  return ~found;
#endif
}

// Calls take(u, bits) for COUNT slots from the first on, each `step` after the one before, those before last.
template <int COUNT, typename Word, typename Take>
__device__ __forceinline__ void collect(Word* slots, unsigned first, unsigned last, unsigned step, Take take) {
  Word bits[COUNT];
#pragma unroll
  for (int u = 0; u < COUNT; ++u) bits[u] = first + u * step < last ? peek(slots + first + u * step) : 0;
#pragma unroll
  for (int u = 0; u < COUNT; ++u) {
    if (first + u * step >= last) break;
    Word* const slot = slots + first + u * step;
    while (bits[u] == (Word)~(Word)0) bits[u] = peek(slot);
    *slot = 0;
    take(u, bits[u]);
  }
}

// As last_to_arrive, of blocks whose thread 0 left its bits in a slot: it orders nothing. `ticket` starts at 0 and is
// 0 again afterwards.
__device__ __forceinline__ bool last_to_leave(unsigned* ticket, unsigned blocks) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    unsigned before;
#ifdef NXCORE_EMULATOR
    before = atomicInc(ticket, blocks - 1);
#else
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(ticket), "r"(blocks - 1)
                 : "memory");
#endif
    last = before == blocks - 1;
  }
  __syncthreads();
  return last;
}

// The bits of a number, of one NaN where it is one: not all ones.
__device__ __forceinline__ unsigned bits_of(float x) { return is_nan(x) ? 0x7fffffffu : __float_as_uint(x); }

// The power of two that `lanes` is.
__device__ __forceinline__ int shift_of(int lanes) {
#ifdef NXCORE_EMULATOR
  return __builtin_ctz(lanes);
#else
  return __ffs(lanes) - 1;
#endif
}

}  // namespace terms
