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

enum {
  AHEAD,  // a term's factors are read while the one before is multiplied, into other registers; the compiler puts all first
  LATE,   // when their turn comes, into the same registers
  SPACED  // four columns at a time as they are done: where reads lie depends on a sum, by bits that are 0
};

// SHARED: where factors are. READS: when they are read.
template <int TALL, int WIDE, int ROWS, int COLUMNS, int SLICES, bool SHARED, int READS>
__device__ __forceinline__ void multiply_adds(const multiply_adds_args& a) {
  using namespace product;
  using Threads = Lie<TALL, WIDE, ROWS, COLUMNS, false>;
  using operand::FOUR;
  using Order = Path<ROWS, COLUMNS, READS == SPACED ? COLUMNS_AND_BACK : ROWS_AND_BACK>;
  constexpr int RUN = 16, DEPTH = RUN * SLICES, EACH = Threads::WARPS * WARP;
  constexpr int SETS_X = READS == LATE ? 1 : 2, SETS_Y = READS == AHEAD ? 2 : 1;
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
  float x[SETS_X][ROWS], y[SETS_Y][COLUMNS];
  const auto read_term = [&](int term) {
    read<ROWS, Threads::DOWN * FOUR>(at_x + StageA::at(0, term), x[term % SETS_X]);
    read<COLUMNS, Threads::ALONG * FOUR>(at_y + StageB::at(0, term), y[term % SETS_Y]);
  };
  const auto four_of = [&](const float* from, float* to) {
    const auto found = load<FOUR>(from);
#pragma unroll
    for (int e = 0; e < FOUR; ++e) to[e] = found[e];
  };
  int beyond = 0;  // 0, which the compiler doesn't know
#pragma unroll
  for (int set = 0; set < 2; ++set) read_term(set);
  const long long begin = clock64();
#pragma unroll 1
  for (int left = a.terms; left > 0; left -= RUN) {
#pragma unroll
    for (int term = 0; term < RUN; ++term) {
      if (SHARED && term == (READS == LATE ? 0 : RUN - 1)) {
        at_x += a.step;
        at_y += a.step;
      }
      const int following = (term + 1) % RUN;
      if (SHARED && READS != SPACED) read_term(READS == LATE ? term : following);
#pragma unroll
      for (int i = 0; i < ROWS * COLUMNS; ++i) {
        float& sum = sums[Order::row(i)][Order::column(i)];
        sum = __fmaf_rn(x[term % SETS_X][Order::row(i)], y[term % SETS_Y][Order::column(i)], sum);
        if (!SHARED || READS != SPACED || i % (ROWS * FOUR) != ROWS * FOUR - 1) continue;
        const int four = i / (ROWS * FOUR);
        beyond |= __float_as_int(sum) & a.step;
        four_of(at_y + beyond + StageB::at(0, following) + four * Threads::ALONG * FOUR, y[0] + four * FOUR);
        if (four < ROWS / FOUR) {
          four_of(at_x + beyond + StageA::at(0, following) + four * Threads::DOWN * FOUR, x[following % SETS_X] + four * FOUR);
        }
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
