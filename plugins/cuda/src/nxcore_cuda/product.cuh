// Products of float32 matrices: what all kernels take, and how blocks that share a tile add up what they found.
#pragma once

#include "element.cuh"
#include "operand.cuh"
#include "reduce.cuh"
#include "strided.cuh"

struct matmul_args {
  const float* a;
  const float* b;
  float* out;
  float* shares;     // [gridDim.z][gridDim.x][gridDim.y][outputs of a tile]
  unsigned* ticket;  // [gridDim.z][gridDim.x]
  operand::Steps of_a, of_b;  // a's lines are rows, b's are columns
  long long out_row, out_column;
  int rows, columns, terms;
  int span;    // terms of one block
  int across;  // tiles along the columns
  int whole;   // out can be stored in vectors
  dims batch;
  strides a_batch, b_batch, out_batch;
};

namespace product {

using operand::FOUR;

template <int ROWS, int COLUMNS>
__device__ __forceinline__ Vector<float, FOUR> run_of(const float (&sums)[ROWS][COLUMNS], int v) {
  Vector<float, FOUR> run;
#pragma unroll
  for (int e = 0; e < FOUR; ++e) run[e] = sums[v / (COLUMNS / FOUR)][v % (COLUMNS / FOUR) * FOUR + e];
  return run;
}

template <int ROWS, int COLUMNS>
__device__ __forceinline__ void add_run(float (&sums)[ROWS][COLUMNS], int v, const Vector<float, FOUR>& run) {
#pragma unroll
  for (int e = 0; e < FOUR; ++e) sums[v / (COLUMNS / FOUR)][v % (COLUMNS / FOUR) * FOUR + e] += run[e];
}

// Leaves this block's part of a tile where several share one. The last block to arrive gets the sum of all parts, in
// order; the others get false. `thread` is of `each` that hold sums; other threads pass `holds` false.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ bool combine(const matmul_args& a, float (&sums)[ROWS][COLUMNS], int thread, int each, bool holds) {
  constexpr int VECTORS = ROWS * COLUMNS / FOUR;
  const long long tile = (long long)blockIdx.z * gridDim.x + blockIdx.x, step = (long long)each * FOUR;
  float* const shares = a.shares + tile * gridDim.y * VECTORS * step + thread * FOUR;
  if (holds) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) store(shares + (blockIdx.y * VECTORS + v) * step, run_of(sums, v));
  }
  if (!last_to_arrive(a.ticket + tile, gridDim.y)) return false;
  if (holds) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) sums[r][c] = 0.0f;
    }
#pragma unroll 1
    for (int part = 0; part < gridDim.y; ++part) {
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) add_run(sums, v, load<FOUR>(shares + (part * VECTORS + v) * step));
    }
  }
  return true;
}

}  // namespace product
