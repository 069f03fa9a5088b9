// gumbel_softmax_backward: out[i] = p[i] (grad[i] - sum_j p[j] grad[j]) / tau, with p as in gumbel_softmax.
#pragma once

#include "rows.cuh"

struct gumbel_softmax_backward_args {
  const void* grad;
  const void* logits;
  const void* noise;
  const void* tau;  // a number in memory, or null
  void* out;
  float number;  // tau where that is null
  int kind;      // of tau
  rows<4> r;
};

template <int LANES, int ITEMS>
__device__ __forceinline__ void gumbel_softmax_backward(const gumbel_softmax_backward_args& a) {
  const float tau = a.tau ? read(a.tau, a.kind, 0) : a.number;
  float grad[ITEMS], d[ITEMS], p[ITEMS];
  load_row<LANES>(a.grad, a.r, 0, 0.0f, grad);
  load_row<LANES>(a.logits, a.r, 1, minus_infinity(), d);
  perturb_row<LANES>(a.noise, a.r, 2, tau, d);
  softmax_row<LANES>(d, p);
  const float mean = row_dot<LANES>(p, grad);
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) p[k] *= (grad[k] - mean) / tau;
  store_row<LANES>(a.out, a.r, 3, p);
}
