// batch_norm_backward: two kernels of one grid, (splits, channels). The first leaves the sums of each block's
// elements, the second adds up the channel's and computes the gradients.
//
// batch_norm_backward_whole: one kernel, of a block a channel, whose elements stay in registers.
#pragma once

#include "channel.cuh"

struct batch_norm_backward_args {
  const void* grad;
  const void* x;
  const float* mean;
  const float* var;
  const void* weight;  // null: 1
  void* x_grad;        // null: not wanted, likewise the next two
  void* weight_grad;
  void* bias_grad;
  float* shares;  // [channel][split] of the sums of grad and of grad * (x - mean)
  long long x_step;  // from one channel to the next
  long long grad_step;
  long long out_step;
  int kind;  // of weight and its gradients
  channels c;
  strides x_strides;
  strides grad_strides;
  strides out_strides;
};

namespace batch_norm_backward_parts {

// A, here and below: a struct with what batch_norm_backward_args have.
template <typename T, bool NEAR, int LOADS, int VECTOR, int UNROLL, typename A>
__device__ __forceinline__ void sums(const A& a) {
  using I = channel::number<NEAR>;
  const T* const grads = static_cast<const T*>(a.grad) + blockIdx.y * a.grad_step;
  const T* const images = static_cast<const T*>(a.x) + blockIdx.y * a.x_step;
  const float mean = a.mean[blockIdx.y];
  float sum = 0.0f, product = 0.0f;
  channel::walk<UNROLL>(channel::first<NEAR>(a.c) + (I)threadIdx.x, channel::last<NEAR>(a.c), [&](auto many, I at) {
    constexpr int N = decltype(many)::value * VECTOR;
    Vector<T, VECTOR> g[N / VECTOR], x[N / VECTOR];
    channel::fetch<NEAR, LOADS>(a.c, grads, a.grad_strides, at, g);
    channel::fetch<NEAR, LOADS>(a.c, images, a.x_strides, at, x);
    float terms[N], products[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      terms[i] = widen(g[i / VECTOR][i % VECTOR]);
      products[i] = terms[i] * (widen(x[i / VECTOR][i % VECTOR]) - mean);
    }
    sum += channel::total<T>(terms);
    product += channel::total<T>(products);
  });
  __shared__ float warps[2][WARP];
  sum = warp_sum(sum);
  product = warp_sum(product);
  if (threadIdx.x % WARP == 0) {
    warps[0][threadIdx.x / WARP] = sum;
    warps[1][threadIdx.x / WARP] = product;
  }
  __syncthreads();
  if (threadIdx.x >= WARP) return;
  const bool held = threadIdx.x < blockDim.x / WARP;
  sum = warp_sum(held ? warps[0][threadIdx.x] : 0.0f);
  product = warp_sum(held ? warps[1][threadIdx.x] : 0.0f);
  if (threadIdx.x == 0) channel::leave(a.shares, a.c, sum, product);
}

template <typename T, bool NEAR, int LOADS, int VECTOR, int UNROLL, typename A>
__device__ __forceinline__ void gradients(const A& a) {
  using I = channel::number<NEAR>;
  const T* const grads = static_cast<const T*>(a.grad) + blockIdx.y * a.grad_step;
  const T* const images = static_cast<const T*>(a.x) + blockIdx.y * a.x_step;
  T* const out = static_cast<T*>(a.x_grad) + blockIdx.y * a.out_step;
  const I last = a.x_grad ? channel::last<NEAR>(a.c) : 0;
  I at = channel::first<NEAR>(a.c) + (I)threadIdx.x;
  Vector<T, VECTOR> g[UNROLL], x[UNROLL];
  channel::fetch<NEAR, LOADS>(a.c, grads, a.grad_strides, at, last, g);  // under way while the shares are added up
  channel::fetch<NEAR, LOADS>(a.c, images, a.x_strides, at, last, x);

  float sum = 0.0f, product = 0.0f;
  for (int split = threadIdx.x % WARP; split < a.c.splits; split += WARP) {
    const Vector<float, 2> share = channel::left(a.shares, a.c, split);
    sum += share[0];
    product += share[1];
  }
  sum = warp_sum(sum);
  product = warp_sum(product);
  const float count = a.c.count, mean = a.mean[blockIdx.y];
  const float inverse = channel::inverse_root(a.var[blockIdx.y] * ((count - 1.0f) / count), a.c.eps);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (a.weight_grad) write(a.weight_grad, a.kind, blockIdx.y, product * inverse);
    if (a.bias_grad) write(a.bias_grad, a.kind, blockIdx.y, sum);
  }
  const float scale = a.weight ? inverse * read(a.weight, a.kind, blockIdx.y) : inverse;
  const float level = sum / count, slope = product / count * inverse * inverse;
  while (at < last) {
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const I term = at + u * (I)blockDim.x;
      if (term >= last) continue;
      Vector<T, VECTOR> to;
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) {
        to[e] = narrow<T>(scale * (widen(g[u][e]) - level - (widen(x[u][e]) - mean) * slope));
      }
      store<VECTOR>(out + channel::place<NEAR>(a.c, a.out_strides, term), to);
    }
    at += UNROLL * (I)blockDim.x;
    if (at < last) {
      channel::fetch<NEAR, LOADS>(a.c, grads, a.grad_strides, at, last, g);
      channel::fetch<NEAR, LOADS>(a.c, images, a.x_strides, at, last, x);
    }
  }
}

}  // namespace batch_norm_backward_parts

template <typename T, int VECTOR, int UNROLL, int LOADS, typename A>
__device__ __forceinline__ void batch_norm_backward_sums(const A& a) {
  if (a.c.near) {
    batch_norm_backward_parts::sums<T, true, LOADS, VECTOR, UNROLL>(a);
  } else {
    batch_norm_backward_parts::sums<T, false, LOADS, VECTOR, 1>(a);
  }
}

template <typename T, int VECTOR, int UNROLL, int LOADS, typename A>
__device__ __forceinline__ void batch_norm_backward_apply(const A& a) {
  if (a.c.near) {
    batch_norm_backward_parts::gradients<T, true, LOADS, VECTOR, UNROLL>(a);
  } else {
    batch_norm_backward_parts::gradients<T, false, LOADS, VECTOR, 1>(a);
  }
}

// All of a channel, which is near, by one block.
template <typename T, int VECTOR, int UNROLL, int LOADS>
__device__ __forceinline__ void batch_norm_backward_whole(const batch_norm_backward_args& a) {
  const T* const grads = static_cast<const T*>(a.grad) + blockIdx.y * a.grad_step;
  const T* const images = static_cast<const T*>(a.x) + blockIdx.y * a.x_step;
  T* const out = static_cast<T*>(a.x_grad) + blockIdx.y * a.out_step;
  const int at = threadIdx.x, last = a.c.terms, stride = blockDim.x;
  Vector<T, VECTOR> g[UNROLL], x[UNROLL];
  channel::fetch<true, LOADS>(a.c, grads, a.grad_strides, at, last, g);
  channel::fetch<true, LOADS>(a.c, images, a.x_strides, at, last, x);
  const float count = a.c.count, mean = a.mean[blockIdx.y];
  const float inverse = channel::inverse_root(a.var[blockIdx.y] * ((count - 1.0f) / count), a.c.eps);
  const float scale = a.weight ? inverse * read(a.weight, a.kind, blockIdx.y) : inverse;
  constexpr int N = UNROLL * VECTOR;
  float terms[N];
#pragma unroll
  for (int i = 0; i < N; ++i) terms[i] = widen(g[i / VECTOR][i % VECTOR]);  // 0 behind the last
  const float sum = channel::of_block(channel::total<T>(terms));
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float product = widen(g[i / VECTOR][i % VECTOR]) * (widen(x[i / VECTOR][i % VECTOR]) - mean);
    terms[i] = at + i / VECTOR * stride < last ? product : 0.0f;  // the mean may be infinite
  }
  const float product = channel::of_block(channel::total<T>(terms));
  if (threadIdx.x == 0) {
    if (a.weight_grad) write(a.weight_grad, a.kind, blockIdx.y, product * inverse);
    if (a.bias_grad) write(a.bias_grad, a.kind, blockIdx.y, sum);
  }
  if (!a.x_grad) return;
  const float level = sum / count, slope = product / count * inverse * inverse;
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    if (at + u * stride >= last) continue;
    Vector<T, VECTOR> to;
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) {
      to[e] = narrow<T>(scale * (widen(g[u][e]) - level - (widen(x[u][e]) - mean) * slope));
    }
    store<VECTOR>(out + channel::place<true>(a.c, a.out_strides, at + u * stride), to);
  }
}
