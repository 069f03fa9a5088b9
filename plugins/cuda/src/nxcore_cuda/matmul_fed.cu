// matmul_fed: products of float32 matrices by blocks in which some warps load what the others multiply.
//
// As matmul_slices.cu, but the warps that multiply send nothing: addresses of loads take registers, and move sums to
// others, where they wait for factors of one parity. No tensor core.
#pragma once

#include "matmul_slices.cu"
#ifdef NXCORE_EMULATOR
#include "emulator_barriers.h"
#endif

using matmul_fed_args = matmul_args;

namespace product {

// A named barrier of COUNT threads, of which some only say that they have come.
template <int COUNT>
__device__ __forceinline__ void meet(int barrier) {
#ifdef NXCORE_EMULATOR
  nxcore_emulator::meet(barrier, COUNT, true);
#else
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(COUNT) : "memory");
#endif
}
template <int COUNT>
__device__ __forceinline__ void come(int barrier) {
#ifdef NXCORE_EMULATOR
  nxcore_emulator::meet(barrier, COUNT, false);
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(COUNT) : "memory");
#endif
}

// LINES x DEPTH elements of an operand, loaded by EACH threads. INNER: terms are neighbours in memory: blocks of four lines
// and four terms are turned in registers, where they are loaded a stage ahead; else vectors are sent.
template <int LINES, int DEPTH, int EACH, bool INNER, bool WHOLE>
struct Feeder {
  using To = operand::Stage<LINES, DEPTH, false>;
  static constexpr int SIZE = INNER ? FOUR * FOUR : FOUR;
  static constexpr int COUNT = LINES * DEPTH / SIZE / EACH;
  static constexpr int LANES = 8, GROUPS = LINES / WARP, WARPS = EACH / WARP;
  static constexpr int VECTORS = LINES / FOUR;  // of a term
  static_assert(COUNT * SIZE * EACH == LINES * DEPTH, "every thread has as many");
  static_assert(INNER ? GROUPS % WARPS == 0 || WARPS % GROUPS == 0 : EACH % VECTORS == 0 || VECTORS % EACH == 0, "whole lines");

  const float* from;
  long long line_step, term_step;
  int lines_left, terms_left, to;
  Vector<float, FOUR> held[INNER ? COUNT : 1][FOUR];

  // From this thread's first block (vector) to its i-th: lines, and terms.
  __device__ __forceinline__ static constexpr int down(int i) {
    return INNER ? i * WARPS % GROUPS * WARP : i * EACH % VECTORS * FOUR;
  }
  __device__ __forceinline__ static constexpr int along(int i) {
    return INNER ? i * WARPS / GROUPS * (FOUR * FOUR) : i * EACH / VECTORS;
  }

  __device__ __forceinline__ Feeder(const float* data, const operand::Steps& steps, int thread, int first_line, int lines,
                                    int first_term, int last_term)
      : line_step(steps.line), term_step(steps.term) {
    const int warp = thread / WARP, lane = thread % WARP;
    const int own_line = INNER ? (warp % GROUPS * LANES + lane % LANES) * FOUR : thread % VECTORS * FOUR;
    const int own_term = INNER ? (warp / GROUPS * FOUR + lane / LANES) * FOUR : thread / VECTORS;
    lines_left = lines - first_line - own_line;
    terms_left = last_term - first_term - own_term;
    from = data + (first_line + own_line) * line_step + (first_term + own_term) * term_step;
    to = To::at(own_line, own_term);
#ifdef NXCORE_EMULATOR
    nxcore_emulator::forget_sends();
#endif
  }

  __device__ __forceinline__ bool inside(int lines, int terms) const {
    return WHOLE || (lines < lines_left && terms < terms_left);
  }
  __device__ __forceinline__ void go_on() {
    from += DEPTH * (INNER ? 1 : term_step);
    terms_left -= DEPTH;
  }
  // Sends the next DEPTH terms. Nothing where they come through registers.
  __device__ __forceinline__ void send(float* stage) {
    if (INNER) return;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      operand::send(stage + to + along(i) * (LINES + operand::PAD) + down(i), from + along(i) * term_step + down(i),
                    inside(down(i), along(i)));
    }
    go_on();
  }
  // Begins loading the next DEPTH terms into registers.
  __device__ __forceinline__ void hold() {
    if (!INNER) return;
#pragma unroll
    for (int i = 0; i < COUNT * FOUR; ++i) {
      const int block = i / FOUR, line = i % FOUR;
      if (!WHOLE) held[INNER ? block : 0][line] = Vector<float, FOUR>{};
      if (inside(down(block) + line, along(block)))
        held[INNER ? block : 0][line] = load<FOUR>(from + (down(block) + line) * line_step + along(block));
    }
    go_on();
  }
  __device__ __forceinline__ void put(float* stage) const {
    if (!INNER) return;
#pragma unroll
    for (int i = 0; i < COUNT * FOUR; ++i) {
      const int block = i / FOUR, term = i % FOUR;
      Vector<float, FOUR> turned;
#pragma unroll
      for (int e = 0; e < FOUR; ++e) turned[e] = held[INNER ? block : 0][e][term];
      store(stage + to + (along(block) + term) * (LINES + operand::PAD) + down(block), turned);
    }
  }
};

}  // namespace product

template <int TALL, int WIDE, int ROWS, int COLUMNS, int RUN, int SLICES, int STAGES, int FEEDERS, bool A_INNER, bool B_INNER,
          bool WHOLE>
__device__ __forceinline__ void matmul_fed(const matmul_args& a) {
  using namespace product;
  using Threads = Lie<TALL, WIDE, ROWS, COLUMNS, false>;
  using Order = Path<ROWS, COLUMNS, ROWS_AND_BACK>;
  constexpr int DEPTH = RUN * SLICES;
  using StageA = operand::Stage<TALL, DEPTH, false>;
  using StageB = operand::Stage<WIDE, DEPTH, false>;
  constexpr int EACH = Threads::WARPS * WARP;                          // threads of a slice
  constexpr int ALL = EACH * SLICES, FEED = FEEDERS * WARP, BOTH = ALL + FEED;
  constexpr int STAGE = StageA::FLOATS + StageB::FLOATS;
  constexpr int VECTORS = ROWS * COLUMNS / FOUR;
  constexpr int OWN = VECTORS / SLICES;  // vectors that a thread adds up
  constexpr int SUMS = EACH * VECTORS * FOUR;
  constexpr int FULL = 1, READ = FULL + STAGES, MULTIPLIERS = READ + STAGES;  // barriers
  static_assert(MULTIPLIERS < 16 && OWN * SLICES == VECTORS, "whole vectors");

  float* const shared = dynamic_shared<float>();
  const int down = blockIdx.x / a.across;
  const int row = down * TALL, column = (blockIdx.x - down * a.across) * WIDE;
  const int first = blockIdx.y * a.span, last = min(first + a.span, a.terms);
  const int stages = (last - first + DEPTH - 1) / DEPTH;
  const bool one = blockIdx.z == 0;
#ifdef NXCORE_EMULATOR
  nxcore_emulator::begin_barriers();
#endif

  if (threadIdx.x >= ALL) {
    const int thread = threadIdx.x - ALL;
    Feeder<TALL, DEPTH, FEED, A_INNER, WHOLE> from_a(a.a + (one ? 0 : locate(blockIdx.z, a.batch, a.a_batch)), a.of_a, thread,
                                                     row, a.rows, first, last);
    Feeder<WIDE, DEPTH, FEED, B_INNER, WHOLE> from_b(a.b + (one ? 0 : locate(blockIdx.z, a.batch, a.b_batch)), a.of_b, thread,
                                                     column, a.columns, first, last);
    from_a.send(shared);
    from_b.send(shared + StageA::FLOATS);
    operand::close_group();
    from_a.hold();
    from_b.hold();
    int slot = 0;
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      const int following = slot == STAGES - 1 ? 0 : slot + 1;
      float* const at = shared + slot * STAGE;
      const bool more = stage + 1 < stages;
      if (more) {
        if (stage + 1 >= STAGES) meet<BOTH>(READ + following);
        from_a.send(shared + following * STAGE);
        from_b.send(shared + following * STAGE + StageA::FLOATS);
      }
      operand::close_group();
      from_a.put(at);
      from_b.put(at + StageA::FLOATS);
      if (more) {
        from_a.hold();
        from_b.hold();
      }
      operand::arrive_but<1>();
      come<BOTH>(FULL + slot);
      slot = following;
    }
    come<BOTH>(FULL + slot);  // of a stage that holds nothing: those that multiply wait once more
#ifdef NXCORE_EMULATOR
    nxcore_emulator::end_sends();
#endif
    return;
  }

  const int slice = threadIdx.x / EACH, thread = threadIdx.x % EACH;
  const Threads lie(thread);
  float sums[ROWS][COLUMNS] = {};
  float x[2][ROWS], y[2][COLUMNS];  // factors of two terms, on their way
  int slot = 0;
  const float* at_x = shared + StageA::at(lie.row, slice * RUN);
  const float* at_y = shared + StageA::FLOATS + StageB::at(lie.column, slice * RUN);
  const auto next = [&](int term) {
    read<ROWS, Threads::DOWN * FOUR>(at_x + StageA::at(0, term), x[term % 2]);
    read<COLUMNS, Threads::ALONG * FOUR>(at_y + StageB::at(0, term), y[term % 2]);
  };
  meet<BOTH>(FULL);
  next(0);
#pragma unroll 1
  for (int left = stages; left > 0; --left) {
#pragma unroll
    for (int term = 0; term < RUN; ++term) {
      if (term == RUN - 1) {
        if (left > STAGES) come<BOTH>(READ + slot);
        const int by = slot == STAGES - 1 ? -(STAGES - 1) * STAGE : STAGE;
        slot = slot == STAGES - 1 ? 0 : slot + 1;
        at_x += by;
        at_y += by;
        meet<BOTH>(FULL + slot);
      }
      next((term + 1) % RUN);
#pragma unroll
      for (int i = 0; i < ROWS * COLUMNS; ++i) {
        float& sum = sums[Order::row(i)][Order::column(i)];
        sum = __fmaf_rn(x[term % 2][Order::row(i)], y[term % 2][Order::column(i)], sum);
      }
    }
  }

  float own[OWN][FOUR] = {};
  if (SLICES > 1) {
    // Each slice leaves its sums where terms were; then all threads add up, in the order of slices.
    meet<ALL>(MULTIPLIERS);
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) store(shared + slice * SUMS + (v * EACH + thread) * FOUR, exchanged(run_of(sums, v)));
    meet<ALL>(MULTIPLIERS);
#pragma unroll
    for (int s = 0; s < SLICES; ++s) {
#pragma unroll
      for (int v = 0; v < OWN; ++v) add_run(own, v, load<FOUR>(shared + s * SUMS + ((slice * OWN + v) * EACH + thread) * FOUR));
    }
  }
#pragma unroll
  for (int v = 0; v < OWN; ++v) {
    const auto run = SLICES > 1 ? exchanged(run_of(own, v)) : run_of(sums, v);
#pragma unroll
    for (int e = 0; e < FOUR; ++e) own[v][e] = run[e];
  }
  if (gridDim.y > 1 && !combine(a, own, threadIdx.x, ALL, true)) return;
  float* const out = a.out + (one ? 0 : locate(blockIdx.z, a.batch, a.out_batch));
#pragma unroll
  for (int v = 0; v < OWN; ++v) {
    const int r = (slice * OWN + v) / (COLUMNS / FOUR), c = (slice * OWN + v) % (COLUMNS / FOUR) * FOUR;
    const int at = row + lie.row + Threads::to_row(r), along = column + lie.column + Threads::to_column(c);
    if (!WHOLE && at >= a.rows) continue;
    float* const line = out + at * a.out_row;
    if (a.whole && (WHOLE || along + FOUR <= a.columns)) {
      store(line + along, run_of(own, v));
    } else {
#pragma unroll
      for (int e = 0; e < FOUR; ++e) {
        if (along + e < a.columns) line[(along + e) * a.out_column] = own[v][e];
      }
    }
  }
}
