// global_max_pool2d: the largest element of each channel, and where it lies if asked for.
//
// A thread goes through its pixels in order, so that the first of equals stays its best, and the last NaN. Threads
// then compare by value and number, and whoever was first is first in any order.
#pragma once

#include "largest.cuh"
#include "strided.cuh"

struct global_max_pool2d_args {
  const void* x;
  void* out;
  int* offsets;       // laid out as out; or null
  long long columns;  // channels of all images, or vectors of them
  long long terms;    // of one channel: vectors of pixels, or single ones
  long long rest;     // pixels that follow the last whole vector
  long long out_step;  // from one element of a vector of outputs to the next
  dims kept;
  strides x_kept;
  strides out_kept;
  dims reduced;  // height and width, in this order whatever the strides
  strides x_reduced;
  int lanes;  // threads that share an output
};

namespace global_max_parts {

using largest::Best;

constexpr int NONE = 0x7fffffff;  // the number of no pixel

__device__ __forceinline__ float lowest() { return __uint_as_float(0xff800000u); }

// Of two bests, whichever was found first: the larger, the first of equals, the last NaN.
__device__ __forceinline__ bool comes_first(const Best& b, const Best& a) {
  if (is_nan(b.value)) return !is_nan(a.value) || b.at > a.at;
  return b.value > a.value || (b.value == a.value && b.at < a.at);
}

template <bool OFFSETS>
__device__ __forceinline__ void join(const Best& other, Best& best) {
  if (!OFFSETS) {
    best.value = largest::larger(best.value, other.value);
  } else if (comes_first(other, best)) {
    best = other;
  }
}

// An element that follows those that `best` is of.
template <bool OFFSETS>
__device__ __forceinline__ void take(float value, int at, Best& best) {
  if (!OFFSETS) {
    best.value = largest::larger(best.value, value);
    return;
  }
  const bool wins = largest::replaces(value, best.value);
  best.value = wins ? value : best.value;
  best.at = wins ? at : best.at;
}

// Takes the vectors term, term + step, and so on: UNROLL of them where ALL, else those before the last.
template <int UNROLL, bool STEADY, bool ALL, bool OFFSETS, int VECTOR, typename T>
__device__ __forceinline__ void burst(const global_max_pool2d_args& a, const T* base, long long term, int step,
                                      Best (&bests)[VECTOR]) {
  Vector<T, VECTOR> x[UNROLL];
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const long long at = term + (long long)u * step;
    if (ALL || at < a.terms) {
      x[u] = load<VECTOR>(base + (STEADY ? at * a.x_reduced.of[0] : locate(at, a.reduced, a.x_reduced)));
    } else {
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) x[u][e] = narrow<T>(lowest());
    }
  }
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) take<OFFSETS>(widen(x[u][e]), (int)(term + (long long)u * step), bests[e]);
  }
}

// Takes every STEPth vector from `term` on; bests are numbered by vectors.
template <int UNROLL, bool OFFSETS, int VECTOR, typename T>
__device__ __forceinline__ void gather(const global_max_pool2d_args& a, const T* base, long long term, int step,
                                       Best (&bests)[VECTOR]) {
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) bests[e] = {lowest(), term < a.terms ? (int)term : NONE};
  if (a.reduced.rank <= 1) {
    const long long stride = (long long)UNROLL * step;
#pragma unroll 1
    for (; term + stride - step < a.terms; term += stride) {
      burst<UNROLL, true, true, OFFSETS>(a, base, term, step, bests);
    }
    if (term < a.terms) burst<UNROLL, true, false, OFFSETS>(a, base, term, step, bests);
  } else {
#pragma unroll 1
    for (; term < a.terms; term += step) burst<1, false, true, OFFSETS>(a, base, term, step, bests);
  }
}

template <bool OFFSETS, typename T>
__device__ __forceinline__ void put(const global_max_pool2d_args& a, long long place, const Best& best) {
  static_cast<T*>(a.out)[place] = narrow<T>(best.value);
  if (OFFSETS) a.offsets[place] = best.at;
}

// The best of `width` neighbouring lanes, in every one of them.
template <bool OFFSETS>
__device__ __forceinline__ void join_lanes(int width, Best& best) {
  for (int step = width / 2; step > 0; step /= 2) {
    Best other = {__shfl_xor_sync(ALL_LANES, best.value, step), NONE};
    if (OFFSETS) other.at = __shfl_xor_sync(ALL_LANES, best.at, step);
    join<OFFSETS>(other, best);
  }
}

}  // namespace global_max_parts

// Neighbours in memory are pixels of one channel: `lanes` threads (a power of two up to 32, or the block) share
// it. `shared`: a Best for each warp.
template <typename T, int VECTOR, int UNROLL, bool OFFSETS>
__device__ __forceinline__ void global_max_inner(const global_max_pool2d_args& a) {
  using namespace global_max_parts;
  const int lane = threadIdx.x % a.lanes;
  const long long output = (long long)blockIdx.x * (blockDim.x / a.lanes) + threadIdx.x / a.lanes;
  const bool inside = output < a.columns;
  Best best = {lowest(), NONE};
  if (inside) {
    const T* const base = static_cast<const T*>(a.x) + locate(output, a.kept, a.x_kept);
    Best bests[VECTOR];
    gather<UNROLL, OFFSETS>(a, base, lane, a.lanes, bests);
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) {
      if (OFFSETS && bests[e].at != NONE) bests[e].at = bests[e].at * VECTOR + e;
      join<OFFSETS>(bests[e], best);
    }
    for (int i = lane; i < a.rest; i += a.lanes) {
      const long long at = a.terms * VECTOR + i;
      join<OFFSETS>({widen(base[at]), (int)at}, best);
    }
  }
  join_lanes<OFFSETS>(a.lanes < WARP ? a.lanes : WARP, best);
  if (a.lanes > WARP) {
    Best* const shared = dynamic_shared<Best>();
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = best;
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    best = threadIdx.x < blockDim.x / WARP ? shared[threadIdx.x] : Best{lowest(), NONE};
    join_lanes<OFFSETS>(WARP, best);
  }
  if (inside && lane == 0) put<OFFSETS, T>(a, locate(output, a.kept, a.out_kept), best);
}

// Neighbours in memory belong to different channels: blockDim.x / lanes threads (a power of two) lie along them,
// each with a vector of channels. `shared`: VECTOR Bests for every second thread.
template <typename T, int VECTOR, int UNROLL, bool OFFSETS>
__device__ __forceinline__ void global_max_outer(const global_max_pool2d_args& a) {
  using namespace global_max_parts;
  const int columns = blockDim.x / a.lanes, mine = threadIdx.x & (columns - 1), row = threadIdx.x / columns;
  const long long column = (long long)blockIdx.x * columns + mine;
  const bool inside = column < a.columns;
  Best bests[VECTOR];
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) bests[e] = {lowest(), NONE};
  if (inside) {
    const T* const base = static_cast<const T*>(a.x) + locate(column, a.kept, a.x_kept);
    gather<UNROLL, OFFSETS>(a, base, row, a.lanes, bests);
  }
  Best* const shared = dynamic_shared<Best>();
#pragma unroll 1
  for (int rows = a.lanes / 2; rows > 0; rows /= 2) {
    if (row >= rows && row < 2 * rows) {
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) shared[((row - rows) * columns + mine) * VECTOR + e] = bests[e];
    }
    __syncthreads();
    if (row < rows) {
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) join<OFFSETS>(shared[(row * columns + mine) * VECTOR + e], bests[e]);
    }
    __syncthreads();
  }
  if (!inside || row > 0) return;
  const long long place = locate(column, a.kept, a.out_kept);
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) put<OFFSETS, T>(a, place + e * a.out_step, bests[e]);
}
