// batch_norm_sum_backward: two kernels of one grid, (splits, channels, groups of tensors). The first leaves the sums of
// each block's elements, the second adds up the channel's and computes the gradients.
#pragma once

#include "channel.cuh"

template <int POINTERS>
struct batch_norm_sum_backward_args {
  const void* xs[POINTERS];
  void* outs[POINTERS];  // null: not wanted
  const void* grad;
  const void* weights;
  const float* means;  // [row][channel]
  const float* vars;
  void* weights_grad;  // null: not wanted
  float* shares;       // [tensor][channel][split] of the sums of grad and of grad * (x - mean)
  long long x_step;    // from one channel to the next
  long long grad_step;
  long long out_step;
  long long weight_step;
  int kind;  // of the weights and their gradient
  int count;
  int row[POINTERS];  // of each tensor's statistics; -1: it isn't normalised
  channels c;
  strides x_strides;
  strides grad_strides;
  strides out_strides;
};

namespace batch_norm_sum_backward_parts {

constexpr int GROUP = 4;  // tensors of a block

// 1 / sqrt(variance + eps) of the numbers of a row's channel.
template <int POINTERS>
__device__ __forceinline__ float inverse(const batch_norm_sum_backward_args<POINTERS>& a, int row, int channel) {
  const float count = a.c.count, var = a.vars[(long long)row * gridDim.y + channel];
  return channel::inverse_root(var * ((count - 1.0f) / count), a.c.eps);
}

}  // namespace batch_norm_sum_backward_parts

template <typename T, int POINTERS, int VECTOR, int UNROLL>
__device__ __forceinline__ void batch_norm_sum_backward_sums(const batch_norm_sum_backward_args<POINTERS>& a) {
  using namespace batch_norm_sum_backward_parts;
  constexpr int N = UNROLL * VECTOR;
  const int first = blockIdx.z * GROUP;
  const T* const grads = static_cast<const T*>(a.grad) + blockIdx.y * a.grad_step;
  const T* images[GROUP];
  float means[GROUP], found[GROUP + 1] = {};
#pragma unroll
  for (int k = 0; k < GROUP; ++k) {
    const int i = first + k < a.count ? first + k : first;
    images[k] = static_cast<const T*>(a.xs[i]) + blockIdx.y * a.x_step;
    means[k] = a.row[i] < 0 ? 0.0f : a.means[(long long)a.row[i] * gridDim.y + blockIdx.y];
  }
  const long long last = channel::last(a.c);
  for (long long at = channel::first(a.c) + threadIdx.x; at < last; at += UNROLL * blockDim.x) {
    Vector<T, VECTOR> g[UNROLL], x[GROUP][UNROLL];
    channel::fetch(a.c, grads, a.grad_strides, at, last, g);
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
      if (first + k < a.count) channel::fetch(a.c, images[k], a.x_strides, at, last, x[k]);
    }
    float terms[N];
#pragma unroll
    for (int i = 0; i < N; ++i) terms[i] = widen(g[i / VECTOR][i % VECTOR]);  // 0 behind the last
    found[GROUP] += channel::tree(terms);
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
      if (first + k >= a.count) break;
      float products[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        products[i] = widen(g[i / VECTOR][i % VECTOR]) * (widen(x[k][i / VECTOR][i % VECTOR]) - means[k]);
        if (at + (long long)(i / VECTOR) * blockDim.x >= last) products[i] = 0.0f;  // the mean may be infinite
      }
      found[k] += channel::tree(products);
    }
  }
  __shared__ float warps[GROUP + 1][WARP];
#pragma unroll
  for (int k = 0; k <= GROUP; ++k) {
    found[k] = warp_sum(found[k]);
    if (threadIdx.x % WARP == 0) warps[k][threadIdx.x / WARP] = found[k];
  }
  __syncthreads();
  if (threadIdx.x >= WARP) return;
  const bool held = threadIdx.x < blockDim.x / WARP;
#pragma unroll
  for (int k = 0; k <= GROUP; ++k) found[k] = warp_sum(held ? warps[k][threadIdx.x] : 0.0f);
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int k = 0; k < GROUP; ++k) {
    float* const shares = a.shares + 2ll * (first + k) * gridDim.y * a.c.splits;
    if (first + k < a.count) channel::leave(shares, a.c, found[GROUP], found[k]);
  }
}

template <typename T, int POINTERS, int VECTOR, int UNROLL>
__device__ __forceinline__ void batch_norm_sum_backward_apply(const batch_norm_sum_backward_args<POINTERS>& a) {
  using namespace batch_norm_sum_backward_parts;
  __shared__ float scales[GROUP], levels[GROUP], slopes[GROUP], centres[GROUP];
  const int first = blockIdx.z * GROUP, lane = threadIdx.x % WARP;
  const T* const grads = static_cast<const T*>(a.grad) + blockIdx.y * a.grad_step;
  const long long last = channel::last(a.c), offset = blockIdx.y * a.x_step;
  long long at = channel::first(a.c) + threadIdx.x;
  Vector<T, VECTOR> g[UNROLL];
  channel::fetch(a.c, grads, a.grad_strides, at, last, g);  // under way while the shares are added up

  for (int k = threadIdx.x / WARP; k < GROUP && first + k < a.count; k += blockDim.x / WARP) {
    const int i = first + k, row = a.row[i];
    const float* const shares = a.shares + 2ll * i * gridDim.y * a.c.splits;
    float scale = read(a.weights, a.kind, i * a.weight_step), level = 0.0f, slope = 0.0f, centre = 0.0f;
    if (row >= 0) {
      float sum = 0.0f, product = 0.0f;
      for (int split = lane; split < a.c.splits; split += WARP) {
        const Vector<float, 2> share = channel::left(shares, a.c, split);
        sum += share[0];
        product += share[1];
      }
      sum = warp_sum(sum);
      product = warp_sum(product);
      const float count = a.c.count, root = inverse(a, row, blockIdx.y);
      scale *= root;
      level = sum / count;
      slope = product / count * root * root;
      centre = a.means[(long long)row * gridDim.y + blockIdx.y];
    }
    if (lane == 0) {
      scales[k] = scale;
      levels[k] = level;
      slopes[k] = slope;
      centres[k] = centre;
    }
    if (a.weights_grad && blockIdx.x == 0 && blockIdx.y == 0) {  // all channels' sums
      float total = 0.0f;
      for (int at_share = lane; at_share < (int)gridDim.y * a.c.splits; at_share += WARP) {
        const float root = row < 0 ? 1.0f : inverse(a, row, at_share / a.c.splits);
        total = fmaf(shares[2ll * at_share + 1], root, total);
      }
      total = warp_sum(total);
      if (lane == 0) write(a.weights_grad, a.kind, i, total);
    }
  }
  __syncthreads();

  while (at < last) {
    Vector<T, VECTOR> x[GROUP][UNROLL];
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
      if (first + k >= a.count || a.row[first + k] < 0 || !a.outs[first + k]) continue;
      channel::fetch(a.c, static_cast<const T*>(a.xs[first + k]) + offset, a.x_strides, at, last, x[k]);
    }
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
      if (first + k >= a.count || !a.outs[first + k]) continue;
      const bool norm = a.row[first + k] >= 0;
      const float scale = scales[k], level = levels[k], slope = slopes[k], centre = centres[k];
      T* const out = static_cast<T*>(a.outs[first + k]) + blockIdx.y * a.out_step;
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        const long long term = at + (long long)u * blockDim.x;
        if (term >= last) continue;
        Vector<T, VECTOR> to;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
          float inner = widen(g[u][e]);
          if (norm) inner = inner - level - (widen(x[k][u][e]) - centre) * slope;
          to[e] = narrow<T>(scale * inner);
        }
        store<VECTOR>(out + locate(term, a.c.sizes, a.out_strides), to);
      }
    }
    at += UNROLL * blockDim.x;
    if (at < last) channel::fetch(a.c, grads, a.grad_strides, at, last, g);
  }
}
