// entropy: out = -sum_i p[i] log p[i] of p = softmax(logits), a row at a time.
//
// With d[i] = max(logits) - logits[i] it is log(sum_i exp(-d[i])) + sum_i p[i] d[i]: nothing cancels.
#pragma once

#include "rows.cuh"

struct entropy_args {
  const void* logits;
  void* out;
  rows<2> r;
};

template <int LANES, int ITEMS>
__device__ __forceinline__ void entropy(const entropy_args& a) {
  float d[ITEMS], p[ITEMS];
  load_row<LANES>(a.logits, a.r, 0, minus_infinity(), d);
  const float total = softmax_row<LANES>(d, p);
  const float mean = row_dot<LANES>(p, d);
  const long long row = own_row<LANES>();
  if (threadIdx.x % LANES == 0 && row < a.r.count) write(a.out, a.r.kind[1], row * a.r.step[1], logf(total) + mean);
}
