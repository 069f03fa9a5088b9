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
#include "terms.cuh"

struct fold_args {
  const void* x;
  void* out;           // elements, or bytes of flags; or null
  long long* indices;  // laid out as out; or null
  float* values;       // [gridDim.y][outputs]; null for fold_inner
  int* numbers;        // [gridDim.y][outputs]; null for fold_inner
  unsigned* ticket;    // one for each blockIdx.x; for fold_inner slots follow, as for a sum, for values and for numbers
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
  const bool more = !(b.value <= a.value) && !is_nan(a.value);
  const bool less = !(a.value <= b.value) && !is_nan(b.value);
  return more || (!less && b.at < a.at);
}

template <bool PLACES>
__device__ __forceinline__ void join(const Best& other, Best& best) {
  if (!PLACES) {
    best.value = largest::larger(best.value, other.value);
  } else if (comes_first(other, best)) {
    best = other;
  }
}

// Elements that follow those that `bests` are of, numbered by vectors.
template <int LOOK, bool PLACES, int COUNT, int VECTOR, typename T>
__device__ __forceinline__ void take(const Vector<T, VECTOR> (&x)[COUNT], int term, int step, Best (&bests)[VECTOR]) {
#pragma unroll
  for (int u = 0; u < COUNT; ++u) {
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) {
      const float value = turned<LOOK>(widen(x[u][e]));
      Best& best = bests[e];
      if (!PLACES) {
        best.value = largest::larger(best.value, value);
      } else {
        const bool wins = !(value <= best.value) && !is_nan(best.value);
        best.value = wins ? value : best.value;
        best.at = wins ? term + u * step : best.at;
      }
    }
  }
}

// What no element is turned to less than: for terms that there are not.
template <typename T, int LOOK>
__device__ __forceinline__ T fill() {
  return narrow<T>(LOOK == LARGEST ? lowest() : LOOK == SMALLEST ? -lowest() : LOOK == SOME ? 0.0f : 1.0f);
}

template <bool PLACES>
__device__ __forceinline__ void join_lane(int step, Best& best) {
  Best other = {__shfl_xor_sync(ALL_LANES, best.value, step), NONE};
  if (PLACES) other.at = __shfl_xor_sync(ALL_LANES, best.at, step);
  join<PLACES>(other, best);
}

// Compares by columns: thread t holds VECTOR neighbouring bests of column t % columns (a power of two). Calls
// emit(place, best) once for each place in 0..columns * VECTOR - 1. Every thread calls this, with `shared` of
// blockDim.x * VECTOR Bests; a barrier must lie before `shared` is used again.
template <bool PLACES, int VECTOR, typename Emit>
__device__ __forceinline__ void fold_columns(Best (&bests)[VECTOR], int columns, Best* shared, Emit emit) {
  const int column = threadIdx.x & (columns - 1);
#pragma unroll 1
  for (int step = WARP / 2; step >= columns; step /= 2) {
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) join_lane<PLACES>(step, bests[e]);
  }
  const int held = columns < WARP ? WARP : columns;  // threads that hold one row of bests now
  const int row = threadIdx.x >> terms::shift_of(held), rows = blockDim.x >> terms::shift_of(held);
  if ((threadIdx.x & (held - 1)) < columns) {
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) shared[(row * columns + column) * VECTOR + e] = bests[e];
  }
  __syncthreads();
#pragma unroll 1
  for (int place = threadIdx.x; place < columns * VECTOR; place += blockDim.x) {
    Best best = shared[place];
#pragma unroll 4
    for (int r = 1; r < rows; ++r) join<PLACES>(shared[r * columns * VECTOR + place], best);
    emit(place, best);
  }
}

// The best of the block, in every thread. `shared`: a Best for each warp; a barrier must lie before it is used again.
template <bool PLACES>
__device__ __forceinline__ void fold_block(Best& best, Best* shared) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) join_lane<PLACES>(step, best);
  if (lane == 0) shared[threadIdx.x / WARP] = best;
  __syncthreads();
  best = {lowest(), NONE};
  if (lane < (int)blockDim.x / WARP) best = shared[lane];
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) join_lane<PLACES>(step, best);
}

// Reads what all blocks left for this thread's column; with the others of the column it reads them all.
template <bool PLACES, int VECTOR>
__device__ __forceinline__ void gather_shares(const fold_args& a, long long column, int shift,
                                              Best (&bests)[VECTOR]) {
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) bests[e] = {lowest(), NONE};
  if (column >= a.columns) return;
#pragma unroll 4
  for (unsigned part = threadIdx.x >> shift; part < gridDim.y; part += blockDim.x >> shift) {
    const long long at = (part * a.columns + column) * VECTOR;
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) join<PLACES>({a.values[at + e], PLACES ? a.numbers[at + e] : NONE}, bests[e]);
  }
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
// vectors. `shared`: a Best for each warp.
template <typename T, int VECTOR, int UNROLL, int LOOK, bool PLACES, Walk WALK>
__device__ __forceinline__ void fold_inner(const fold_args& a) {
  using namespace fold_parts;
  using Number = terms::Number<WALK>;
  const int shift = terms::shift_of(a.lanes), lane = threadIdx.x & (a.lanes - 1);
  const Number output = (Number)blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
  const bool inside = output < (Number)a.columns;
  const Number first = blockIdx.y * (Number)a.span, end = (Number)a.terms;
  const Number last = first + (Number)a.span < end ? first + (Number)a.span : end;
  Best best = {lowest(), NONE};
  if (inside) {
    const T* const base = static_cast<const T*>(a.x) + terms::place_of<WALK>(output, a.kept, a.x_kept);
    Best bests[VECTOR];
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) bests[e] = {lowest(), first + lane < last ? (int)(first + lane) : NONE};
    terms::gather<WALK, UNROLL, VECTOR>(
        a, base, first + lane, last, a.lanes, fill<T, LOOK>(),
        [&](Number term, const auto& x) { take<LOOK, PLACES>(x, (int)term, a.lanes, bests); });
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) {
      if (PLACES && bests[e].at != NONE) bests[e].at = bests[e].at * VECTOR + e;
      join<PLACES>(bests[e], best);
    }
    if (last == end) {
#pragma unroll 1
      for (int i = lane; i < a.rest; i += a.lanes) {
        const long long at = a.terms * VECTOR + i;
        join<PLACES>({turned<LOOK>(widen(base[at])), (int)at}, best);
      }
    }
  }
  if (a.lanes <= WARP) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
      if (step < a.lanes) join_lane<PLACES>(step, best);
    }
  } else {
    Best* const shared = dynamic_shared<Best>();
    fold_block<PLACES>(best, shared);
    if (gridDim.y > 1) {
      unsigned* const slots = a.ticket + gridDim.x + blockIdx.x * gridDim.y;
      unsigned* const numbers = slots + gridDim.x * gridDim.y;
      if (threadIdx.x == 0) {
        terms::leave(slots + blockIdx.y, terms::bits_of(best.value));
        if (PLACES) terms::leave(numbers + blockIdx.y, best.at);
      }
      if (!terms::last_to_leave(a.ticket + blockIdx.x, gridDim.y)) return;
      best = {lowest(), NONE};
#pragma unroll 1
      for (unsigned part = threadIdx.x; part < gridDim.y; part += 8 * blockDim.x) {
        int at[8];
        if (PLACES) {
          terms::collect<8>(numbers, part, gridDim.y, blockDim.x, [&](int u, unsigned bits) { at[u] = (int)bits; });
        }
        terms::collect<8>(slots, part, gridDim.y, blockDim.x, [&](int u, unsigned bits) {
          join<PLACES>({__uint_as_float(bits), PLACES ? at[u] : NONE}, best);
        });
      }
      fold_block<PLACES>(best, shared);
    }
  }
  if (inside && lane == 0) put<T, LOOK, PLACES>(a, terms::place_of<WALK>(output, a.kept, a.out_kept), best);
}

// Neighbours in memory belong to different outputs: blockDim.x / lanes threads (a power of two) lie along them,
// each with a vector of outputs. `shared`: blockDim.x * VECTOR Bests.
template <typename T, int VECTOR, int UNROLL, int LOOK, bool PLACES, Walk WALK>
__device__ __forceinline__ void fold_outer(const fold_args& a) {
  using namespace fold_parts;
  using Number = terms::Number<WALK>;
  const int columns = blockDim.x >> terms::shift_of(a.lanes), shift = terms::shift_of(columns);
  const Number start = (Number)blockIdx.x * columns;
  const Number column = start + (threadIdx.x & (columns - 1));
  const Number first = blockIdx.y * (Number)a.span + (threadIdx.x >> shift), end = (Number)a.terms;
  const Number stop = (blockIdx.y + 1) * (Number)a.span, last = stop < end ? stop : end;
  Best bests[VECTOR];
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) bests[e] = {lowest(), NONE};
  if (column < (Number)a.columns) {
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) bests[e].at = first < last ? (int)first : NONE;
    const T* const base = static_cast<const T*>(a.x) + terms::place_of<WALK>(column, a.kept, a.x_kept);
    terms::gather<WALK, UNROLL, VECTOR>(
        a, base, first, last, a.lanes, fill<T, LOOK>(),
        [&](Number term, const auto& x) { take<LOOK, PLACES>(x, (int)term, a.lanes, bests); });
  }
  Best* const shared = dynamic_shared<Best>();
  if (gridDim.y > 1) {
    fold_columns<PLACES>(bests, columns, shared, [&](int place, const Best& best) {
      const long long at = (long long)start * VECTOR + place;
      if (at >= a.columns * VECTOR) return;
      a.values[blockIdx.y * a.columns * VECTOR + at] = best.value;
      if (PLACES) a.numbers[blockIdx.y * a.columns * VECTOR + at] = best.at;
    });
    if (!last_to_arrive(a.ticket + blockIdx.x, gridDim.y)) return;
    gather_shares<PLACES>(a, column, shift, bests);
  }
  fold_columns<PLACES>(bests, columns, shared, [&](int place, const Best& best) {
    const Number at = start + place / VECTOR;
    if (at >= (Number)a.columns) return;
    const long long to = terms::place_of<WALK>(at, a.kept, a.out_kept) + place % VECTOR * a.out_step;
    put<T, LOOK, PLACES>(a, to, best);
  });
}
