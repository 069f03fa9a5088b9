// entropy_backward: out[i] = p[i] (d[i] - sum_j p[j] d[j]) grad, with p and d as in entropy.
#pragma once

#include "rows.cuh"

struct entropy_backward_args {
  const void* grad;
  const void* logits;
  void* out;
  rows<3> r;
};

template <int LANES, int ITEMS>
__device__ __forceinline__ void entropy_backward(const entropy_backward_args& a) {
  float d[ITEMS], p[ITEMS], grad[ITEMS];
  load_row<LANES>(a.grad, a.r, 0, 0.0f, grad);
  load_row<LANES>(a.logits, a.r, 1, minus_infinity(), d);
  softmax_row<LANES>(d, p);
  const float mean = row_dot<LANES>(p, d);
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) p[k] *= (d[k] - mean) * grad[k];
  store_row<LANES>(a.out, a.r, 2, p);
}
