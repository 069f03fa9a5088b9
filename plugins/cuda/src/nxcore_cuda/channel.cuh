// One channel of images: which of its elements a block has, and what all of its blocks found.
//
// The second kernel of a pair adds up the shares that the first one left, every warp for itself: there are few
// of them, and no block has to wait for the last one to arrive.
#pragma once

#include "element.cuh"
#include "softmax.cuh"
#include "strided.cuh"

struct channels {
  long long count;  // values of a channel
  long long terms;  // vectors of a channel
  long long span;   // vectors of a block; as many elements for every kernel that shares shares
  int splits;       // blocks that left shares, for each channel
  float eps;
  dims sizes;  // of a channel, in vectors
  int near;    // whether places in a channel are found by 32 bits and one division
  int unused;
};

namespace channel {

// What a kernel counts vectors and elements of a channel in. Code for places of any kind is long: a kernel that has both
// runs it with one vector at a time.
template <bool NEAR>
struct Number {
  using type = long long;
};
template <>
struct Number<true> {
  using type = int;
};
template <bool NEAR>
using number = typename Number<NEAR>::type;

// Where a vector lies, in elements from the channel's first one.
template <bool NEAR>
__device__ __forceinline__ number<NEAR> place(const channels& c, const strides& steps, number<NEAR> term) {
  if constexpr (NEAR) {
    const unsigned rest = term;
    const unsigned row = (__umulhi(rest, c.sizes.magics[0]) + rest) >> c.sizes.shifts[0];
    const unsigned within = rest - row * (unsigned)c.sizes.sizes[0];
    return (int)(row * (unsigned)steps.of[1] + within * (unsigned)steps.of[0]);
  } else {
    return locate(term, c.sizes, steps);
  }
}

// What a block of a grid of several tensors has: which share of a channel, of which of the tensors, or groups of some.
struct Part {
  unsigned item, split, channel, channels;
};

// Of a grid of (items, splits, channels).
__device__ __forceinline__ Part part(bool backwards) {
  if (!backwards) return {blockIdx.x, blockIdx.y, blockIdx.z, gridDim.z};
  return {gridDim.x - 1 - blockIdx.x, gridDim.y - 1 - blockIdx.y, gridDim.z - 1 - blockIdx.z, gridDim.z};
}

// Which vectors a share of a channel has: this block's, unless given.
template <bool NEAR>
__device__ __forceinline__ number<NEAR> first(const channels& c, unsigned share) {
  return (number<NEAR>)share * (number<NEAR>)c.span;
}

template <bool NEAR>
__device__ __forceinline__ number<NEAR> last(const channels& c, unsigned share) {
  const number<NEAR> end = first<NEAR>(c, share) + (number<NEAR>)c.span, all = c.terms;
  return end < all ? end : all;
}

template <bool NEAR>
__device__ __forceinline__ number<NEAR> first(const channels& c) {
  return first<NEAR>(c, blockIdx.x);
}

template <bool NEAR>
__device__ __forceinline__ number<NEAR> last(const channels& c) {
  return last<NEAR>(c, blockIdx.x);
}

// How memory is loaded: through both caches; past the first one, whose few places for an address the images of a batch
// and the tensors of a sum would fill; and past it as what the second one may lose first.
enum { CACHED, ONCE, LAST };

#ifndef NXCORE_EMULATOR
// The compiler may move these loads: no kernel of channels writes what it loads so.
template <int LOADS>
__device__ __forceinline__ void load_words(const void* from, unsigned short (&to)[1]) {
  if (LOADS == ONCE) asm("ld.global.L1::no_allocate.u16 %0, [%1];" : "=h"(to[0]) : "l"(from));
  if (LOADS == LAST) asm("ld.global.cs.u16 %0, [%1];" : "=h"(to[0]) : "l"(from));
}
template <int LOADS>
__device__ __forceinline__ void load_words(const void* from, unsigned (&to)[1]) {
  if (LOADS == ONCE) asm("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
  if (LOADS == LAST) asm("ld.global.cs.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
}
template <int LOADS>
__device__ __forceinline__ void load_words(const void* from, unsigned (&to)[2]) {
  if (LOADS == ONCE) {
    asm("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
  } else {
    asm("ld.global.cs.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
  }
}
template <int LOADS>
__device__ __forceinline__ void load_words(const void* from, unsigned (&to)[4]) {
  if (LOADS == ONCE) {
    asm("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "l"(from));
  } else {
    asm("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "l"(from));
  }
}
#endif

template <int LOADS, int VECTOR, typename T>
__device__ __forceinline__ Vector<T, VECTOR> loaded(const T* from) {
#ifndef NXCORE_EMULATOR
  static_assert(sizeof(T) * VECTOR <= 16, "one load");
  if constexpr (LOADS != CACHED) {
    element::Piece<T, VECTOR> piece;
    load_words<LOADS>(from, piece.words.word);
    return piece.vector;
  }
#endif
  return load<VECTOR>(from);
}

// Loads vectors `at`, `at + blockDim.x` and so on, UNROLL of them.
template <bool NEAR, int LOADS, int VECTOR, int UNROLL, typename T>
__device__ __forceinline__ void fetch(const channels& c, const T* base, const strides& steps, number<NEAR> at,
                                      Vector<T, VECTOR> (&x)[UNROLL]) {
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    x[u] = loaded<LOADS, VECTOR>(base + place<NEAR>(c, steps, at + u * (number<NEAR>)blockDim.x));
  }
}

// The same of those before `last`; zeros for the others.
template <bool NEAR, int LOADS, int VECTOR, int UNROLL, typename T>
__device__ __forceinline__ void fetch(const channels& c, const T* base, const strides& steps, number<NEAR> at,
                                      number<NEAR> last, Vector<T, VECTOR> (&x)[UNROLL]) {
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const number<NEAR> term = at + u * (number<NEAR>)blockDim.x;
    if (term < last) {
      x[u] = loaded<LOADS, VECTOR>(base + place<NEAR>(c, steps, term));
    } else {
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) x[u][e] = narrow<T>(0.0f);
    }
  }
}

// How many vectors of a thread a step of `walk` is for.
template <int N>
struct Many {
  static constexpr int value = N;
};

// Steps through a thread's vectors from `at` on: by UNROLL while there are so many, then one by one.
template <int UNROLL, typename I, typename Step>
__device__ __forceinline__ void walk(I at, I last, Step step) {
  const I stride = blockDim.x;
  for (; at + (UNROLL - 1) * stride < last; at += UNROLL * stride) step(Many<UNROLL>{}, at);
  if constexpr (UNROLL > 1) {
    for (; at < last; at += stride) step(Many<1>{}, at);
  }
}

// Adds up values as a tree: short chains, small errors.
template <int N>
__device__ __forceinline__ float tree(float (&values)[N]) {
#pragma unroll
  for (int half = N / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) values[i] += values[i + half];
  }
  return values[0];
}

template <int N, int HALF>
__device__ __forceinline__ float halved(float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < HALF; ++i) values[i] += values[i + HALF];
  if constexpr (HALF > 1) {
    return halved<N, HALF / 2>(values);
  } else {
    return values[0];
  }
}

// The same sum of what vectors of T have. A thread has 16 values of a half type, whose loop over halves nvcc doesn't
// unroll: they would be in local memory. Other types keep that loop, and so the machine code that is on record.
template <typename T, int N>
__device__ __forceinline__ float total(float (&values)[N]) {
  if constexpr (sizeof(T) == 2) {
    return halved<N, N / 2>(values);
  } else {
    return tree(values);
  }
}

// The sum over a block of any number of whole warps, in every thread, in one fixed order. It ends with a barrier.
__device__ __forceinline__ float of_block(float x) {
  __shared__ float warps[WARP];
  x = warp_sum(x);
  if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = x;
  __syncthreads();
  const unsigned lane = threadIdx.x % WARP;
  x = warp_sum(lane < blockDim.x / WARP ? warps[lane] : 0.0f);
  __syncthreads();
  return x;
}

// Two numbers that a block leaves for its channel.
__device__ __forceinline__ void leave(float* shares, const channels& c, float a, float b) {
  Vector<float, 2> share;
  share[0] = a;
  share[1] = b;
  store<2>(shares + 2 * ((long long)blockIdx.y * c.splits + blockIdx.x), share);
}

__device__ __forceinline__ Vector<float, 2> left(const float* shares, const channels& c, int split) {
  return load<2>(shares + 2 * ((long long)blockIdx.y * c.splits + split));
}

__device__ __forceinline__ float inverse_root(float variance, float eps) {
  return 1.0f / __fsqrt_rn(variance + eps);  // rsqrtf errs by two units in the last place
}

}  // namespace channel
