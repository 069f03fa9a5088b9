// multiply_adds: the inner loop of a product alone. Each thread adds up ROWS x COLUMNS products of one term after another,
// from factors in registers, or read from shared memory as a tile's are. Nothing is loaded from memory, and no thread waits
// for another: no product of as many multiply-adds by such threads, of whatever compiler, is done before.
#pragma once

#include "matmul.cu"

struct multiply_adds_args {
  float* out;        // of each thread
  long long* clock;  // of each warp: when its loop began and ended
  int terms, step;   // step: floats from the terms of one turn to those of the next; 0, which the compiler doesn't know
};

// SHARED: where factors are. AHEAD: whether a term's are read while the one before is multiplied, into other registers.
template <int TALL, int WIDE, int ROWS, int COLUMNS, int SLICES, bool SHARED, bool AHEAD>
__device__ __forceinline__ void multiply_adds(const multiply_adds_args& a) {
  using namespace product;
  using Threads = Lie<TALL, WIDE, ROWS, COLUMNS, false>;
  using Order = Path<ROWS, COLUMNS, ROWS_AND_BACK>;
  constexpr int RUN = 16, DEPTH = RUN * SLICES, EACH = Threads::WARPS * WARP, SETS = AHEAD ? 2 : 1;
  using StageA = operand::Stage<TALL, DEPTH, false>;
  using StageB = operand::Stage<WIDE, DEPTH, false>;
  float* const shared = dynamic_shared<float>();
  for (int i = threadIdx.x; i < StageA::FLOATS + StageB::FLOATS; i += EACH * SLICES) {
    shared[i] = (float)(i * 2654435761u >> 8) * 0x1p-24f - 0.5f;
  }
  __syncthreads();

  const int slice = threadIdx.x / EACH;
  const Threads lie(threadIdx.x % EACH);
  const float* at_x = shared + StageA::at(lie.row, slice * RUN);
  const float* at_y = shared + StageA::FLOATS + StageB::at(lie.column, slice * RUN);
  float sums[ROWS][COLUMNS] = {};
  float x[SETS][ROWS], y[SETS][COLUMNS];
  const auto read_term = [&](int term) {
    read<ROWS, Threads::DOWN * operand::FOUR>(at_x + StageA::at(0, term), x[term % SETS]);
    read<COLUMNS, Threads::ALONG * operand::FOUR>(at_y + StageB::at(0, term), y[term % SETS]);
  };
#pragma unroll
  for (int set = 0; set < SETS; ++set) read_term(set);
  const long long begin = clock64();
#pragma unroll 1
  for (int left = a.terms; left > 0; left -= RUN) {
#pragma unroll
    for (int term = 0; term < RUN; ++term) {
      if (SHARED && term == (AHEAD ? RUN - 1 : 0)) {
        at_x += a.step;
        at_y += a.step;
      }
      if (SHARED) read_term((term + AHEAD) % RUN);
#pragma unroll
      for (int i = 0; i < ROWS * COLUMNS; ++i) {
        float& sum = sums[Order::row(i)][Order::column(i)];
        sum = __fmaf_rn(x[term % SETS][Order::row(i)], y[term % SETS][Order::column(i)], sum);
      }
    }
  }
  const long long end = clock64();
  float all = 0;
#pragma unroll
  for (int i = 0; i < ROWS * COLUMNS; ++i) all += sums[Order::row(i)][Order::column(i)];
  const int thread = blockIdx.x * EACH * SLICES + threadIdx.x, warp = thread / WARP;
  a.out[thread] = all;
  if (threadIdx.x % WARP == 0) a.clock[2 * warp] = begin;
  if (threadIdx.x % WARP == 0) a.clock[2 * warp + 1] = end;
}
