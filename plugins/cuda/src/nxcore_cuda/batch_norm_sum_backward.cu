// batch_norm_sum_backward: two kernels of grids (groups of tensors, splits, channels). The first leaves the sums of
// each block's elements; the second, with splits of its own, adds up the channel's and computes the gradients.
//
// The second one goes backwards, as that of batch_norm_sum does.
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
constexpr int LANES = 8;  // threads that add up the shares of one tensor

// 1 / sqrt(variance + eps) of one of the normalised channels.
template <int POINTERS>
__device__ __forceinline__ float inverse(const batch_norm_sum_backward_args<POINTERS>& a, long long number) {
  const float count = a.c.count;
  return channel::inverse_root(a.vars[number] * ((count - 1.0f) / count), a.c.eps);
}

// The gradient of a weight: the sums of all channels. A whole warp calls it.
template <int POINTERS>
__device__ __forceinline__ void weigh(const batch_norm_sum_backward_args<POINTERS>& a, int i, int channels) {
  const int row = a.row[i], lane = threadIdx.x % WARP;
  const float* const shares = a.shares + 2ll * i * channels * a.c.splits;
  float total = 0.0f;
  for (int share = lane; share < channels * a.c.splits; share += WARP) {
    const float root = row < 0 ? 1.0f : inverse(a, (long long)row * channels + share / a.c.splits);
    total = fmaf(shares[2ll * share + 1], root, total);
  }
  total = warp_sum(total);
  if (lane == 0) write(a.weights_grad, a.kind, i, total);
}

}  // namespace batch_norm_sum_backward_parts

template <typename T, int POINTERS, int VECTOR, int UNROLL, bool NEAR, int LOADS>
__device__ __forceinline__ void batch_norm_sum_backward_sums(const batch_norm_sum_backward_args<POINTERS>& a) {
  using namespace batch_norm_sum_backward_parts;
  using I = channel::number<NEAR>;
  const channel::Part own = channel::part(false);
  const int first = own.item * GROUP;
  const T* const grads = static_cast<const T*>(a.grad) + own.channel * a.grad_step;
  const T* images[GROUP];
  float means[GROUP], found[GROUP + 1] = {};
#pragma unroll
  for (int k = 0; k < GROUP; ++k) {
    const int i = first + k < a.count ? first + k : first;
    images[k] = static_cast<const T*>(a.xs[i]) + own.channel * a.x_step;
    means[k] = a.row[i] < 0 ? 0.0f : a.means[(long long)a.row[i] * own.channels + own.channel];
  }
  const I begin = channel::first<NEAR>(a.c, own.split) + (I)threadIdx.x, last = channel::last<NEAR>(a.c, own.split);
  channel::walk<UNROLL>(begin, last, [&](auto many, I at) {
    constexpr int N = decltype(many)::value * VECTOR;
    Vector<T, VECTOR> g[N / VECTOR], x[GROUP][N / VECTOR];
    channel::fetch<NEAR, LOADS>(a.c, grads, a.grad_strides, at, g);
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
      if (first + k < a.count) channel::fetch<NEAR, LOADS>(a.c, images[k], a.x_strides, at, x[k]);
    }
    float terms[N];
#pragma unroll
    for (int i = 0; i < N; ++i) terms[i] = widen(g[i / VECTOR][i % VECTOR]);
    found[GROUP] += channel::total<T>(terms);
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
      if (first + k >= a.count) break;
      float products[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        products[i] = widen(g[i / VECTOR][i % VECTOR]) * (widen(x[k][i / VECTOR][i % VECTOR]) - means[k]);
      }
      found[k] += channel::total<T>(products);
    }
  });
  __shared__ float warps[GROUP + 1][WARP], sums[GROUP + 1];
#pragma unroll
  for (int k = 0; k <= GROUP; ++k) {
    found[k] = warp_sum(found[k]);
    if (threadIdx.x % WARP == 0) warps[k][threadIdx.x / WARP] = found[k];
  }
  __syncthreads();
  if (threadIdx.x >= WARP) return;
  const int k = threadIdx.x;
  if (k <= GROUP) {  // a lane for each sum
    float sum = warps[k][0];
    for (int warp = 1; warp < (int)blockDim.x / WARP; ++warp) sum += warps[k][warp];
    sums[k] = sum;
  }
  __syncwarp();
  if (k < GROUP && first + k < a.count) {
    const long long at = ((long long)(first + k) * own.channels + own.channel) * a.c.splits + own.split;
    Vector<float, 2> share;
    share[0] = sums[GROUP];
    share[1] = sums[k];
    store<2>(a.shares + 2 * at, share);
  }
}

template <typename T, int POINTERS, int VECTOR, int UNROLL, bool NEAR, int LOADS>
__device__ __forceinline__ void batch_norm_sum_backward_apply(const batch_norm_sum_backward_args<POINTERS>& a) {
  using namespace batch_norm_sum_backward_parts;
  using I = channel::number<NEAR>;
  constexpr int SHARED = LOADS == channel::LAST ? channel::ONCE : LOADS;
  const channel::Part own = channel::part(true);
  const int first = own.item * GROUP;
  const T* const grads = static_cast<const T*>(a.grad) + own.channel * a.grad_step;
  const I last = channel::last<NEAR>(a.c, own.split), stride = blockDim.x;
  I at = channel::first<NEAR>(a.c, own.split) + (I)threadIdx.x;
  Vector<T, VECTOR> g[UNROLL], x[GROUP][UNROLL];
  // Vectors behind the last are loaded from the first one's place, and not used; those of tensors that aren't
  // normalised are 0, as all factors but the scale.
  const auto ask = [&] {
    I from[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) from[u] = at + u * stride < last ? at + u * stride : at;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {  // other groups load it too
      g[u] = channel::loaded<SHARED, VECTOR>(grads + channel::place<NEAR>(a.c, a.grad_strides, from[u]));
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) from[u] = channel::place<NEAR>(a.c, a.x_strides, from[u]);
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
      if (first + k >= a.count || a.row[first + k] < 0 || !a.outs[first + k]) {
#pragma unroll
        for (int i = 0; i < UNROLL * VECTOR; ++i) x[k][i / VECTOR][i % VECTOR] = narrow<T>(0.0f);
        continue;
      }
      const T* const base = static_cast<const T*>(a.xs[first + k]) + own.channel * a.x_step;
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        x[k][u] = channel::loaded<LOADS, VECTOR>(base + from[u]);
      }
    }
  };
  if (at < last) ask();  // under way while the shares are added up

  __shared__ Vector<float, 4> factors[GROUP];  // scale, level, slope, mean
  const int k = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  if (threadIdx.x < WARP) {
    const int i = first + k < a.count ? first + k : first, row = a.row[i];
    const long long number = (long long)row * own.channels + own.channel;
    const float* const shares = a.shares + 2 * ((long long)i * own.channels + own.channel) * a.c.splits;
    float sum = 0.0f, product = 0.0f;
    for (int split = lane; split < a.c.splits; split += LANES) {
      const Vector<float, 2> share = load<2>(shares + 2 * split);
      sum += share[0];
      product += share[1];
    }
    sum = warp_sum<LANES>(sum);
    product = warp_sum<LANES>(product);
    if (lane == 0) {
      Vector<float, 4> factor = {};
      factor[0] = read(a.weights, a.kind, i * a.weight_step);
      if (row >= 0) {
        const float count = a.c.count, root = inverse(a, number);
        factor[0] *= root;
        factor[1] = sum / count;
        factor[2] = product / count * root * root;
        factor[3] = a.means[number];
      }
      factors[k] = factor;
    }
  }
  // One of the first blocks, so that others hide it.
  if (a.weights_grad && blockIdx.y == 0 && blockIdx.z == 0) {
    for (int i = first + threadIdx.x / WARP; i < a.count && i < first + GROUP; i += blockDim.x / WARP) {
      weigh(a, i, own.channels);
    }
  }
  __syncthreads();

  while (at < last) {
    I to[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) to[u] = channel::place<NEAR>(a.c, a.out_strides, at + u * stride);
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
      if (first + k >= a.count || !a.outs[first + k]) continue;
      const Vector<float, 4> factor = factors[k];
      T* const out = static_cast<T*>(a.outs[first + k]) + own.channel * a.out_step;
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        if (at + u * stride >= last) continue;
        Vector<T, VECTOR> y;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
          const float off = widen(x[k][u][e]) - factor[3];
          y[e] = narrow<T>(factor[0] * (widen(g[u][e]) - factor[1] - off * factor[2]));
        }
        store<VECTOR>(out + to[u], y);
      }
    }
    at += UNROLL * stride;
    if (at < last) ask();
  }
}
