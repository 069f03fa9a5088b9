// batch_norm: two kernels of one grid, (splits, channels). The first leaves mean and squared deviations of each
// block's elements, the second finds the channel's and normalises the same elements, which the cache still has.
//
// Deviations are from the mean of a few elements in registers.
//
// batch_norm_whole: one kernel, of a block a channel, whose elements stay in registers.
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

// The values that a thread holds.
template <int VECTOR, int N, typename T>
__device__ __forceinline__ Moments of_values(const Vector<T, VECTOR> (&x)[N]) {
  constexpr int COUNT = N * VECTOR;
  float terms[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) terms[i] = widen(x[i / VECTOR][i % VECTOR]);
  const float mean = channel::total<T>(terms) / (float)COUNT;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const float off = widen(x[i / VECTOR][i % VECTOR]) - mean;
    terms[i] = off * off;
  }
  return {(float)COUNT, mean, channel::total<T>(terms)};
}

// Those of a share of a channel whose first element is at `base`, in every thread of the block.
template <bool NEAR, int LOADS, int VECTOR, int UNROLL, typename T>
__device__ __forceinline__ Moments of_share(const channels& c, const T* base, const strides& steps, unsigned share) {
  Moments found = {0.0f, 0.0f, 0.0f};
  const channel::number<NEAR> last = channel::last<NEAR>(c, share);
  channel::walk<UNROLL>(channel::first<NEAR>(c, share) + (channel::number<NEAR>)threadIdx.x, last,
                        [&](auto many, channel::number<NEAR> at) {
                          Vector<T, VECTOR> x[decltype(many)::value];
                          channel::fetch<NEAR, LOADS>(c, base, steps, at, x);
                          const Moments own = of_values(x);
                          found = found.count > 0.0f ? together(found, own) : own;
                        });
  return of_block(found);
}

}  // namespace batch_norm_parts

template <typename T, int VECTOR, int UNROLL, int LOADS>
__device__ __forceinline__ void batch_norm_moments(const batch_norm_args& a) {
  using namespace batch_norm_parts;
  const T* const base = static_cast<const T*>(a.x) + blockIdx.y * a.x_step;
  const Moments found = a.c.near ? of_share<true, LOADS, VECTOR, UNROLL>(a.c, base, a.x_strides, blockIdx.x)
                                 : of_share<false, LOADS, VECTOR, 1>(a.c, base, a.x_strides, blockIdx.x);
  if (threadIdx.x == 0) channel::leave(a.shares, a.c, found.mean, found.squares);
}

namespace batch_norm_parts {

// What the blocks of batch_norm_moments left of a channel, in every lane of a warp.
struct Left {
  const float* shares;
  long long elements;  // of a block
  __device__ __forceinline__ Moments operator()(const channels& c) const {
    Moments lane = {0.0f, 0.0f, 0.0f};
    for (int split = threadIdx.x % WARP; split < c.splits; split += WARP) {
      const Vector<float, 2> share = channel::left(shares, c, split);
      const long long rest = c.count - split * elements;
      const Moments next = {(float)(rest < elements ? rest : elements), share[0], share[1]};
      lane = lane.count > 0.0f ? together(lane, next) : next;
    }
    return of_warp(lane);
  }
};

// What the blocks of another kernel left of it, `splits` of them.
struct Given {
  const float* shares;
  int splits;
  __device__ __forceinline__ Moments operator()(const channels&) const {
    return of_shares(shares, blockIdx.y, splits);
  }
};

// Writes what a block has of a channel; `find` returns the channel's moments. A: a struct with what batch_norm_args
// have.
template <typename T, bool NEAR, int LOADS, int VECTOR, int UNROLL, typename A, typename Find>
__device__ __forceinline__ void normalise(const A& a, const Find& find) {
  using I = channel::number<NEAR>;
  const T* const base = static_cast<const T*>(a.x) + blockIdx.y * a.x_step;
  T* const out = static_cast<T*>(a.y) + blockIdx.y * a.y_step;
  const I last = channel::last<NEAR>(a.c);
  I at = channel::first<NEAR>(a.c) + (I)threadIdx.x;
  Vector<T, VECTOR> x[UNROLL];
  channel::fetch<NEAR, LOADS>(a.c, base, a.x_strides, at, last, x);  // under way while the moments are put together
  const Moments found = find(a.c);
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
      const I term = at + u * (I)blockDim.x;
      if (term >= last) continue;
      Vector<T, VECTOR> y;
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) y[e] = narrow<T>(fmaf(widen(x[u][e]) - found.mean, scale, shift));
      store<VECTOR>(out + channel::place<NEAR>(a.c, a.y_strides, term), y);
    }
    at += UNROLL * (I)blockDim.x;
    if (at < last) channel::fetch<NEAR, LOADS>(a.c, base, a.x_strides, at, last, x);
  }
}

template <typename T, int VECTOR, int UNROLL, int LOADS, typename A, typename Find>
__device__ __forceinline__ void normalise(const A& a, const Find& find) {
  if (a.c.near) {
    normalise<T, true, LOADS, VECTOR, UNROLL>(a, find);
  } else {
    normalise<T, false, LOADS, VECTOR, 1>(a, find);
  }
}

}  // namespace batch_norm_parts

template <typename T, int VECTOR, int UNROLL, int LOADS>
__device__ __forceinline__ void batch_norm_apply(const batch_norm_args& a) {
  using namespace batch_norm_parts;
  normalise<T, VECTOR, UNROLL, LOADS>(a, Left{a.shares, a.c.span * VECTOR});
}

// The same where x is what another kernel made, whose blocks left shares of their own, `splits` for each channel.
template <typename T, int VECTOR, int UNROLL, int LOADS>
__device__ __forceinline__ void batch_norm_finish(const batch_norm_args& a) {
  using namespace batch_norm_parts;
  normalise<T, VECTOR, UNROLL, LOADS>(a, Given{a.shares, a.c.splits});
}

// All of a channel, which is near, by one block.
template <typename T, int VECTOR, int UNROLL, int LOADS>
__device__ __forceinline__ void batch_norm_whole(const batch_norm_args& a) {
  const T* const base = static_cast<const T*>(a.x) + blockIdx.y * a.x_step;
  T* const out = static_cast<T*>(a.y) + blockIdx.y * a.y_step;
  const int at = threadIdx.x, last = a.c.terms, stride = blockDim.x;
  Vector<T, VECTOR> x[UNROLL];
  channel::fetch<true, LOADS>(a.c, base, a.x_strides, at, last, x);
  float scale = 1.0f, shift = 0.0f;
  if (a.weight) {
    scale = read(a.weight, a.kind, blockIdx.y);
    shift = read(a.bias, a.kind, blockIdx.y);
  }
  constexpr int N = UNROLL * VECTOR;
  float terms[N];
#pragma unroll
  for (int i = 0; i < N; ++i) terms[i] = widen(x[i / VECTOR][i % VECTOR]);  // 0 behind the last
  const float mean = channel::of_block(channel::total<T>(terms)) / (float)a.c.count;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float off = widen(x[i / VECTOR][i % VECTOR]) - mean;
    terms[i] = at + i / VECTOR * stride < last ? off * off : 0.0f;
  }
  const float squares = channel::of_block(channel::total<T>(terms));
  if (threadIdx.x == 0) {
    a.mean[blockIdx.y] = mean;
    a.var[blockIdx.y] = squares / (float)(a.c.count - 1);
  }
  scale *= channel::inverse_root(squares / (float)a.c.count, a.c.eps);
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    if (at + u * stride >= last) continue;
    Vector<T, VECTOR> y;
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) y[e] = narrow<T>(fmaf(widen(x[u][e]) - mean, scale, shift));
    store<VECTOR>(out + channel::place<true>(a.c, a.y_strides, at + u * stride), y);
  }
}
