// sum: every reduction that only adds up, whatever lies inside in memory.
//
// An output's terms may be shared by several blocks (gridDim.y): each leaves its part in `shares`, and the
// last one to arrive adds those up.
#pragma once

#include "element.cuh"
#include "reduce.cuh"
#include "strided.cuh"

struct sum_args {
  const void* x;
  void* out;
  float* shares;     // [gridDim.y][outputs]
  unsigned* ticket;  // one for each blockIdx.x
  long long columns;  // outputs, or vectors of them
  long long terms;    // of one output: vectors, or single ones
  long long span;     // terms of one block
  long long rest;     // elements that follow the last whole vector
  long long out_step;  // from one element of a vector of outputs to the next
  dims kept;
  strides x_kept;
  strides out_kept;
  dims reduced;
  strides x_reduced;
  int lanes;  // threads that share an output
  float scale;
};

namespace sum_parts {

// How the number of a term becomes its place.
enum Walk { STEADY, NARROW, WIDE };  // one dimension; more, and numbers of 32 bits; more, and 64

template <Walk WALK>
__device__ __forceinline__ long long place_of(const sum_args& a, long long term) {
  if (WALK == STEADY) return term * a.x_reduced.of[0];
  long long at[1] = {0};
  if (WALK == NARROW) strided::locate((unsigned)term, a.reduced, &a.x_reduced, at);
  if (WALK == WIDE) strided::locate((unsigned long long)term, a.reduced, &a.x_reduced, at);
  return at[0];
}

// Adds to `totals` the vectors term, term + step, and so on: UNROLL of them where ALL, else those before last.
template <int UNROLL, Walk WALK, bool ALL, int VECTOR, typename T>
__device__ __forceinline__ void burst(const sum_args& a, const T* base, long long term, long long last, int step,
                                      float (&totals)[VECTOR]) {
  Vector<T, VECTOR> x[UNROLL];
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const long long at = term + (long long)u * step;
    if (ALL || at < last) {
      x[u] = load<VECTOR>(base + place_of<WALK>(a, at));
    } else {
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) x[u][e] = narrow<T>(0.0f);
    }
  }
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) {
    float sums[UNROLL];  // added up as a tree: short chains, small errors
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) sums[u] = widen(x[u][e]);
#pragma unroll
    for (int half = UNROLL / 2; half > 0; half /= 2) {
#pragma unroll
      for (int u = 0; u < half; ++u) sums[u] += sums[u + half];
    }
    totals[e] += sums[0];
  }
}

// Adds every STEPth vector from `term` to `last` to `totals`.
template <int UNROLL, int VECTOR, typename T>
__device__ __forceinline__ void gather(const sum_args& a, const T* base, long long term, long long last, int step,
                                       float (&totals)[VECTOR]) {
  if (a.reduced.rank <= 1) {
    const long long stride = (long long)UNROLL * step;
#pragma unroll 1
    for (; term + stride - step < last; term += stride) burst<UNROLL, STEADY, true>(a, base, term, last, step, totals);
    if (term < last) burst<UNROLL, STEADY, false>(a, base, term, last, step, totals);
  } else if (!a.reduced.wide) {
    constexpr int FEWER = UNROLL > 1 ? UNROLL / 2 : 1;  // a place is much code
#pragma unroll 1
    for (; term < last; term += FEWER * step) burst<FEWER, NARROW, false>(a, base, term, last, step, totals);
  } else {
#pragma unroll 1
    for (; term < last; term += step) burst<1, WIDE, true>(a, base, term, last, step, totals);
  }
}

// Reads what all blocks left for this thread's column; with the others of the column it reads them all.
template <int VECTOR>
__device__ __forceinline__ void gather_shares(const sum_args& a, long long column, int columns,
                                              float (&totals)[VECTOR]) {
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) totals[e] = 0.0f;
  if (column >= a.columns) return;
#pragma unroll 8
  for (unsigned part = threadIdx.x / columns; part < gridDim.y; part += blockDim.x / columns) {
    const Vector<float, VECTOR> share = load<VECTOR>(a.shares + (part * a.columns + column) * VECTOR);
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) totals[e] += share[e];
  }
}

}  // namespace sum_parts

// Neighbours in memory are terms of one output: `lanes` threads (a power of two up to 32, or the block)
// add up its vectors. `shared`: blockDim.x floats.
template <typename T, int VECTOR, int UNROLL>
__device__ __forceinline__ void sum_inner(const sum_args& a) {
  using namespace sum_parts;
  const int lane = threadIdx.x % a.lanes;
  const long long output = (long long)blockIdx.x * (blockDim.x / a.lanes) + threadIdx.x / a.lanes;
  const bool inside = output < a.columns;
  const long long first = blockIdx.y * a.span;
  const long long last = first + a.span < a.terms ? first + a.span : a.terms;
  float totals[VECTOR] = {};
  if (inside) {
    const T* const base = static_cast<const T*>(a.x) + locate(output, a.kept, a.x_kept);
    gather<UNROLL>(a, base, first + lane, last, a.lanes, totals);
    if (last == a.terms) {
      for (int i = lane; i < a.rest; i += a.lanes) totals[0] += widen(base[a.terms * VECTOR + i]);
    }
  }
#pragma unroll
  for (int half = VECTOR / 2; half > 0; half /= 2) {
#pragma unroll
    for (int e = 0; e < half; ++e) totals[e] += totals[e + half];
  }
  float total[1] = {totals[0]};
  const auto finish = [&](int, float found) {
    static_cast<T*>(a.out)[locate(output, a.kept, a.out_kept)] = narrow<T>(found * a.scale);
  };
  if (a.lanes <= WARP) {
    for (int step = a.lanes / 2; step > 0; step /= 2) total[0] += __shfl_xor_sync(ALL_LANES, total[0], step);
    if (inside && lane == 0) finish(0, total[0]);
    return;
  }
  float* const shared = dynamic_shared<float>();
  if (gridDim.y > 1) {
    sum_columns(total, 1, shared, [&](int, float found) { a.shares[blockIdx.y * a.columns + output] = found; });
    if (!last_to_arrive(a.ticket + blockIdx.x, gridDim.y)) return;
    gather_shares(a, output, 1, total);
  }
  sum_columns(total, 1, shared, finish);
}

// Neighbours in memory belong to different outputs: blockDim.x / lanes threads (a power of two) lie along
// them, each with a vector of outputs. `shared`: blockDim.x * VECTOR floats.
template <typename T, int VECTOR, int UNROLL>
__device__ __forceinline__ void sum_outer(const sum_args& a) {
  using namespace sum_parts;
  const int columns = blockDim.x / a.lanes;
  const long long start = (long long)blockIdx.x * columns;
  const long long column = start + (threadIdx.x & (columns - 1));
  const long long first = blockIdx.y * a.span;
  const long long last = first + a.span < a.terms ? first + a.span : a.terms;
  float totals[VECTOR] = {};
  if (column < a.columns) {
    const T* const base = static_cast<const T*>(a.x) + locate(column, a.kept, a.x_kept);
    gather<UNROLL>(a, base, first + threadIdx.x / columns, last, a.lanes, totals);
  }
  float* const shared = dynamic_shared<float>();
  if (gridDim.y > 1) {
    sum_columns(totals, columns, shared, [&](int place, float total) {
      const long long at = start * VECTOR + place;
      if (at < a.columns * VECTOR) a.shares[blockIdx.y * a.columns * VECTOR + at] = total;
    });
    if (!last_to_arrive(a.ticket + blockIdx.x, gridDim.y)) return;
    gather_shares(a, column, columns, totals);
  }
  sum_columns(totals, columns, shared, [&](int place, float total) {
    const long long at = start + place / VECTOR;
    if (at >= a.columns) return;
    T* const out = static_cast<T*>(a.out) + locate(at, a.kept, a.out_kept);
    out[place % VECTOR * a.out_step] = narrow<T>(total * a.scale);
  });
}
