// fold: every reduction that looks for an element, whatever lies inside in memory.
//
// Elements are turned so that the largest is looked for: by their sign, or to whether they are, or aren't, 0. NaN
// is above all, and the first of equals counts. That orders all elements of an output, so the result doesn't
// depend on the order in which they are compared. An output's terms may be shared by several blocks (gridDim.y):
// each leaves its best. By neighbours that is in a slot, and the block of the highest number waits for all; otherwise
// it is in `shares`, and the last block to arrive compares those.
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
  void* shares;        // keys, [gridDim.y][outputs]; null for fold_inner
  void* slots;         // of fold_inner a whole key each, [gridDim.x][gridDim.y]; of fold_outer tickets, [gridDim.x]
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

// What is compared of an element: where places count, its number with it in one integer. The element is above, all
// NaNs alike and the largest, zeros of both signs alike; the number is below, the larger the earlier. The last bit is
// 0 of -0 alone, which is told apart by it in the result, and never in a comparison.
template <bool PLACES>
struct Of {
  using Key = float;
  using Word = unsigned;
};
template <>
struct Of<true> {
  using Key = long long;
  using Word = unsigned long long;
};
template <bool PLACES>
using Key = typename Of<PLACES>::Key;
template <bool PLACES>
using Word = typename Of<PLACES>::Word;

__device__ __forceinline__ long long joined(int high, unsigned low) {
  return (long long)((unsigned long long)(unsigned)high << 32 | low);
}

// Integers that compare as elements do, and back.
__device__ __forceinline__ int flip(int bits) { return bits ^ (bits >> 31 & 0x7fffffff); }

template <bool PLACES>
__device__ __forceinline__ Key<PLACES> key_of(const Best& best) {
  if constexpr (!PLACES) {
    return best.value;
  } else {
    const bool minus = __float_as_uint(best.value) == 0x80000000u;
    return joined(flip((int)terms::bits_of(best.value + 0.0f)), ~(2u * (unsigned)best.at + minus));
  }
}

template <bool PLACES>
__device__ __forceinline__ Best best_of(Key<PLACES> key) {
  if constexpr (!PLACES) {
    return {key, NONE};
  } else {
    const unsigned low = ~(unsigned)key;
    return {__uint_as_float((unsigned)flip((int)(key >> 32)) | low << 31), (int)(low >> 1)};
  }
}

template <bool PLACES>
__device__ __forceinline__ Key<PLACES> nothing() {
  return key_of<PLACES>({lowest(), NONE});
}

__device__ __forceinline__ float first_of(float a, float b) { return largest::larger(a, b); }
__device__ __forceinline__ long long first_of(long long a, long long b) { return b > a ? b : a; }

// The bits of a key that a slot takes: not all ones, which would be the key of a -0.
__device__ __forceinline__ unsigned bits_of(float key) { return terms::bits_of(key); }
__device__ __forceinline__ unsigned long long bits_of(long long key) { return (unsigned long long)key; }
__device__ __forceinline__ float from_bits(unsigned bits) { return __uint_as_float(bits); }
__device__ __forceinline__ long long from_bits(unsigned long long bits) { return (long long)bits; }

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

// The first of the keys of a warp, in every lane.
template <bool PLACES>
__device__ __forceinline__ Key<PLACES> fold_warp(Key<PLACES> key) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (PLACES) {
    const int mine = (int)(key >> 32), high = __reduce_max_sync(ALL_LANES, mine);
    return joined(high, __reduce_max_sync(ALL_LANES, mine == high ? (unsigned)key : 0u));
  }
#endif
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) key = first_of(key, __shfl_xor_sync(ALL_LANES, key, step));
  return key;
}

// Compares the keys of lanes that are a multiple of `columns` apart, half of them with each step: lanes give away the
// half that others keep. Calls keep(e, key) for each that this lane is left with, of COUNT neighbours from `e` on.
template <int COUNT, typename Key, typename Keep>
__device__ __forceinline__ void fold_lanes(const Key (&keys)[COUNT], int step, int columns, int e, Keep keep) {
  if (step < columns) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) keep(e + i, keys[i]);
  } else if constexpr (COUNT > 1) {
    const bool upper = threadIdx.x & step;
    Key kept[COUNT / 2];
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) {
      const Key given = upper ? keys[i] : keys[i + COUNT / 2];
      kept[i] = first_of(upper ? keys[i + COUNT / 2] : keys[i], __shfl_xor_sync(ALL_LANES, given, step));
    }
    fold_lanes(kept, step / 2, columns, upper ? e + COUNT / 2 : e, keep);
  } else {
    Key key = keys[0];
    const int lanes = 2 * step - columns;  // the bits of the lanes that hold one key at the end
#pragma unroll 1
    for (; step >= columns; step /= 2) key = first_of(key, __shfl_xor_sync(ALL_LANES, key, step));
    if (!(threadIdx.x & lanes)) keep(e, key);
  }
}

// Compares by columns: thread t holds VECTOR neighbouring keys of column t % columns (a power of two). Calls
// emit(place, key) once for each place in 0..columns * VECTOR - 1. Every thread calls this, with `shared` of
// blockDim.x * VECTOR keys; a barrier must lie before `shared` is used again.
template <int VECTOR, typename Key, typename Emit>
__device__ __forceinline__ void fold_columns(const Key (&keys)[VECTOR], int columns, Key* shared, Emit emit) {
  constexpr int FLIGHT = 8;  // rows that are read at once
  const int held = columns < WARP ? WARP : columns;  // threads that hold one row of keys
  const int row = threadIdx.x >> terms::shift_of(held), rows = blockDim.x >> terms::shift_of(held);
  const int width = columns * VECTOR;
  Key* const mine = shared + row * width + (threadIdx.x & (columns - 1)) * VECTOR;
  fold_lanes(keys, WARP / 2, columns, 0, [&](int e, Key key) { mine[e] = key; });
  __syncthreads();
#pragma unroll 1
  for (int place = threadIdx.x; place < width; place += blockDim.x) {
    Key best = shared[place];
#pragma unroll 1
    for (int start = 1; start < rows; start += FLIGHT) {
      Key found[FLIGHT];
#pragma unroll
      for (int r = 0; r < FLIGHT; ++r) found[r] = start + r < rows ? shared[(start + r) * width + place] : best;
#pragma unroll
      for (int half = FLIGHT / 2; half > 0; half /= 2) {
#pragma unroll
        for (int r = 0; r < half; ++r) found[r] = first_of(found[r], found[r + half]);
      }
      best = first_of(best, found[0]);
    }
    emit(place, best);
  }
}

// The first of the keys of the block, in every thread. `shared`: a key for each warp; a barrier must lie before it is
// used again.
template <bool PLACES>
__device__ __forceinline__ Key<PLACES> fold_block(Key<PLACES> key, Key<PLACES>* shared) {
  const int lane = threadIdx.x % WARP;
  key = fold_warp<PLACES>(key);
  if (lane == 0) shared[threadIdx.x / WARP] = key;
  __syncthreads();
  return fold_warp<PLACES>(lane < (int)blockDim.x / WARP ? shared[lane] : nothing<PLACES>());
}

// Reads what all blocks left for this thread's column; with the others of the column it reads them all.
template <bool PLACES, int VECTOR>
__device__ __forceinline__ void gather_shares(const fold_args& a, long long column, int shift,
                                              Key<PLACES> (&keys)[VECTOR]) {
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) keys[e] = nothing<PLACES>();
  if (column >= a.columns) return;
#pragma unroll 4
  for (unsigned part = threadIdx.x >> shift; part < gridDim.y; part += blockDim.x >> shift) {
    const Key<PLACES>* const from = static_cast<const Key<PLACES>*>(a.shares) + (part * a.columns + column) * VECTOR;
    const Vector<Key<PLACES>, VECTOR> share = load<VECTOR>(from);
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) keys[e] = first_of(keys[e], share[e]);
  }
}

template <typename T, int LOOK, bool PLACES>
__device__ __forceinline__ void put(const fold_args& a, long long place, Key<PLACES> key) {
  const Best best = best_of<PLACES>(key);
  if (LOOK == SOME || LOOK == EVERY) {
    static_cast<unsigned char*>(a.out)[place] = (best.value > 0.0f) == (LOOK == SOME);
  } else if (!PLACES || a.out) {
    static_cast<T*>(a.out)[place] = narrow<T>(LOOK == SMALLEST ? -best.value : best.value);
  }
  if (PLACES) a.indices[place] = best.at;
}

}  // namespace fold_parts

// Neighbours in memory are terms of one output: `lanes` threads (a power of two up to 32, or the block) share its
// vectors. `shared`: two keys for each warp.
template <typename T, int VECTOR, int UNROLL, int LOOK, bool PLACES, Walk WALK>
__device__ __forceinline__ void fold_inner(const fold_args& a) {
  using namespace fold_parts;
  using Number = terms::Number<WALK>;
  const int shift = terms::shift_of(a.lanes), lane = threadIdx.x & (a.lanes - 1);
  const Number output = (Number)blockIdx.x * (blockDim.x >> shift) + (threadIdx.x >> shift);
  const bool inside = output < (Number)a.columns;
  const Number first = blockIdx.y * (Number)a.span, end = (Number)a.terms;
  const Number last = first + (Number)a.span < end ? first + (Number)a.span : end;
  Key<PLACES> key = nothing<PLACES>();
  if (inside) {
    const T* const base = static_cast<const T*>(a.x) + terms::place_of<WALK>(output, a.kept, a.x_kept);
    Best bests[VECTOR];
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) bests[e] = {lowest(), first + lane < last ? (int)(first + lane) : NONE / VECTOR};
    terms::gather<WALK, UNROLL, VECTOR>(
        a, base, first + lane, last, a.lanes, fill<T, LOOK>(),
        [&](Number term, const auto& x) { take<LOOK, PLACES>(x, (int)term, a.lanes, bests); });
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) {
      key = first_of(key, key_of<PLACES>({bests[e].value, bests[e].at * VECTOR + e}));
    }
    if (last == end) {
#pragma unroll 1
      for (int i = lane; i < a.rest; i += a.lanes) {
        const long long at = a.terms * VECTOR + i;
        key = first_of(key, key_of<PLACES>({turned<LOOK>(widen(base[at])), (int)at}));
      }
    }
  }
  if (a.lanes < WARP) {
#pragma unroll 1
    for (int step = a.lanes / 2; step > 0; step /= 2) key = first_of(key, __shfl_xor_sync(ALL_LANES, key, step));
  } else if (a.lanes == WARP) {
    key = fold_warp<PLACES>(key);
  } else {
    Key<PLACES>* const shared = dynamic_shared<Key<PLACES>>();
    key = fold_block<PLACES>(key, shared);
    if (gridDim.y > 1) {
      // Blocks start in the order of their numbers, which scans by CUB rely on too: all that share this output are
      // under way when the last of them waits. It asks for no ticket, which takes as long as reading the slots.
      Word<PLACES>* const slots = static_cast<Word<PLACES>*>(a.slots) + blockIdx.x * gridDim.y;
      const unsigned others = gridDim.y - 1;
      if (blockIdx.y < others) {
        if (threadIdx.x == 0) terms::leave(slots + blockIdx.y, bits_of(key));
        return;
      }
      const auto take_one = [&](int, Word<PLACES> bits) { key = first_of(key, from_bits(bits)); };
      if (others <= blockDim.x) {  // the usual case of few terms, where the last block is waited for
        terms::collect<1>(slots, threadIdx.x, others, 0, take_one);
      } else {
#pragma unroll 1
        for (unsigned part = threadIdx.x; part < others; part += 8 * blockDim.x) {
          terms::collect<8>(slots, part, others, blockDim.x, take_one);
        }
      }
      key = fold_block<PLACES>(key, shared + blockDim.x / WARP);  // the first half may still be read
    }
  }
  if (inside && lane == 0) put<T, LOOK, PLACES>(a, terms::place_of<WALK>(output, a.kept, a.out_kept), key);
}

// Neighbours in memory belong to different outputs: blockDim.x / lanes threads (a power of two) lie along them,
// each with a vector of outputs. `shared`: blockDim.x * VECTOR keys.
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
  Key<PLACES> keys[VECTOR];
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) keys[e] = key_of<PLACES>(bests[e]);
  Key<PLACES>* const shared = dynamic_shared<Key<PLACES>>();
  if (gridDim.y > 1) {
    fold_columns(keys, columns, shared, [&](int place, Key<PLACES> key) {
      const long long at = (long long)start * VECTOR + place;
      if (at >= a.columns * VECTOR) return;
      static_cast<Key<PLACES>*>(a.shares)[blockIdx.y * a.columns * VECTOR + at] = key;
    });
    if (!last_to_arrive(static_cast<unsigned*>(a.slots) + blockIdx.x, gridDim.y)) return;
    gather_shares<PLACES>(a, column, shift, keys);
  }
  fold_columns(keys, columns, shared, [&](int place, Key<PLACES> key) {
    const Number at = start + place / VECTOR;
    if (at >= (Number)a.columns) return;
    const long long to = terms::place_of<WALK>(at, a.kept, a.out_kept) + place % VECTOR * a.out_step;
    put<T, LOOK, PLACES>(a, to, key);
  });
}
