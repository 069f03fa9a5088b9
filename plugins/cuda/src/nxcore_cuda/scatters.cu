// scatters: rows of a matrix summed by the row of the result that each belongs to. Either added where they belong, in
// any order; or in the order of a stable sort, the same in every run: a group of threads has a row of the result.
#pragma once

#include "element.cuh"

struct scatters_args {
  const void* values;        // rows to sum
  const void* x;             // what the sums are added to, or null
  void* out;
  const long long* order;    // number of each row to sum, sorted by where it belongs
  const void* offsets;       // where each row of the result begins in this order, and their end
  float* partial;            // the sums of whole spans that belong to one row; null: there are none
  long long columns;         // vectors of a row
  long long rows;            // of the result
  long long count;           // rows to sum
  long long skipped;         // a row of the result that is 0, or -1
  float alpha;               // factor of the sums
  int average;               // divide each sum by the number of its terms
};

struct scatters_places_args {
  const void* keys;  // where rows belong, sorted or not
  void* offsets;
  const void* values;
  void* out;
  long long rows, count, columns;
  float alpha;
};

namespace scatters {

constexpr int SPAN = 512;  // rows that are summed apart where all of them belong to one row; as in scatters.py
constexpr int FLIGHT = 4;  // rows that a thread waits for at once

// An index that there isn't ends the kernel, as torch's own does.
__device__ __forceinline__ void require(bool right) {
#ifndef NXCORE_EMULATOR
  if (!right) asm volatile("trap;");
#endif
}

// The number of sorted keys below `key`.
template <typename I>
__device__ __forceinline__ long long below(const I* keys, long long count, long long key) {
  long long first = 0;
  while (count > 0) {
    const long long half = count / 2;
    const bool less = (long long)keys[first + half] < key;
    first = less ? first + half + 1 : first;
    count = less ? count - half - 1 : half;
  }
  return first;
}

// Adds rows from `first` to `last` in their order, this thread's vector of each.
template <typename T, int V>
__device__ __forceinline__ void add_rows(const scatters_args& a, long long first, long long last, long long column,
                                         float (&sums)[V]) {
  const T* const values = (const T*)a.values + column * V;
  for (; first < last; first += FLIGHT) {
    Vector<T, V> found[FLIGHT];
#pragma unroll
    for (int u = 0; u < FLIGHT; ++u) {
      if (first + u < last) {
        const long long row = a.order[first + u];
        found[u] = load<V>(values + row * a.columns * V);
      }
    }
#pragma unroll
    for (int u = 0; u < FLIGHT; ++u) {
      if (first + u < last) {
#pragma unroll
        for (int e = 0; e < V; ++e) sums[e] += widen(found[u][e]);
      }
    }
  }
}

}  // namespace scatters

// Finds where each row of the result begins among the sorted keys: a thread has a row.
template <typename I>
__device__ __forceinline__ void scatters_offsets(const scatters_places_args& a) {
  const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (row > a.rows) return;
  const I* const keys = (const I*)a.keys;
  const long long found = scatters::below(keys, a.count, row);
  if (row == 0) scatters::require(found == 0);
  if (row == a.rows) scatters::require(found == a.count);
  ((long long*)a.offsets)[row] = found;
}

// Sums whole spans that belong to one row of the result: a block has a span. A row of threads has every n-th of its rows.
template <typename T, int V>
__device__ __forceinline__ void scatters_spans(const scatters_args& a) {
  using namespace scatters;
  __shared__ float shared[256 * V];
  const long long* const offsets = (const long long*)a.offsets;
  const long long first = (long long)blockIdx.x * SPAN, last = first + SPAN;
  const long long after = below(offsets, a.rows + 1, first + 1);  // of the rows, the first that begins past `first`
  if (after > a.rows || offsets[after] < last) return;
  const int across = blockDim.x < a.columns ? blockDim.x : (int)a.columns, down = blockDim.x / across;
  const int row = threadIdx.x / across, step = (SPAN + down - 1) / down;
  for (long long start = 0; start < a.columns; start += across) {
    const long long column = start + threadIdx.x % across;
    float sums[V];
#pragma unroll
    for (int e = 0; e < V; ++e) sums[e] = 0.0f;
    if (row < down && column < a.columns) {
      const long long end = first + (row + 1) * step < last ? first + (row + 1) * step : last;
      add_rows<T, V>(a, first + row * step, end, column, sums);
    }
#pragma unroll
    for (int e = 0; e < V; ++e) shared[threadIdx.x * V + e] = sums[e];
    __syncthreads();
    if (row == 0 && column < a.columns) {
      for (int r = 1; r < down; ++r) {
#pragma unroll
        for (int e = 0; e < V; ++e) sums[e] += shared[(r * across + threadIdx.x) * V + e];
      }
#pragma unroll
      for (int e = 0; e < V; ++e) a.partial[(blockIdx.x * a.columns + column) * V + e] = sums[e];
    }
    __syncthreads();
  }
}

// Writes the result: a thread has a vector of a row.
template <typename T, int V>
__device__ __forceinline__ void scatters_rows(const scatters_args& a) {
  using namespace scatters;
  const long long* const offsets = (const long long*)a.offsets;
  const long long all = a.rows * a.columns, stride = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += stride) {
    const long long row = i / a.columns, column = i % a.columns;
    const long long first = offsets[row], last = offsets[row + 1];
    require(0 <= first && first <= last && last <= a.count && (row > 0 || first == 0) &&
            (row + 1 < a.rows || last == a.count));
    float sums[V];
#pragma unroll
    for (int e = 0; e < V; ++e) sums[e] = 0.0f;
    if (row != a.skipped && first < last) {
      const long long whole = (first + SPAN - 1) / SPAN, end = last / SPAN;  // of the spans
      if (a.partial && whole < end) {
        add_rows<T, V>(a, first, whole * SPAN, column, sums);
        for (long long s = whole; s < end; ++s) {
#pragma unroll
          for (int e = 0; e < V; ++e) sums[e] += a.partial[(s * a.columns + column) * V + e];
        }
        add_rows<T, V>(a, end * SPAN, last, column, sums);
      } else {
        add_rows<T, V>(a, first, last, column, sums);
      }
      const float factor = a.average ? a.alpha / (float)(last - first) : a.alpha;
#pragma unroll
      for (int e = 0; e < V; ++e) sums[e] *= factor;
    }
    Vector<T, V> made;
    if (a.x) made = load_streaming<V>((const T*)a.x + i * V);
#pragma unroll
    for (int e = 0; e < V; ++e) made[e] = narrow<T>(a.x ? widen(made[e]) + sums[e] : sums[e]);
    store_streaming<V>((T*)a.out + i * V, made);
  }
}

// Adds each row to where it belongs, in any order: a thread has a vector of a row.
template <int V, typename I>
__device__ __forceinline__ void scatters_add(const scatters_places_args& a) {
  const I* const keys = (const I*)a.keys;
  const long long all = a.count * a.columns, stride = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += stride) {
    const long long row = keys[i / a.columns], column = i % a.columns;
    const bool right = 0 <= row && row < a.rows;
    scatters::require(right);
    if (!right) continue;
    const Vector<float, V> found = load_streaming<V>((const float*)a.values + i * V);
    float* const to = (float*)a.out + (row * a.columns + column) * V;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (V == 4) {
      asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a.alpha * found[0]),
                   "f"(a.alpha * found[1]), "f"(a.alpha * found[2]), "f"(a.alpha * found[3])
                   : "memory");
      continue;
    }
#endif
#pragma unroll
    for (int e = 0; e < V; ++e) atomicAdd(to + e, a.alpha * found[e]);
  }
}
