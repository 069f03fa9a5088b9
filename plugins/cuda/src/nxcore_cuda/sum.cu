// sum: every reduction that only adds up, whatever lies inside in memory.
//
// An output's terms may be shared by several blocks (gridDim.y): each leaves its part, in `shares` or in a slot behind
// the tickets, and the last one to arrive adds those up.
#pragma once

#include "element.cuh"
#include "reduce.cuh"
#include "strided.cuh"
#include "terms.cuh"

struct sum_args {
  const void* x;
  void* out;
  float* shares;     // [gridDim.y][outputs]; null for sum_inner
  unsigned* ticket;  // one for each blockIdx.x; for sum_inner slots follow, [gridDim.x][gridDim.y]
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

// Adds vectors to `totals`, as a tree: short chains, small errors.
template <int COUNT, int VECTOR, typename T>
__device__ __forceinline__ void add_up(const Vector<T, VECTOR> (&x)[COUNT], float (&totals)[VECTOR]) {
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) {
    float sums[COUNT];
#pragma unroll
    for (int u = 0; u < COUNT; ++u) sums[u] = widen(x[u][e]);
#pragma unroll
    for (int half = COUNT / 2; half > 0; half /= 2) {
#pragma unroll
      for (int u = 0; u < half; ++u) sums[u] += sums[u + half];
    }
    totals[e] += sums[0];
  }
}

// Reads what all blocks left for this thread's column; with the others of the column it reads them all.
template <int VECTOR>
__device__ __forceinline__ void gather_shares(const sum_args& a, long long column, int shift,
                                              float (&totals)[VECTOR]) {
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) totals[e] = 0.0f;
  if (column >= a.columns) return;
#pragma unroll 8
  for (unsigned part = threadIdx.x >> shift; part < gridDim.y; part += blockDim.x >> shift) {
    const Vector<float, VECTOR> share = load<VECTOR>(a.shares + (part * a.columns + column) * VECTOR);
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) totals[e] += share[e];
  }
}

// The sum over the block, in every thread. `shared`: a float for each warp; a barrier must lie before it is used again.
__device__ __forceinline__ float sum_block(float x, float* shared) {
  const int lane = threadIdx.x % WARP;
  x = warp_sum(x);
  if (lane == 0) shared[threadIdx.x / WARP] = x;
  __syncthreads();
  return warp_sum(lane < (int)blockDim.x / WARP ? shared[lane] : 0.0f);
}

}  // namespace sum_parts

// Neighbours in memory are terms of one output: `lanes` threads (a power of two up to 32, or the block)
// add up its vectors. `shared`: a float for each warp.
template <typename T, int VECTOR, int UNROLL, Walk WALK>
__device__ __forceinline__ void sum_inner(const sum_args& a) {
  using namespace sum_parts;
  using Number = terms::Number<WALK>;
  const int shift = terms::shift_of(a.lanes), lane = threadIdx.x & (a.lanes - 1);
  const Number output = (Number)blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
  const bool inside = output < (Number)a.columns;
  const Number first = blockIdx.y * (Number)a.span, end = (Number)a.terms;
  const Number last = first + (Number)a.span < end ? first + (Number)a.span : end;
  float totals[VECTOR] = {};
  if (inside) {
    const T* const base = static_cast<const T*>(a.x) + terms::place_of<WALK>(output, a.kept, a.x_kept);
    terms::gather<WALK, UNROLL, VECTOR>(a, base, first + lane, last, a.lanes, narrow<T>(0.0f),
                                        [&](Number, const auto& x) { add_up(x, totals); });
    if (last == end) {
#pragma unroll 1
      for (int i = lane; i < a.rest; i += a.lanes) totals[0] += widen(base[a.terms * VECTOR + i]);
    }
  }
#pragma unroll
  for (int half = VECTOR / 2; half > 0; half /= 2) {
#pragma unroll
    for (int e = 0; e < half; ++e) totals[e] += totals[e + half];
  }
  float total = totals[0];
  bool writes = inside && lane == 0;
  if (a.lanes <= WARP) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
      if (step < a.lanes) total += __shfl_xor_sync(ALL_LANES, total, step);
    }
  } else {
    float* const shared = dynamic_shared<float>();
    total = sum_block(total, shared);
    if (gridDim.y > 1) {
      unsigned* const slots = a.ticket + gridDim.x + blockIdx.x * gridDim.y;
      if (threadIdx.x == 0) terms::leave(slots + blockIdx.y, terms::bits_of(total));
      if (!terms::last_to_leave(a.ticket + blockIdx.x, gridDim.y)) return;
      total = 0.0f;
#pragma unroll 1
      for (unsigned part = threadIdx.x; part < gridDim.y; part += 8 * blockDim.x) {
        terms::collect<8>(slots, part, gridDim.y, blockDim.x,
                          [&](int, unsigned bits) { total += __uint_as_float(bits); });
      }
      total = sum_block(total, shared);
    }
  }
  if (writes) {
    static_cast<T*>(a.out)[terms::place_of<WALK>(output, a.kept, a.out_kept)] = narrow<T>(total * a.scale);
  }
}

// Neighbours in memory belong to different outputs: blockDim.x / lanes threads (a power of two) lie along
// them, each with a vector of outputs. `shared`: blockDim.x * VECTOR floats.
template <typename T, int VECTOR, int UNROLL, Walk WALK>
__device__ __forceinline__ void sum_outer(const sum_args& a) {
  using namespace sum_parts;
  using Number = terms::Number<WALK>;
  const int columns = blockDim.x >> terms::shift_of(a.lanes), shift = terms::shift_of(columns);
  const Number start = (Number)blockIdx.x * columns;
  const Number column = start + (threadIdx.x & (columns - 1));
  const Number first = blockIdx.y * (Number)a.span, end = (Number)a.terms;
  const Number last = first + (Number)a.span < end ? first + (Number)a.span : end;
  float totals[VECTOR] = {};
  if (column < (Number)a.columns) {
    const T* const base = static_cast<const T*>(a.x) + terms::place_of<WALK>(column, a.kept, a.x_kept);
    terms::gather<WALK, UNROLL, VECTOR>(a, base, first + (threadIdx.x >> shift), last, a.lanes, narrow<T>(0.0f),
                                        [&](Number, const auto& x) { add_up(x, totals); });
  }
  float* const shared = dynamic_shared<float>();
  if (gridDim.y > 1) {
    sum_columns(totals, columns, shared, [&](int place, float total) {
      const long long at = (long long)start * VECTOR + place;
      if (at < a.columns * VECTOR) a.shares[blockIdx.y * a.columns * VECTOR + at] = total;
    });
    if (!last_to_arrive(a.ticket + blockIdx.x, gridDim.y)) return;
    gather_shares(a, column, shift, totals);
  }
  sum_columns(totals, columns, shared, [&](int place, float total) {
    const Number at = start + place / VECTOR;
    if (at >= (Number)a.columns) return;
    T* const out = static_cast<T*>(a.out) + terms::place_of<WALK>(at, a.kept, a.out_kept);
    out[place % VECTOR * a.out_step] = narrow<T>(total * a.scale);
  });
}
