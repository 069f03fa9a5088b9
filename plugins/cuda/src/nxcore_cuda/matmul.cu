// matmul: products of float32 matrices, each term by one fused multiply-add; no tensor core.
//
// A block has a tile of outputs, a thread ROWS x COLUMNS of them. Slices of a block share its terms, and so do
// blocks (gridDim.y): each leaves its part in `shares`, and the last one to arrive adds those up, in order.
#pragma once

#include "product.cuh"

namespace product {

// How the threads of a slice lie: a warp has a part of the tile that is as square as can be.
// BY_LINE: neighbouring lanes have neighbouring rows, else neighbouring runs of four.
template <int TALL, int WIDE, int ROWS, int COLUMNS, bool BY_LINE>
struct Lie {
  // Lanes of a warp along the rows.
  static constexpr int DOWN = ROWS <= COLUMNS && TALL % (8 * ROWS) == 0 ? 8 : 4;
  static constexpr int ALONG = WARP / DOWN;
  static constexpr int WARPS_ALONG = WIDE / (ALONG * COLUMNS);
  static constexpr int WARPS = TALL / (DOWN * ROWS) * WARPS_ALONG;
  static constexpr int STEP = BY_LINE ? 1 : FOUR;  // from a lane's first row to the next lane's
  static_assert(WARPS * WARP * ROWS * COLUMNS == TALL * WIDE, "whole warps have the tile");

  int row, column;  // of this thread's first output in the tile

  __device__ __forceinline__ explicit Lie(int thread) {
    const int warp = thread / WARP, lane = thread % WARP;
    // Neighbouring lanes alternate between two lines of one operand: then a load of four floats a lane takes
    // two passes through shared memory, not four.
    const int of_four = (lane & 1) | (lane >> 3 & 2), of_eight = lane >> 1 & 7;
    row = warp / WARPS_ALONG * (DOWN * ROWS) + (DOWN == 8 ? of_eight : of_four) * STEP;
    column = warp % WARPS_ALONG * (ALONG * COLUMNS) + (DOWN == 8 ? of_four : of_eight) * FOUR;
  }

  // From this thread's first row (column) to its i-th: runs, as far apart as the lanes reach.
  __device__ __forceinline__ static constexpr int to_row(int i) { return i / STEP * (DOWN * STEP) + i % STEP; }
  __device__ __forceinline__ static constexpr int to_column(int i) { return i / FOUR * (ALONG * FOUR) + i % FOUR; }
};

// The order of a term's multiply-adds. Back and forth, each shares a factor with the one before: the multiprocessor
// keeps it at hand, and reads one register less.
enum { ROWS_ONLY, ROWS_AND_BACK, COLUMNS_AND_BACK };
template <int ROWS, int COLUMNS, int ORDER>
struct Path {
  static constexpr bool DOWN = ORDER == COLUMNS_AND_BACK;
  static constexpr int RUN = DOWN ? ROWS : COLUMNS;

  __device__ __forceinline__ static constexpr int across(int i) {
    return ORDER != ROWS_ONLY && i / RUN % 2 ? RUN - 1 - i % RUN : i % RUN;
  }
  __device__ __forceinline__ static constexpr int row(int i) { return DOWN ? across(i) : i / RUN; }
  __device__ __forceinline__ static constexpr int column(int i) { return DOWN ? i / RUN : across(i); }
};

// COUNT floats of one term, from shared memory: runs of four, STEP apart.
template <int COUNT, int STEP>
__device__ __forceinline__ void read(const float* from, float (&to)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; i += FOUR) {
    const Vector<float, FOUR> four = load<FOUR>(from + i / FOUR * STEP);
#pragma unroll
    for (int e = 0; e < FOUR; ++e) to[i + e] = four[e];
  }
}

}  // namespace product

template <int TALL, int WIDE, int ROWS, int COLUMNS, int DEPTH, int SLICES, bool BY_LINE, bool A_INNER, bool A_VECTORS,
          bool B_INNER, bool B_VECTORS, bool STRAIGHT = false, int ORDER = 0, int STAGES = 2>
__device__ __forceinline__ void matmul(const matmul_args& a) {
  using namespace product;
  using Threads = Lie<TALL, WIDE, ROWS, COLUMNS, BY_LINE>;
  using StageA = operand::Stage<TALL, DEPTH, BY_LINE>;
  using StageB = operand::Stage<WIDE, DEPTH, false>;
  constexpr int EACH = Threads::WARPS * WARP;  // threads of a slice
  constexpr int ALL = EACH * SLICES;
  constexpr int RUN = DEPTH / SLICES;  // terms of a slice in one step
  constexpr int STAGE = StageA::FLOATS + StageB::FLOATS;
  constexpr int VECTORS = ROWS * COLUMNS / FOUR;
  static_assert(RUN % FOUR == 0, "a slice has whole vectors of terms");
  using Order = Path<ROWS, COLUMNS, ORDER>;
  static_assert(!BY_LINE || ORDER != COLUMNS_AND_BACK, "a row's next four terms are loaded after the row");

  float* const shared = dynamic_shared<float>();
  const int slice = threadIdx.x / EACH, thread = threadIdx.x % EACH;
  const Threads lie(thread);
  const int row = blockIdx.x / a.across * TALL, column = blockIdx.x % a.across * WIDE;
  const int first = blockIdx.y * a.span, terms = min(a.span, a.terms - first);
  using LoaderA = operand::Loader<TALL, DEPTH, ALL, A_INNER, A_VECTORS, BY_LINE, operand::PAD, STRAIGHT>;
  using LoaderB = operand::Loader<WIDE, DEPTH, ALL, B_INNER, B_VECTORS, false, operand::PAD, STRAIGHT>;
  static_assert(STAGES == 2 || STRAIGHT, "registers hold one stage");
  LoaderA from_a(a.a + locate(blockIdx.z, a.batch, a.a_batch), a.of_a, row, a.rows, first, terms);
  LoaderB from_b(a.b + locate(blockIdx.z, a.batch, a.b_batch), a.of_b, column, a.columns, first, terms);

  float sums[ROWS][COLUMNS] = {};
  // Factors on their way: of two terms; or four terms of a's rows, each row's next four after its last use.
  float x[BY_LINE ? FOUR : 2][ROWS], y[2][COLUMNS];
  const auto next_y = [&](const float* from, int term) {
    read<COLUMNS, Threads::ALONG * FOUR>(from + StageA::FLOATS + StageB::at(lie.column, slice * RUN + term), y[term % 2]);
  };
  const auto next_x = [&](const float* from, int term) {
    if (!BY_LINE) read<ROWS, Threads::DOWN * FOUR>(from + StageA::at(lie.row, slice * RUN + term), x[term % 2]);
  };
  const auto next_four = [&](const float* from, int term, int r) {
    const auto four = load<FOUR>(from + StageA::at(lie.row + Threads::to_row(r), slice * RUN + term));
#pragma unroll
    for (int e = 0; e < FOUR; ++e) x[BY_LINE ? e : 0][r] = four[e];
  };

  from_a.fetch(shared);
  from_b.fetch(shared + StageA::FLOATS);
  if (STAGES > 2) {
    operand::close_group();
#pragma unroll
    for (int ahead = 1; ahead < STAGES - 1; ++ahead) {
      if (ahead * DEPTH < terms) {
        from_a.fetch(shared + ahead * STAGE);
        from_b.fetch(shared + ahead * STAGE + StageA::FLOATS);
      }
      operand::close_group();
    }
    operand::arrive_but<STAGES - 2>();
  } else {
    from_a.put(shared);
    from_b.put(shared + StageA::FLOATS);
  }
  __syncthreads();
  next_x(shared, 0);
  next_y(shared, 0);
  if (BY_LINE) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) next_four(shared, 0, r);
  }
  int stage = 0;
#pragma unroll 1
  for (int left = terms; left > 0; left -= DEPTH) {
    const bool more = left > DEPTH;
#pragma unroll
    for (int term = 0; term < RUN; ++term) {
      if (term == RUN - 1 && more) {
        if (STAGES > 2) {
          stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
          operand::arrive_but<STAGES - 2>();
        } else {
          stage ^= STAGE;
          from_a.put(shared + stage);
          from_b.put(shared + stage + StageA::FLOATS);
        }
        __syncthreads();
      }
      const int following = (term + 1) % RUN;
      next_x(shared + stage, following);
      next_y(shared + stage, following);
      if (STAGES > 2 && term == 0) {
        // Into the stage that was read last: the barrier since then says that all threads have read it.
        if (left > (STAGES - 1) * DEPTH) {
          float* const last = shared + (stage == 0 ? (STAGES - 1) * STAGE : stage - STAGE);
          from_a.fetch(last);
          from_b.fetch(last + StageA::FLOATS);
        }
        operand::close_group();  // an empty one too: which groups are waited for is a number from the last
      } else if (term == 0 && more) {
        from_a.fetch(shared + (stage ^ STAGE));
        from_b.fetch(shared + (stage ^ STAGE) + StageA::FLOATS);
      }
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          const int row_of = Order::row(r * COLUMNS + c), column_of = Order::column(r * COLUMNS + c);
          float& sum = sums[row_of][column_of];
          sum = __fmaf_rn(x[term % (BY_LINE ? FOUR : 2)][row_of], y[term % 2][column_of], sum);
        }
        if (BY_LINE && term % FOUR == FOUR - 1) next_four(shared + stage, following, r);
      }
    }
  }

  if (SLICES > 1) {
    __syncthreads();
    if (slice > 0) {
#pragma unroll
      for (int v = 0; v < VECTORS; ++v) {
        store(shared + ((v * (SLICES - 1) + slice - 1) * EACH + thread) * FOUR, run_of(sums, v));
      }
    }
    __syncthreads();
    if (slice == 0) {
#pragma unroll
      for (int s = 0; s < SLICES - 1; ++s) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
          add_run(sums, v, load<FOUR>(shared + ((v * (SLICES - 1) + s) * EACH + thread) * FOUR));
        }
      }
    }
  }
  if (gridDim.y > 1 && !combine(a, sums, thread, EACH, slice == 0)) return;
  if (slice > 0) return;
  float* const out = a.out + locate(blockIdx.z, a.batch, a.out_batch);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int down = row + lie.row + Threads::to_row(r);
    if (down >= a.rows) continue;
    float* const line = out + down * a.out_row;
#pragma unroll
    for (int c = 0; c < COLUMNS; c += FOUR) {
      const int along = column + lie.column + Threads::to_column(c);
      if (a.whole && along + FOUR <= a.columns) {
        store(line + along, run_of(sums, (r * COLUMNS + c) / FOUR));
      } else {
#pragma unroll
        for (int e = 0; e < FOUR; ++e) {
          if (along + e < a.columns) line[(along + e) * a.out_column] = sums[r][c + e];
        }
      }
    }
  }
}
