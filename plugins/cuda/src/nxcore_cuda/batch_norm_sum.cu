// batch_norm_sum: two kernels. The first, of grid (splits, channels, normalised tensors), leaves mean and squared
// deviations of each block's elements; the second, (splits, channels), finds the statistics of every tensor's channel,
// then reads all tensors once.
#pragma once

#include "batch_norm.cu"

template <int POINTERS>
struct batch_norm_sum_args {
  const void* xs[POINTERS];
  const void* weights;
  void* out;
  float* means;  // [row][channel]
  float* vars;
  float* shares;     // [row][channel][split] of mean and squared deviations
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

constexpr int GROUP = 4;  // tensors whose loads don't wait for one another

// Where a thread's next UNROLL vectors are; those behind the last are at the first one's place.
template <int UNROLL>
__device__ __forceinline__ void places(const channels& c, const strides& steps, long long at, long long last,
                                       long long (&found)[UNROLL]) {
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const long long term = at + (long long)u * blockDim.x;
    found[u] = locate(term < last ? term : at, c.sizes, steps);
  }
}

template <int VECTOR, int UNROLL, typename T>
__device__ __forceinline__ void load_at(const T* base, const long long (&from)[UNROLL], Vector<T, VECTOR> (&x)[UNROLL]) {
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) x[u] = load<VECTOR>(base + from[u]);
}

}  // namespace batch_norm_sum_parts

template <typename T, int POINTERS, int VECTOR, int UNROLL>
__device__ __forceinline__ void batch_norm_sum_moments(const batch_norm_sum_args<POINTERS>& a) {
  using namespace batch_norm_parts;
  const T* const base = static_cast<const T*>(a.xs[a.which[blockIdx.z]]) + blockIdx.y * a.x_step;
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
  float* const shares = a.shares + 2ll * blockIdx.z * gridDim.y * a.c.splits;
  if (threadIdx.x == 0) channel::leave(shares, a.c, found.mean, found.squares);
}

template <typename T, int POINTERS, int VECTOR, int UNROLL>
__device__ __forceinline__ void batch_norm_sum_apply(const batch_norm_sum_args<POINTERS>& a) {
  using namespace batch_norm_parts;
  using namespace batch_norm_sum_parts;
  __shared__ float scales[POINTERS], centres[POINTERS];
  const int lane = threadIdx.x % WARP;
  const long long elements = a.c.span * VECTOR;
  for (int i = threadIdx.x / WARP; i < a.count; i += blockDim.x / WARP) {  // a warp for each tensor
    const int row = a.row[i];
    float scale = read(a.weights, a.kind, i * a.weight_step), centre = 0.0f;
    if (row >= 0) {
      const float* const shares = a.shares + 2ll * row * gridDim.y * a.c.splits;
      Moments found = {0.0f, 0.0f, 0.0f};
      for (int split = lane; split < a.c.splits; split += WARP) {
        const Vector<float, 2> share = channel::left(shares, a.c, split);
        const long long rest = a.c.count - split * elements;
        const Moments next = {(float)(rest < elements ? rest : elements), share[0], share[1]};
        found = found.count > 0.0f ? together(found, next) : next;
      }
      found = of_warp(found);
      centre = found.mean;
      scale *= channel::inverse_root(found.squares / (float)a.c.count, a.c.eps);
      if (blockIdx.x == 0 && lane == 0) {
        a.means[(long long)row * gridDim.y + blockIdx.y] = found.mean;
        a.vars[(long long)row * gridDim.y + blockIdx.y] = found.squares / (float)(a.c.count - 1);
      }
    }
    if (lane == 0) {
      scales[i] = scale;
      centres[i] = centre;
    }
  }
  __syncthreads();

  const long long last = channel::last(a.c), offset = blockIdx.y * a.x_step;
  T* const out = static_cast<T*>(a.out) + blockIdx.y * a.out_step;
  for (long long at = channel::first(a.c) + threadIdx.x; at < last; at += UNROLL * blockDim.x) {
    long long from[UNROLL];
    places(a.c, a.x_strides, at, last, from);
    float totals[UNROLL][VECTOR] = {};
    for (int first = 0; first < a.count; first += GROUP) {
      Vector<T, VECTOR> x[GROUP][UNROLL];
#pragma unroll
      for (int k = 0; k < GROUP; ++k) {
        if (first + k < a.count) load_at(static_cast<const T*>(a.xs[first + k]) + offset, from, x[k]);
      }
#pragma unroll
      for (int k = 0; k < GROUP; ++k) {
        if (first + k >= a.count) break;
        const float scale = scales[first + k], centre = centres[first + k];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
          for (int e = 0; e < VECTOR; ++e) totals[u][e] = fmaf(widen(x[k][u][e]) - centre, scale, totals[u][e]);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const long long term = at + (long long)u * blockDim.x;
      if (term >= last) continue;
      Vector<T, VECTOR> y;
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) y[e] = narrow<T>(totals[u][e]);
      store<VECTOR>(out + locate(term, a.c.sizes, a.out_strides), y);
    }
  }
}
