// column_sums: the sums of the columns of several matrices, one matrix after another.
#pragma once

#include "element.cuh"

template <int POINTERS>
struct column_sums_args {
  const void* xs[POINTERS];
  void* out;
  long long step[POINTERS];  // from one row to the next
  int count;
  int rows[POINTERS], columns[POINTERS];
  int first[POINTERS];  // block of each matrix, in ascending order
  int start[POINTERS];  // of its sums in `out`
};

// A block adds up 16 columns of one matrix: 16 threads a column, each every 16th row, then their sums in order, as
// sep_conv2d_totals does.
template <typename T, int POINTERS>
__device__ __forceinline__ void column_sums(const column_sums_args<POINTERS>& a) {
  constexpr int COLUMNS = 16, PARTS = 16;
  __shared__ float found[PARTS][COLUMNS];
  int which = 0, end = a.count;  // the last matrix whose first block isn't a later one
  while (end - which > 1) {
    const int middle = (which + end) / 2;
    if (a.first[middle] <= (int)blockIdx.x) {
      which = middle;
    } else {
      end = middle;
    }
  }
  const int rows = a.rows[which], columns = a.columns[which];
  const long long step = a.step[which];
  const int lane = threadIdx.x % COLUMNS, part = threadIdx.x / COLUMNS;
  const int column = (blockIdx.x - a.first[which]) * COLUMNS + lane;
  const T* const x = static_cast<const T*>(a.xs[which]) + column;
  float total = 0.0f;
  if (column < columns) {
#pragma unroll 8
    for (int row = part; row < rows; row += PARTS) total += widen(x[row * step]);
  }
  found[part][lane] = total;
  __syncthreads();
  if (part || column >= columns) return;
#pragma unroll
  for (int p = 1; p < PARTS; ++p) total += found[p][lane];
  static_cast<T*>(a.out)[a.start[which] + column] = narrow<T>(total);
}
