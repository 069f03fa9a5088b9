// Short rows of numbers, a softmax along each: a row belongs to LANES neighbouring lanes, with ITEMS entries a lane.
#pragma once

#include "element.cuh"
#include "softmax.cuh"

template <int TENSORS>
struct rows {
  long long count;
  long long step[TENSORS];   // from row to row
  long long entry[TENSORS];  // from entry to entry
  int kind[TENSORS];         // as in softmax.cuh
  int length;
};

// The row of this thread, which may lie past the last one: whole warps go on all the same.
template <int LANES>
__device__ __forceinline__ long long own_row() {
  return ((long long)blockIdx.x * blockDim.x + threadIdx.x) / LANES;
}

// Calls use(k, entry, place) for each of the thread's entries that is there; `place` is that in tensor `which`.
template <int LANES, int ITEMS, int TENSORS, typename Use>
__device__ __forceinline__ void each_entry(const rows<TENSORS>& r, int which, Use use) {
  const long long row = own_row<LANES>();
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {
    const int i = threadIdx.x % LANES + k * LANES;
    if (row < r.count && i < r.length) use(k, i, row * r.step[which] + i * r.entry[which]);
  }
}

template <int LANES, int ITEMS, int TENSORS>
__device__ __forceinline__ void load_row(const void* from, const rows<TENSORS>& r, int which, float other,
                                         float (&values)[ITEMS]) {
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) values[k] = other;
  each_entry<LANES, ITEMS>(r, which,
                           [&](int k, int, long long at) { values[k] = read(from, r.kind[which], at); });
}

template <int LANES, int ITEMS, int TENSORS>
__device__ __forceinline__ void store_row(void* to, const rows<TENSORS>& r, int which, const float (&values)[ITEMS]) {
  each_entry<LANES, ITEMS>(r, which, [&](int k, int, long long at) { write(to, r.kind[which], at, values[k]); });
}

template <int LANES, int ITEMS>
__device__ __forceinline__ float row_sum(const float (&values)[ITEMS]) {
  float total = 0.0f;
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) total += values[k];
  return warp_sum<LANES>(total);
}

// Fills `weights` with the softmax of `x`, minus infinity where there is no entry; leaves in `x` how far below the
// row's largest each entry is, 0 where its weight is. Returns the sum of the exponentials. A NaN makes all NaN.
template <int LANES, int ITEMS>
__device__ __forceinline__ float softmax_row(float (&x)[ITEMS], float (&weights)[ITEMS]) {
  float top = minus_infinity();
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) top = fmaxf(top, x[k]);
  top = warp_max<LANES>(top);
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) weights[k] = expf(x[k] - top);
  const float total = row_sum<LANES>(weights);
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {
    weights[k] /= total;
    x[k] = weights[k] == 0.0f ? 0.0f : top - x[k];
  }
  return total;
}

// Makes logits noisy, where there is an entry: (logits - log(noise)) / tau.
template <int LANES, int ITEMS, int TENSORS>
__device__ __forceinline__ void perturb_row(const void* noise, const rows<TENSORS>& r, int which, float tau,
                                            float (&x)[ITEMS]) {
  each_entry<LANES, ITEMS>(r, which,
                           [&](int k, int, long long at) { x[k] = (x[k] - logf(read(noise, r.kind[which], at))) / tau; });
}

template <int LANES, int ITEMS>
__device__ __forceinline__ float row_dot(const float (&a)[ITEMS], const float (&b)[ITEMS]) {
  float products[ITEMS];
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) products[k] = a[k] * b[k];
  return row_sum<LANES>(products);
}
