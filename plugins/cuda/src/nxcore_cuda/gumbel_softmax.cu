// gumbel_softmax: out = softmax((logits - log(noise)) / tau), or 1 at the first of the largest entries.
#pragma once

#include "rows.cuh"

struct gumbel_softmax_args {
  const void* logits;
  const void* noise;
  const void* tau;  // a number in memory, or null
  void* out;
  float number;  // tau where that is null
  int kind;      // of tau
  int hard;
  rows<3> r;
};

template <int LANES, int ITEMS>
__device__ __forceinline__ void gumbel_softmax(const gumbel_softmax_args& a) {
  const float tau = a.tau ? read(a.tau, a.kind, 0) : a.number;
  float d[ITEMS], p[ITEMS];
  load_row<LANES>(a.logits, a.r, 0, minus_infinity(), d);
  perturb_row<LANES>(a.noise, a.r, 1, tau, d);
  softmax_row<LANES>(d, p);
  if (a.hard) {
    float first = minus_infinity();  // negated: of the largest entries, the one of the least number
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      if (p[k] > 0.0f && d[k] == 0.0f) first = fmaxf(first, -(float)(threadIdx.x % LANES + k * LANES));
    }
    first = warp_max<LANES>(first);
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
      if (!is_nan(p[k])) p[k] = -first == (float)(threadIdx.x % LANES + k * LANES) ? 1.0f : 0.0f;
    }
  }
  store_row<LANES>(a.out, a.r, 2, p);
}
