// batch_norm_sum: two kernels. The first, of grid (normalised tensors, splits, channels), leaves the moments of each
// block's elements; the second, (1, splits of its own, channels), finds the statistics of every tensor's channel, then
// reads all tensors once.
//
// Neighbours in the first grid have the same part of a channel, and the second one goes backwards: it begins with what
// the cache still has of all tensors.
#pragma once

#include "batch_norm.cu"

template <int POINTERS>
struct batch_norm_sum_args {
  const void* xs[POINTERS];
  const void* weights;
  void* out;
  float* means;  // [row][channel]
  float* vars;
  float* shares;     // [row][channel][split] of moments
  long long x_step;  // from one channel to the next
  long long out_step;
  long long weight_step;
  int kind;  // of the weights
  int count;
  int row[POINTERS];    // of each tensor's statistics; -1: it isn't normalised
  int which[POINTERS];  // the tensor of each row
  channels c;
  strides x_strides;
  strides out_strides;
};

namespace batch_norm_sum_parts {

constexpr int FLIGHT = 8;  // loads of a thread that don't wait for one another
constexpr int LANES = 8;  // threads that put the shares of one tensor together

}  // namespace batch_norm_sum_parts

template <typename T, int POINTERS, int VECTOR, int UNROLL, bool NEAR, int LOADS>
__device__ __forceinline__ void batch_norm_sum_moments(const batch_norm_sum_args<POINTERS>& a) {
  using namespace batch_norm_parts;
  const channel::Part own = channel::part(false);
  const T* const base = static_cast<const T*>(a.xs[a.which[own.item]]) + own.channel * a.x_step;
  const Moments found = of_share<NEAR, LOADS, VECTOR, UNROLL>(a.c, base, a.x_strides, own.split);
  const long long at = ((long long)own.item * own.channels + own.channel) * a.c.splits + own.split;
  if (threadIdx.x == 0) moments::leave(a.shares, at, found);
}

template <typename T, int POINTERS, int VECTOR, int UNROLL, bool NEAR, int LOADS>
__device__ __forceinline__ void batch_norm_sum_apply(const batch_norm_sum_args<POINTERS>& a) {
  using namespace batch_norm_parts;
  using namespace batch_norm_sum_parts;
  using I = channel::number<NEAR>;
  constexpr int GROUP = FLIGHT / UNROLL;  // tensors
  const channel::Part own = channel::part(true);
  const long long offset = own.channel * a.x_step;
  const I last = channel::last<NEAR>(a.c, own.split), stride = blockDim.x;
  I at = channel::first<NEAR>(a.c, own.split) + (I)threadIdx.x;
  Vector<T, VECTOR> x[GROUP][UNROLL];
  // Vectors behind the last are loaded from the first one's place, and not used.
  const auto ask = [&](int first) {
    I from[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      from[u] = channel::place<NEAR>(a.c, a.x_strides, at + u * stride < last ? at + u * stride : at);
    }
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
      if (first + k >= a.count) break;
      const T* const base = static_cast<const T*>(a.xs[first + k]) + offset;
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        x[k][u] = channel::loaded<LOADS, VECTOR>(base + from[u]);
      }
    }
  };
  if (at < last) ask(0);  // under way while the shares are put together

  __shared__ Vector<float, 2> factors[POINTERS];  // scale and mean
  const int lane = threadIdx.x % LANES;
  for (int begin = 0; begin < a.count; begin += blockDim.x / LANES) {
    const int i = begin + threadIdx.x / LANES, row = i < a.count ? a.row[i] : -1;
    const long long number = (long long)row * own.channels + own.channel;
    Moments found = {0.0f, 0.0f, 0.0f};
    for (int split = lane; row >= 0 && split < a.c.splits; split += LANES) {
      const Vector<float, 4> share = load<4>(a.shares + 4 * (number * a.c.splits + split));
      const Moments next = {share[0], share[1], share[2]};
      found = found.count > 0.0f ? together(found, next) : next;
    }
    found = of_warp<LANES>(found);
    if (lane > 0 || i >= a.count) continue;
    Vector<float, 2> factor;
    factor[0] = read(a.weights, a.kind, i * a.weight_step);
    factor[1] = 0.0f;
    if (row >= 0) {
      factor[0] *= channel::inverse_root(found.squares / (float)a.c.count, a.c.eps);
      factor[1] = found.mean;
      if (own.split == 0) {
        a.means[number] = found.mean;
        a.vars[number] = found.squares / (float)(a.c.count - 1);
      }
    }
    factors[i] = factor;
  }
  __syncthreads();

  T* const out = static_cast<T*>(a.out) + own.channel * a.out_step;
  while (at < last) {
    float totals[UNROLL][VECTOR] = {};
    for (int first = 0;;) {
#pragma unroll
      for (int k = 0; k < GROUP; ++k) {
        if (first + k >= a.count) break;
        const Vector<float, 2> factor = factors[first + k];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
          for (int e = 0; e < VECTOR; ++e) {
            totals[u][e] = fmaf(widen(x[k][u][e]) - factor[1], factor[0], totals[u][e]);
          }
        }
      }
      first += GROUP;
      if (first >= a.count) break;
      ask(first);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const I term = at + u * stride;
      if (term >= last) continue;
      Vector<T, VECTOR> y;
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) y[e] = narrow<T>(totals[u][e]);
      store<VECTOR>(out + channel::place<NEAR>(a.c, a.out_strides, term), y);
    }
    at += UNROLL * stride;
    if (at < last) ask(0);
  }
}
