// softmax_sum: out = sum_i softmax(logits)[i] * xs[i].
#pragma once

#include "element.cuh"
#include "softmax.cuh"
#include "strided.cuh"

// POINTERS is 1 where the candidates are stacked; LAYOUTS is 1 where they share one.
template <int POINTERS, int LAYOUTS>
struct softmax_sum_args {
  const void* xs[POINTERS];
  const void* logits;
  void* out;
  long long n;       // elements, or vectors of softmax_sum_strided
  long long x_step;  // from one candidate to the next where all pointers are one, else 0
  long long logit_step;
  int count;
  int kind;  // of the logits
  dims sizes;
  strides out_strides;
  strides x_strides[LAYOUTS];
};

// Candidates that lie in memory as the output does, n >= VECTOR elements each. Loads wait neither for one
// another nor for the weights.
template <typename T, int COUNT, int VECTOR, int ITEMS>
__device__ __forceinline__ void softmax_sum(const softmax_sum_args<16, 1>& a) {
  const long long step = (long long)blockDim.x * VECTOR;
  const long long first = blockIdx.x * step * ITEMS + threadIdx.x * VECTOR;
  const unsigned logit = own_logit<COUNT>(a.logits, a.kind, a.logit_step);
  Vector<T, VECTOR> x[ITEMS][COUNT];
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const long long at = first + item * step;
    const long long place = at + VECTOR <= a.n ? at : 0;  // no branch, so that values stay packed till used
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      x[item][i] = load<VECTOR>(static_cast<const T*>(a.xs[i]) + i * a.x_step + place);
    }
  }
  float weights[COUNT];
  softmax<COUNT>(logit, a.kind, weights);
  T* const out = static_cast<T*>(a.out);
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const long long at = first + item * step;
    Vector<T, VECTOR> blend;
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) {
      float total = weights[0] * widen(x[item][0][e]);
#pragma unroll
      for (int i = 1; i < COUNT; ++i) total = fmaf(weights[i], widen(x[item][i][e]), total);
      blend[e] = narrow<T>(total);
    }
    if (at + VECTOR <= a.n) {
      store_streaming(out + at, blend);
      continue;
    }
#pragma unroll 1
    for (long long rest = at; rest < a.n; ++rest) {
      float total = 0.0f;
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        total = fmaf(weights[i], widen(static_cast<const T*>(a.xs[i])[i * a.x_step + rest]), total);
      }
      out[rest] = narrow<T>(total);
    }
  }
}

// Any number of candidates of any layout. The weights lie in shared memory.
template <typename T, int POINTERS, int LAYOUTS, int VECTOR>
__device__ __forceinline__ void softmax_sum_strided(const softmax_sum_args<POINTERS, LAYOUTS>& a) {
  float* const weights = dynamic_shared<float>();
  softmax(a.logits, a.kind, a.logit_step, a.count, weights);
  const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= a.n) return;
  long long place = LAYOUTS == 1 ? locate(index, a.sizes, a.x_strides[0]) : 0;
  float totals[VECTOR] = {};
#pragma unroll 4
  for (int i = 0; i < a.count; ++i) {
    if (LAYOUTS > 1) place = locate(index, a.sizes, a.x_strides[i]);
    const T* const from = static_cast<const T*>(a.xs[POINTERS == 1 ? 0 : i]) + i * a.x_step;
    const Vector<T, VECTOR> x = load<VECTOR>(from + place);
    const float weight = weights[i];
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) totals[e] = fmaf(weight, widen(x[e]), totals[e]);
  }
  Vector<T, VECTOR> blend;
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) blend[e] = narrow<T>(totals[e]);
  store_streaming(static_cast<T*>(a.out) + locate(index, a.sizes, a.out_strides), blend);
}
