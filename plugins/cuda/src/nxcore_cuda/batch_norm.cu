// batch_norm: two kernels of one grid, (splits, channels). The first leaves mean and squared deviations of each
// block's elements, the second finds the channel's and normalises the same elements, which the cache still has.
//
// Deviations are from the mean of a few elements in registers.
#pragma once

#include "channel.cuh"
#include "moments.cuh"

struct batch_norm_args {
  const void* x;
  const void* weight;  // null: 1, and no bias
  const void* bias;
  void* y;
  float* mean;
  float* var;
  float* shares;  // [channel][split] of mean and squared deviations
  long long x_step;  // from one channel to the next
  long long y_step;
  int kind;  // of weight and bias
  channels c;
  strides x_strides;
  strides y_strides;
};

namespace batch_norm_parts {

using namespace moments;

// The values that a thread holds, `vectors` whole ones of them.
template <int VECTOR, int UNROLL, typename T>
__device__ __forceinline__ Moments of_values(const Vector<T, VECTOR> (&x)[UNROLL], int vectors) {
  constexpr int N = UNROLL * VECTOR;
  float terms[N];
#pragma unroll
  for (int i = 0; i < N; ++i) terms[i] = widen(x[i / VECTOR][i % VECTOR]);  // 0 behind the last
  const float count = vectors * VECTOR;
  const float mean = channel::tree(terms) / count;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float off = widen(x[i / VECTOR][i % VECTOR]) - mean;
    terms[i] = i / VECTOR < vectors ? off * off : 0.0f;
  }
  return {count, mean, channel::tree(terms)};
}

}  // namespace batch_norm_parts

template <typename T, int VECTOR, int UNROLL>
__device__ __forceinline__ void batch_norm_moments(const batch_norm_args& a) {
  using namespace batch_norm_parts;
  const T* const base = static_cast<const T*>(a.x) + blockIdx.y * a.x_step;
  const long long last = channel::last(a.c);
  Moments found = {0.0f, 0.0f, 0.0f};
  for (long long at = channel::first(a.c) + threadIdx.x; at < last; at += UNROLL * blockDim.x) {
    Vector<T, VECTOR> x[UNROLL];
    channel::fetch(a.c, base, a.x_strides, at, last, x);
    const long long left = (last - at + blockDim.x - 1) / blockDim.x;
    const Moments own = of_values(x, left < UNROLL ? (int)left : UNROLL);
    found = found.count > 0.0f ? together(found, own) : own;
  }
  found = of_block(found);
  if (threadIdx.x == 0) channel::leave(a.shares, a.c, found.mean, found.squares);
}

namespace batch_norm_parts {

// Writes what a block has of a channel; x is what its threads have fetched of it, from `at` on. A: a struct with what
// batch_norm_args have.
template <typename T, int VECTOR, int UNROLL, typename A>
__device__ __forceinline__ void normalise(const A& a, const Moments& found, Vector<T, VECTOR> (&x)[UNROLL],
                                          long long at, long long last) {
  const T* const base = static_cast<const T*>(a.x) + blockIdx.y * a.x_step;
  T* const out = static_cast<T*>(a.y) + blockIdx.y * a.y_step;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    a.mean[blockIdx.y] = found.mean;
    a.var[blockIdx.y] = found.squares / (float)(a.c.count - 1);
  }
  float scale = channel::inverse_root(found.squares / (float)a.c.count, a.c.eps), shift = 0.0f;
  if (a.weight) {
    scale *= read(a.weight, a.kind, blockIdx.y);
    shift = read(a.bias, a.kind, blockIdx.y);
  }
  while (at < last) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const long long term = at + (long long)u * blockDim.x;
      if (term >= last) continue;
      Vector<T, VECTOR> y;
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) y[e] = narrow<T>(fmaf(widen(x[u][e]) - found.mean, scale, shift));
      store<VECTOR>(out + locate(term, a.c.sizes, a.y_strides), y);
    }
    at += UNROLL * blockDim.x;
    if (at < last) channel::fetch(a.c, base, a.x_strides, at, last, x);
  }
}

}  // namespace batch_norm_parts

template <typename T, int VECTOR, int UNROLL>
__device__ __forceinline__ void batch_norm_apply(const batch_norm_args& a) {
  using namespace batch_norm_parts;
  const T* const base = static_cast<const T*>(a.x) + blockIdx.y * a.x_step;
  const long long last = channel::last(a.c), at = channel::first(a.c) + threadIdx.x;
  Vector<T, VECTOR> x[UNROLL];
  channel::fetch(a.c, base, a.x_strides, at, last, x);  // under way while the shares are put together

  Moments lane = {0.0f, 0.0f, 0.0f};
  const long long elements = a.c.span * VECTOR;
  for (int split = threadIdx.x % WARP; split < a.c.splits; split += WARP) {
    const Vector<float, 2> share = channel::left(a.shares, a.c, split);
    const long long rest = a.c.count - split * elements;
    const Moments next = {(float)(rest < elements ? rest : elements), share[0], share[1]};
    lane = lane.count > 0.0f ? together(lane, next) : next;
  }
  normalise(a, of_warp(lane), x, at, last);
}

// The same where x is what another kernel made, whose blocks left shares of their own, `splits` for each channel.
template <typename T, int VECTOR, int UNROLL>
__device__ __forceinline__ void batch_norm_finish(const batch_norm_args& a) {
  using namespace batch_norm_parts;
  const T* const base = static_cast<const T*>(a.x) + blockIdx.y * a.x_step;
  const long long last = channel::last(a.c), at = channel::first(a.c) + threadIdx.x;
  Vector<T, VECTOR> x[UNROLL];
  channel::fetch(a.c, base, a.x_strides, at, last, x);  // under way while the shares are put together
  normalise(a, of_shares(a.shares, blockIdx.y, a.c.splits), x, at, last);
}
