// softmax_sum_backward: w[i] * grad for every candidate, and the gradient of the logits, in one pass.
//
// With d[i] the sum of grad * xs[i], that gradient is w[i] * (d[i] - sum_j w[j] d[j]), or d[i] itself where
// the weights are given. Every block leaves
// its shares of d in `shares`; the last one to arrive adds them up.
#pragma once

#include "element.cuh"
#include "reduce.cuh"
#include "softmax.cuh"
#include "strided.cuh"

// POINTERS is 1 where the candidates are stacked; LAYOUTS is 1 where they share one.
template <int POINTERS, int LAYOUTS>
struct softmax_sum_backward_args {
  const void* grad;
  const void* logits;
  void* logits_grad;  // null: not wanted, and no candidate is read
  float* shares;      // gridDim.x of `count` each
  unsigned* ticket;
  const void* xs[POINTERS];
  void* outs[POINTERS];  // null: not wanted
  long long n;           // elements, or vectors of softmax_sum_backward_strided
  long long x_step;      // from one candidate to the next where all pointers are one, else 0
  long long out_step;
  long long logit_step;
  int count;
  int kind;            // of the logits
  long long repeated;  // grad's innermost stride is 0
  dims sizes;
  strides out_strides;
  strides grad_strides;
  strides x_strides[LAYOUTS];
};

namespace softmax_sum_backward_parts {

// A vector as the words that it was loaded in: the compiler would carry every element of a loop's next
// vector in a register of its own.
template <typename T, int VECTOR>
struct Packed {
  element::Words<sizeof(T) * VECTOR> words;

  __device__ __forceinline__ void pack(const Vector<T, VECTOR>& values) {
    element::Piece<T, VECTOR> piece;
    piece.vector = values;
    words = piece.words;
  }

  __device__ __forceinline__ Vector<T, VECTOR> unpack() const {
    element::Piece<T, VECTOR> piece;
    piece.words = words;
    return piece.vector;
  }
};

// One vector of grad and of each candidate.
template <typename T, int COUNT, int VECTOR>
struct Piece {
  Packed<T, VECTOR> grad;
  Packed<T, VECTOR> x[COUNT];
};

template <bool STREAMING, typename T, int COUNT, int VECTOR>
__device__ __forceinline__ void fetch(const softmax_sum_backward_args<16, 1>& a, long long at,
                                      Piece<T, COUNT, VECTOR>& piece) {
  const T* const grad = static_cast<const T*>(a.grad) + at;
  piece.grad.pack(STREAMING ? load_streaming<VECTOR>(grad) : load<VECTOR>(grad));
  if (!a.logits_grad) return;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const T* const x = static_cast<const T*>(a.xs[i]) + i * a.x_step + at;
    piece.x[i].pack(STREAMING ? load_streaming<VECTOR>(x) : load<VECTOR>(x));
  }
}

template <typename T, int COUNT, int VECTOR>
__device__ __forceinline__ void spread(const softmax_sum_backward_args<16, 1>& a, long long at,
                                       const Piece<T, COUNT, VECTOR>& piece, const float (&weights)[COUNT],
                                       float (&dots)[COUNT]) {
  const Vector<T, VECTOR> grad = piece.grad.unpack();
  float g[VECTOR];
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) g[e] = widen(grad[e]);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    if (a.outs[i]) {
      Vector<T, VECTOR> scaled;
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) scaled[e] = narrow<T>(weights[i] * g[e]);
      store_streaming(static_cast<T*>(a.outs[i]) + i * a.out_step + at, scaled);
    }
  }
  if (!a.logits_grad) return;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const Vector<T, VECTOR> x = piece.x[i].unpack();
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) dots[i] = fmaf(g[e], widen(x[e]), dots[i]);
  }
}

}  // namespace softmax_sum_backward_parts

// Grad, candidates and gradients that all lie in memory alike. `shared`: blockDim.x floats, COUNT at least.
template <typename T, int COUNT, int VECTOR, bool STREAMING>
__device__ __forceinline__ void softmax_sum_backward(const softmax_sum_backward_args<16, 1>& a) {
  using namespace softmax_sum_backward_parts;
  constexpr int LANES = power_of_two(COUNT);
  float weights[COUNT], dots[COUNT] = {};
  const unsigned logit = own_logit<COUNT>(a.logits, a.kind, a.logit_step);
  const long long step = (long long)gridDim.x * blockDim.x * VECTOR;
  long long at = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
  bool whole = at + VECTOR <= a.n;
  Piece<T, COUNT, VECTOR> piece;
  if (whole) fetch<STREAMING>(a, at, piece);  // all loads of a piece come before any store
  softmax<COUNT>(logit, a.kind, weights);
  while (whole) {
    spread(a, at, piece, weights, dots);
    at += step;
    whole = at + VECTOR <= a.n;
    if (whole) fetch<STREAMING>(a, at, piece);
  }
  for (; at < a.n; ++at) {  // the last thread's part of a vector
    Piece<T, COUNT, 1> element;
    fetch<false>(a, at, element);
    spread(a, at, element, weights, dots);
  }
  if (!a.logits_grad) return;

  float* const shared = dynamic_shared<float>();
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const float of_warp = warp_sum(dots[i]);
    if (lane == i) shared[warp * COUNT + i] = of_warp;
  }
  __syncthreads();
  if (threadIdx.x < COUNT) {
    float total = 0.0f;
    for (int w = 0; w < warps; ++w) total += shared[w * COUNT + threadIdx.x];
    a.shares[blockIdx.x * COUNT + threadIdx.x] = total;
  }
  if (!last_to_arrive(a.ticket, gridDim.x)) return;

  const int i = threadIdx.x % LANES;
  float dot[1] = {0.0f};
  if (i < COUNT) {
#pragma unroll 8
    for (unsigned block = threadIdx.x / LANES; block < gridDim.x; block += blockDim.x / LANES) {
      dot[0] += a.shares[block * COUNT + i];
    }
  }
  float* const totals = shared + blockDim.x;
  sum_columns(dot, LANES, shared, [&](int place, float total) { totals[place] = total; });
  __syncthreads();
  if (threadIdx.x < COUNT) {
    float mean = 0.0f, weight = 0.0f;
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      mean = fmaf(weights[j], totals[j], mean);
      if (j == threadIdx.x) weight = weights[j];
    }
    const float total = totals[threadIdx.x];
    write(a.logits_grad, a.kind, threadIdx.x, a.kind & GIVEN ? total : weight * (total - mean));
  }
}

// Any number of candidates, and any layouts. Shared memory holds the weights, and each warp's shares.
template <typename T, typename GRAD, int POINTERS, int LAYOUTS, int VECTOR>
__device__ __forceinline__ void softmax_sum_backward_strided(const softmax_sum_backward_args<POINTERS, LAYOUTS>& a) {
  constexpr int GROUP = 4;  // candidates whose loads come before any store
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  float* const weights = dynamic_shared<float>();
  float* const dots = weights + a.count;
  softmax(a.logits, a.kind, a.logit_step, a.count, weights);
  for (int i = threadIdx.x; i < a.count * warps; i += blockDim.x) dots[i] = 0.0f;
  __syncthreads();
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long first = (long long)blockIdx.x * blockDim.x; first < a.n; first += step) {
    const long long index = first + threadIdx.x;
    const bool inside = index < a.n;  // a warp stays together for its sums
    long long out_place = 0, grad_place = 0, x_place = 0;
    float g[VECTOR] = {};
    if (inside) {
      out_place = locate(index, a.sizes, a.out_strides);
      grad_place = locate(index, a.sizes, a.grad_strides);
      if (LAYOUTS == 1) x_place = locate(index, a.sizes, a.x_strides[0]);
      const GRAD* const from = static_cast<const GRAD*>(a.grad) + grad_place;
      if (a.repeated) {
        const float one = widen(*from);
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) g[e] = one;
      } else {
        const Vector<GRAD, VECTOR> grad = load<VECTOR>(from);
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) g[e] = widen(grad[e]);
      }
    }
    for (int start = 0; start < a.count; start += GROUP) {
      Vector<T, VECTOR> x[GROUP];
      if (a.logits_grad && inside) {
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
          const int i = start + k < a.count ? start + k : start;
          if (LAYOUTS > 1) x_place = locate(index, a.sizes, a.x_strides[i]);
          x[k] = load<VECTOR>(static_cast<const T*>(a.xs[POINTERS == 1 ? 0 : i]) + i * a.x_step + x_place);
        }
      }
#pragma unroll
      for (int k = 0; k < GROUP; ++k) {
        const int i = start + k;
        if (i >= a.count) break;
        if (a.logits_grad) {
          float dot = 0.0f;
          if (inside) {
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) dot = fmaf(g[e], widen(x[k][e]), dot);
          }
          dot = warp_sum(dot);
          if (lane == 0) dots[warp * a.count + i] += dot;
        }
        T* const out = static_cast<T*>(a.outs[POINTERS == 1 ? 0 : i]);
        if (inside && out) {
          const float weight = weights[i];
          Vector<T, VECTOR> scaled;
#pragma unroll
          for (int e = 0; e < VECTOR; ++e) scaled[e] = narrow<T>(weight * g[e]);
          store_streaming(out + i * a.out_step + out_place, scaled);
        }
      }
    }
  }
  if (!a.logits_grad) return;

  __syncthreads();
  for (int i = threadIdx.x; i < a.count; i += blockDim.x) {
    float total = 0.0f;
    for (int w = 0; w < warps; ++w) total += dots[w * a.count + i];
    a.shares[(long long)blockIdx.x * a.count + i] = total;
  }
  if (!last_to_arrive(a.ticket, gridDim.x)) return;

  for (int i = warp; i < a.count; i += warps) {
    float total = 0.0f;
    for (unsigned block = lane; block < gridDim.x; block += WARP) {
      total += a.shares[(long long)block * a.count + i];
    }
    total = warp_sum(total);
    if (lane == 0) dots[i] = total;
  }
  __syncthreads();
  float mean = 0.0f;
  for (int i = lane; i < a.count; i += WARP) mean = fmaf(weights[i], dots[i], mean);
  mean = warp_sum(mean);
  for (int i = threadIdx.x; i < a.count; i += blockDim.x) {
    write(a.logits_grad, a.kind, i, a.kind & GIVEN ? dots[i] : weights[i] * (dots[i] - mean));
  }
}
