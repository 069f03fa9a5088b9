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
};

namespace channel {

// Which vectors this block has.
__device__ __forceinline__ long long first(const channels& c) { return blockIdx.x * c.span; }

__device__ __forceinline__ long long last(const channels& c) {
  const long long end = first(c) + c.span;
  return end < c.terms ? end : c.terms;
}

// Loads what a thread has of vectors `at`, `at + blockDim.x` and so on, UNROLL of them, those before `last`.
template <int VECTOR, int UNROLL, typename T>
__device__ __forceinline__ void fetch(const channels& c, const T* base, const strides& steps, long long at,
                                      long long last, Vector<T, VECTOR> (&x)[UNROLL]) {
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const long long term = at + (long long)u * blockDim.x;
    if (term < last) {
      x[u] = load<VECTOR>(base + locate(term, c.sizes, steps));
    } else {
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) x[u][e] = narrow<T>(0.0f);
    }
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
