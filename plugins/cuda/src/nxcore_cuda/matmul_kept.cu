// matmul: as in matmul_slices.cu, of one product whose blocks have all its terms, and where every stage has a place of its own
// in shared memory: a stage's barrier counts what has come, whoever sent it, and no thread waits for another in the loop. No
// tensor core.
#pragma once

#include "matmul_slices.cu"

using matmul_kept_args = matmul_args;

namespace kept {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ unsigned at(const void* barrier) { return (unsigned)__cvta_generic_to_shared(barrier); }
#endif

// A barrier of a stage in shared memory. What a thread has sent so far is counted by `came` once it has come; `wait` waits
// until COUNT threads' have. Elsewhere all threads wait for all that they sent.
__device__ __forceinline__ void prepare(unsigned long long* barrier, int count) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(barrier)), "r"(count) : "memory");
#endif
}
__device__ __forceinline__ void came(unsigned long long* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at(barrier)) : "memory");
#endif
}
__device__ __forceinline__ void wait(unsigned long long* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN_%=:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], 0;\n"
      "@!done bra AGAIN_%=;\n"
      "}\n" ::"r"(at(barrier))
      : "memory");
#else
  operand::arrive();
  __syncthreads();
#endif
}

template <bool VALUE>
struct Flag {
  static constexpr bool value = VALUE;
};

}  // namespace kept

// STAGES hold all terms; AHEAD of them are sent before the loop, and on their way in it.
template <int TALL, int WIDE, int ROWS, int COLUMNS, int RUN, int SLICES, int STAGES, int AHEAD, int PIECES, bool A_INNER,
          bool B_INNER, bool WHOLE>
__device__ __forceinline__ void matmul_kept(const matmul_args& a) {
  using namespace product;
  using Threads = Lie<TALL, WIDE, ROWS, COLUMNS, false>;
  constexpr int DEPTH = RUN * SLICES;  // terms of a stage
  using StageA = operand::Stage<TALL, DEPTH, false>;
  using StageB = operand::Stage<WIDE, DEPTH, false>;
  constexpr int EACH = Threads::WARPS * WARP;  // threads of a slice
  constexpr int ALL = EACH * SLICES;
  constexpr int STAGE = StageA::FLOATS + StageB::FLOATS;
  constexpr int VECTORS = ROWS * COLUMNS / FOUR;
  constexpr int OWN = VECTORS / SLICES;  // vectors that a thread adds up
  static_assert(PIECES <= RUN && RUN % FOUR == 0 && OWN * SLICES == VECTORS, "whole vectors, all sent in a turn");
  using Order = Path<ROWS, COLUMNS, ROWS_AND_BACK>;
  constexpr int SUMS = EACH * VECTORS * FOUR;

  const int slice = threadIdx.x / EACH, thread = threadIdx.x % EACH;
  float* const shared = dynamic_shared<float>();
  const Threads lie(thread);
  const int down = blockIdx.x / a.across;
  const int row = down * TALL, column = (blockIdx.x - down * a.across) * WIDE;
  Sender<TALL, DEPTH, ALL, DEPTH, A_INNER, true, WHOLE> from_a(a.a, a.of_a, threadIdx.x, row, a.rows, 0, a.terms);
  Sender<WIDE, DEPTH, ALL, DEPTH, B_INNER, true, WHOLE> from_b(a.b, a.of_b, threadIdx.x, column, a.columns, 0, a.terms);

  __shared__ unsigned long long barriers[STAGES];
  unsigned long long *sent = barriers, *awaited = barriers;
  float* into = shared;
  from_a.fetch(into);
  from_b.fetch(into + StageA::FLOATS);
  if (threadIdx.x < STAGES) kept::prepare(barriers + threadIdx.x, ALL);
  __syncthreads();
  kept::came(sent++);
  into += STAGE;
#pragma unroll 1
  for (int ahead = 1; ahead < AHEAD; ++ahead) {
    if (ahead * DEPTH < a.terms) {
      from_a.fetch(into);
      from_b.fetch(into + StageA::FLOATS);
      kept::came(sent++);
      into += STAGE;
    }
  }

  float sums[ROWS][COLUMNS] = {};
  float x[2][ROWS], y[2][COLUMNS];  // factors of two terms, on their way
  const float* at_x = shared + StageA::at(lie.row, slice * RUN);
  const float* at_y = shared + StageA::FLOATS + StageB::at(lie.column, slice * RUN);
  const auto next = [&](int term) {
    read<ROWS, Threads::DOWN * FOUR>(at_x + StageA::at(0, term), x[term % 2]);
    read<COLUMNS, Threads::ALONG * FOUR>(at_y + StageB::at(0, term), y[term % 2]);
  };
  kept::wait(awaited++);
  next(0);
  // A turn of the loop is a stage. Where SENDS, one is sent meanwhile: to ask whether there is one costs more than two loops.
  const auto multiply = [&](auto sends, bool more) {
#pragma unroll
    for (int term = 0; term < RUN; ++term) {
      if (term == RUN - 1 && more) {
        at_x += STAGE;
        at_y += STAGE;
        kept::wait(awaited++);
      }
      next((term + 1) % RUN);
      if (decltype(sends)::value && term < PIECES) {
        from_a.fetch(into, term, PIECES);
        from_b.fetch(into + StageA::FLOATS, term, PIECES);
        if (term == PIECES - 1) {
          kept::came(sent++);
          into += STAGE;
        }
      }
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          const int row_of = Order::row(r * COLUMNS + c), column_of = Order::column(r * COLUMNS + c);
          float& sum = sums[row_of][column_of];
          sum = __fmaf_rn(x[term % 2][row_of], y[term % 2][column_of], sum);
        }
      }
    }
  };
  int left = a.terms;
#pragma unroll 1
  for (; left > AHEAD * DEPTH; left -= DEPTH) multiply(kept::Flag<true>{}, true);
#pragma unroll 1
  for (; left > 0; left -= DEPTH) multiply(kept::Flag<false>{}, left > DEPTH);

  // Each slice leaves its sums where terms were; then all threads add up, in the order of slices.
  __syncthreads();
#pragma unroll
  for (int v = 0; v < VECTORS; ++v) store(shared + slice * SUMS + (v * EACH + thread) * FOUR, exchanged(run_of(sums, v)));
  __syncthreads();
  float own[OWN][FOUR] = {};
#pragma unroll
  for (int s = 0; s < SLICES; ++s) {
#pragma unroll
    for (int v = 0; v < OWN; ++v) {
      add_run(own, v, load<FOUR>(shared + s * SUMS + ((slice * OWN + v) * EACH + thread) * FOUR));
    }
  }
#pragma unroll
  for (int v = 0; v < OWN; ++v) {
    const auto run = exchanged(run_of(own, v));
    const int r = (slice * OWN + v) / (COLUMNS / FOUR), c = (slice * OWN + v) % (COLUMNS / FOUR) * FOUR;
    const int at = row + lie.row + Threads::to_row(r), along = column + lie.column + Threads::to_column(c);
    if (!WHOLE && at >= a.rows) continue;
    float* const line = a.out + at * a.out_row;
    if (a.whole && (WHOLE || along + FOUR <= a.columns)) {
      store(line + along, run);
    } else {
#pragma unroll
      for (int e = 0; e < FOUR; ++e) {
        if (along + e < a.columns) line[(along + e) * a.out_column] = run[e];
      }
    }
  }
}
