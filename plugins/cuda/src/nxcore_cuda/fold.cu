// fold: every reduction that looks for an element, whatever lies inside in memory.
//
// Elements are turned so that the largest is looked for: by their sign, or to whether they are, or aren't, 0. NaN
// is above all, and the first of equals counts. That orders all elements of an output, so the result doesn't
// depend on the order in which they are compared. An output's terms may be shared by several blocks (gridDim.y):
// each leaves its best in `values` and `numbers`, and the last one to arrive compares those.
#pragma once

#include "element.cuh"
#include "largest.cuh"
#include "reduce.cuh"
#include "strided.cuh"

struct fold_args {
  const void* x;
  void* out;           // elements, or bytes of flags; or null
  long long* indices;  // laid out as out; or null
  float* values;       // [gridDim.y][outputs]
  int* numbers;        // [gridDim.y][outputs]
  unsigned* ticket;    // one for each blockIdx.x
  long long columns;   // outputs, or vectors of them
  long long terms;     // of one output: vectors, or single ones
  long long span;      // terms of one block
  long long rest;      // elements that follow the last whole vector
  long long out_step;  // from one element of a vector of outputs to the next
  dims kept;
  strides x_kept;
  strides out_kept;
  dims reduced;  // in torch's order where terms are numbered
  strides x_reduced;
  int lanes;  // threads that share an output
};

namespace fold_parts {

using largest::Best;

enum Look { LARGEST, SMALLEST, SOME, EVERY };  // an element by its size, one other than 0, one that is 0

constexpr int NONE = 0x7fffffff;  // the number of no term

__device__ __forceinline__ float lowest() { return __uint_as_float(0xff800000u); }

// A number that is the larger, the more an element is looked for.
template <int LOOK>
__device__ __forceinline__ float turned(float x) {
  if (LOOK == SMALLEST) return -x;
  if (LOOK == SOME) return x != 0.0f ? 1.0f : 0.0f;
  if (LOOK == EVERY) return x == 0.0f ? 1.0f : 0.0f;
  return x;
}

// Whether `b` comes before `a`, wherever either lies.
__device__ __forceinline__ bool comes_first(const Best& b, const Best& a) {
  if (is_nan(b.value) || is_nan(a.value)) return is_nan(b.value) && (!is_nan(a.value) || b.at < a.at);
  return b.value > a.value || (b.value == a.value && b.at < a.at);
}

template <bool PLACES>
__device__ __forceinline__ void join(const Best& other, Best& best) {
  if (!PLACES) {
    best.value = largest::larger(best.value, other.value);
  } else if (comes_first(other, best)) {
    best = other;
  }
}

// An element that follows those that `best` is of.
template <bool PLACES>
__device__ __forceinline__ void take(float value, int at, Best& best) {
  if (!PLACES) {
    best.value = largest::larger(best.value, value);
    return;
  }
  const bool wins = value > best.value || (is_nan(value) && !is_nan(best.value));
  best.value = wins ? value : best.value;
  best.at = wins ? at : best.at;
}

// Takes the vectors term, term + step, and so on: UNROLL of them where ALL, else those before last.
template <int UNROLL, int LOOK, bool STEADY, bool ALL, bool PLACES, int VECTOR, typename T>
__device__ __forceinline__ void burst(const fold_args& a, const T* base, long long term, long long last, int step,
                                      Best (&bests)[VECTOR]) {
  Vector<T, VECTOR> x[UNROLL];
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const long long at = term + (long long)u * step;
    if (ALL || at < last) x[u] = load<VECTOR>(base + (STEADY ? at * a.x_reduced.of[0] : locate(at, a.reduced, a.x_reduced)));
  }
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const long long at = term + (long long)u * step;
    if (!ALL && at >= last) break;
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) take<PLACES>(turned<LOOK>(widen(x[u][e])), (int)at, bests[e]);
  }
}

// Takes every STEPth vector from `term` to `last`; bests are numbered by vectors.
template <int UNROLL, int LOOK, bool PLACES, int VECTOR, typename T>
__device__ __forceinline__ void gather(const fold_args& a, const T* base, long long term, long long last, int step,
                                       Best (&bests)[VECTOR]) {
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) bests[e] = {lowest(), term < last ? (int)term : NONE};
  if (a.reduced.rank <= 1) {
    const long long stride = (long long)UNROLL * step;
#pragma unroll 1
    for (; term + stride - step < last; term += stride) {
      burst<UNROLL, LOOK, true, true, PLACES>(a, base, term, last, step, bests);
    }
    if (term < last) burst<UNROLL, LOOK, true, false, PLACES>(a, base, term, last, step, bests);
  } else {
#pragma unroll 1
    for (; term < last; term += step) burst<1, LOOK, false, true, PLACES>(a, base, term, last, step, bests);
  }
}

template <bool PLACES>
__device__ __forceinline__ void join_lane(int step, Best& best) {
  Best other = {__shfl_xor_sync(ALL_LANES, best.value, step), NONE};
  if (PLACES) other.at = __shfl_xor_sync(ALL_LANES, best.at, step);
  join<PLACES>(other, best);
}

// Compares by columns: thread t holds VECTOR neighbouring bests of column t % columns (a power of two), and the
// first `columns` threads hold their columns' afterwards. Every thread calls this, with `shared` of VECTOR Bests for
// every second thread; a barrier must lie before `shared` is used again.
template <bool PLACES, int VECTOR>
__device__ __forceinline__ void fold_columns(Best (&bests)[VECTOR], int columns, Best* shared) {
  for (int step = WARP / 2; step >= columns; step /= 2) {
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) join_lane<PLACES>(step, bests[e]);
  }
  const int held = columns < WARP ? WARP : columns;  // threads that hold one row of bests now
  const int row = threadIdx.x / held, column = threadIdx.x & (columns - 1);
  const bool first = threadIdx.x % held < columns;
#pragma unroll 1
  for (int rows = blockDim.x / held / 2; rows > 0; rows /= 2) {
    if (first && row >= rows && row < 2 * rows) {
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) shared[((row - rows) * columns + column) * VECTOR + e] = bests[e];
    }
    __syncthreads();
    if (first && row < rows) {
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) join<PLACES>(shared[(row * columns + column) * VECTOR + e], bests[e]);
    }
    __syncthreads();
  }
}

// Reads what all blocks left for this thread's column; with the others of the column it reads them all.
template <bool PLACES, int VECTOR>
__device__ __forceinline__ void gather_shares(const fold_args& a, long long column, int columns,
                                              Best (&bests)[VECTOR]) {
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) bests[e] = {lowest(), NONE};
  if (column >= a.columns) return;
  for (unsigned part = threadIdx.x / columns; part < gridDim.y; part += blockDim.x / columns) {
    const long long at = (part * a.columns + column) * VECTOR;
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) join<PLACES>({a.values[at + e], PLACES ? a.numbers[at + e] : NONE}, bests[e]);
  }
}

// Compares the bests of the block and of those that share its outputs. True in the threads that hold the result.
template <bool PLACES, int VECTOR>
__device__ __forceinline__ bool conclude(const fold_args& a, long long column, int columns, Best (&bests)[VECTOR]) {
  Best* const shared = dynamic_shared<Best>();
  const bool first = threadIdx.x < columns && column < a.columns;
  fold_columns<PLACES>(bests, columns, shared);
  if (gridDim.y == 1) return first;
  if (first) {
    const long long at = (blockIdx.y * a.columns + column) * VECTOR;
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) {
      a.values[at + e] = bests[e].value;
      if (PLACES) a.numbers[at + e] = bests[e].at;
    }
  }
  if (!last_to_arrive(a.ticket + blockIdx.x, gridDim.y)) return false;
  gather_shares<PLACES>(a, column, columns, bests);
  fold_columns<PLACES>(bests, columns, shared);
  return first;
}

template <typename T, int LOOK, bool PLACES>
__device__ __forceinline__ void put(const fold_args& a, long long place, const Best& best) {
  if (LOOK == SOME || LOOK == EVERY) {
    static_cast<unsigned char*>(a.out)[place] = (best.value > 0.0f) == (LOOK == SOME);
  } else if (!PLACES || a.out) {
    static_cast<T*>(a.out)[place] = narrow<T>(LOOK == SMALLEST ? -best.value : best.value);
  }
  if (PLACES) a.indices[place] = best.at;
}

}  // namespace fold_parts

// Neighbours in memory are terms of one output: `lanes` threads (a power of two up to 32, or the block) share its
// vectors. `shared`: a Best for every second thread.
template <typename T, int VECTOR, int UNROLL, int LOOK, bool PLACES>
__device__ __forceinline__ void fold_inner(const fold_args& a) {
  using namespace fold_parts;
  const int lane = threadIdx.x % a.lanes;
  const long long output = (long long)blockIdx.x * (blockDim.x / a.lanes) + threadIdx.x / a.lanes;
  const bool inside = output < a.columns;
  const long long first = blockIdx.y * a.span;
  const long long last = first + a.span < a.terms ? first + a.span : a.terms;
  Best best[1] = {{lowest(), NONE}};
  if (inside) {
    const T* const base = static_cast<const T*>(a.x) + locate(output, a.kept, a.x_kept);
    Best bests[VECTOR];
    gather<UNROLL, LOOK, PLACES>(a, base, first + lane, last, a.lanes, bests);
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) {
      if (PLACES && bests[e].at != NONE) bests[e].at = bests[e].at * VECTOR + e;
      join<PLACES>(bests[e], best[0]);
    }
    if (last == a.terms) {
      for (int i = lane; i < a.rest; i += a.lanes) {
        const long long at = a.terms * VECTOR + i;
        join<PLACES>({turned<LOOK>(widen(base[at])), (int)at}, best[0]);
      }
    }
  }
  if (a.lanes <= WARP) {
    for (int step = a.lanes / 2; step > 0; step /= 2) join_lane<PLACES>(step, best[0]);
    if (inside && lane == 0) put<T, LOOK, PLACES>(a, locate(output, a.kept, a.out_kept), best[0]);
  } else if (conclude<PLACES>(a, output, 1, best)) {
    put<T, LOOK, PLACES>(a, locate(output, a.kept, a.out_kept), best[0]);
  }
}

// Neighbours in memory belong to different outputs: blockDim.x / lanes threads (a power of two) lie along them,
// each with a vector of outputs. `shared`: VECTOR Bests for every second thread.
template <typename T, int VECTOR, int UNROLL, int LOOK, bool PLACES>
__device__ __forceinline__ void fold_outer(const fold_args& a) {
  using namespace fold_parts;
  const int columns = blockDim.x / a.lanes;
  const long long column = (long long)blockIdx.x * columns + (threadIdx.x & (columns - 1));
  const long long first = blockIdx.y * a.span;
  const long long last = first + a.span < a.terms ? first + a.span : a.terms;
  Best bests[VECTOR];
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) bests[e] = {lowest(), NONE};
  if (column < a.columns) {
    const T* const base = static_cast<const T*>(a.x) + locate(column, a.kept, a.x_kept);
    gather<UNROLL, LOOK, PLACES>(a, base, first + threadIdx.x / columns, last, a.lanes, bests);
  }
  if (!conclude<PLACES>(a, column, columns, bests)) return;
  const long long place = locate(column, a.kept, a.out_kept);
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) put<T, LOOK, PLACES>(a, place + e * a.out_step, bests[e]);
}
