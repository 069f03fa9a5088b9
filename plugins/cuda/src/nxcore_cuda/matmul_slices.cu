// matmul_slices: products of float32 matrices by blocks whose teams of slices wait for their own terms alone.
//
// As matmul.cu, but the threads of a team have stages of shared memory of their own, and no team waits for another in the
// loop. All threads add up what the slices found. No tensor core.
#pragma once

#include "matmul.cu"

using matmul_slices_args = matmul_args;

namespace product {

// LINES x DEPTH elements of an operand, sent to shared memory by the EACH threads of a team, in vectors where 16 bytes of
// memory fit as they are, else one by one. STEP: terms from one stage of a team to its next. WHOLE: nothing lies outside.
template <int LINES, int DEPTH, int EACH, int STEP, bool INNER, bool VECTORS, bool WHOLE>
struct Sender {
  using To = operand::Stage<LINES, DEPTH, false>;
  static constexpr bool SENT = VECTORS && !INNER;
  static constexpr int SIZE = SENT ? FOUR : 1;
  static constexpr int COUNT = LINES * DEPTH / SIZE / EACH;
  static_assert(COUNT * SIZE * EACH == LINES * DEPTH, "every thread has as many");
  static constexpr int BESIDE = EACH / DEPTH;  // in vectors, so many threads have a term
  static constexpr int FAR = EACH / 8;         // one by one, eight threads have eight terms of a line: a sector of memory
  static_assert(!SENT || (BESIDE >= 2 && COUNT * BESIDE * FOUR == LINES), "a thread has one term");

  const float* from;
  long long line_step, term_step;
  int lines_left, terms_left, to;

  // Terms whose vectors eight neighbouring threads have at once lie in different banks.
  __device__ __forceinline__ static constexpr int spread(int u) {
    return BESIDE == 2 ? u / 8 * 8 + u % 4 * 2 + u / 4 % 2 : BESIDE == 4 ? u / 8 * 8 + u % 2 * 4 + u / 2 % 4 : u;
  }
  // From this thread's first element (vector) to its i-th: lines, and terms.
  __device__ __forceinline__ static constexpr int down(int i) {
    return SENT ? i * BESIDE * FOUR : INNER ? i * FAR % LINES : i * EACH % LINES;
  }
  __device__ __forceinline__ static constexpr int along(int i) {
    return SENT ? 0 : INNER ? i * FAR / LINES * 8 : i * EACH / LINES;
  }
  static_assert(SENT || (INNER ? FAR % LINES == 0 || LINES % FAR == 0 : EACH % LINES == 0 || LINES % EACH == 0), "whole lines");

  __device__ __forceinline__ Sender(const float* data, const operand::Steps& steps, int thread, int first_line, int lines,
                                    int first_term, int last_term)
      : line_step(steps.line), term_step(steps.term) {
    const int own_line = SENT ? thread % BESIDE * FOUR : INNER ? thread / 8 % LINES : thread % LINES;
    const int own_term = SENT    ? spread(thread / BESIDE)
                         : INNER ? thread / 8 / LINES * 8 + thread % 8
                                 : thread / LINES;
    const int line = first_line + own_line, term = first_term + own_term;
    lines_left = lines - line;
    terms_left = last_term - term;
    from = data + line * line_step + term * term_step;
    to = To::at(own_line, own_term);
#ifdef NXCORE_EMULATOR
    nxcore_emulator::forget_sends();
#endif
  }
#ifdef NXCORE_EMULATOR
  ~Sender() { nxcore_emulator::end_sends(); }
#endif

  // Sends this team's next DEPTH terms, or one piece of what a thread sends; the last piece goes on to the terms after
  // them. Where there are no more, zeros. Steps of vectors' own dimension are 1, and known to the compiler.
  __device__ __forceinline__ void fetch(float* stage, int piece = 0, int pieces = 1, bool more = true) {
    const long long by_line = VECTORS && !INNER ? 1 : line_step, by_term = VECTORS && INNER ? 1 : term_step;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (i * pieces / COUNT != piece) continue;
      const float* const at = from + down(i) * by_line + along(i) * by_term;
      const bool inside = more && (WHOLE || (down(i) < lines_left && along(i) < terms_left));
      if (SENT) {
        operand::send(stage + to + down(i), at, inside);
      } else {
        operand::send_one(stage + to + along(i) * (LINES + operand::PAD) + down(i), at, inside);
      }
    }
    if (piece < pieces - 1) return;
    from += STEP * by_term;
    terms_left -= STEP;
  }
};

// An operand whose terms are neighbours in memory, and whose lines are to be in shared memory: vectors that were loaded
// into registers a stage ago are stored one by one. A vector that is sent one by one takes the queue of loads four times.
template <int LINES, int DEPTH, int EACH, int STEP, bool WHOLE>
struct Holder {
  using To = operand::Stage<LINES, DEPTH, false>;
  static constexpr int COUNT = LINES * DEPTH / FOUR / EACH;
  static constexpr int LANES = DEPTH % 16 == 0 ? 4 : 2;  // neighbouring threads have as many vectors of a line
  static constexpr int FAR = EACH / LANES;               // lines from a thread's vector to its next
  static_assert(COUNT * FOUR * EACH == LINES * DEPTH && (FAR % LINES == 0 || LINES % FAR == 0), "whole lines");

  const float* from;
  long long line_step;
  int lines_left, terms_left, to;
  Vector<float, FOUR> held[COUNT];

  __device__ __forceinline__ static constexpr int down(int i) { return i * FAR % LINES; }
  __device__ __forceinline__ static constexpr int along(int i) { return i * FAR / LINES * (LANES * FOUR); }

  __device__ __forceinline__ Holder(const float* data, const operand::Steps& steps, int thread, int first_line, int lines,
                                    int first_term, int last_term)
      : line_step(steps.line) {
    const int own_line = thread / LANES % LINES;
    const int own_term = thread / LANES / LINES * (LANES * FOUR) + thread % LANES * FOUR;
    lines_left = lines - first_line - own_line;
    terms_left = last_term - first_term - own_term;
    from = data + (first_line + own_line) * line_step + first_term + own_term;
    to = To::at(own_line, own_term);
  }

  // Begins loading this team's next DEPTH terms, or one piece of them, if there are more.
  __device__ __forceinline__ void load_next(int piece, int pieces, bool more) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (i * pieces / COUNT != piece) continue;
      const bool inside = more && (WHOLE || (down(i) < lines_left && along(i) < terms_left));
      if (!WHOLE) held[i] = Vector<float, FOUR>{};
      if (inside) held[i] = load<FOUR>(from + down(i) * line_step + along(i));
    }
    if (piece < pieces - 1) return;
    from += STEP;
    terms_left -= STEP;
  }
  // Stores what was loaded before, and begins loading what comes after it.
  __device__ __forceinline__ void pass(float* stage, int piece, int pieces, bool more) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (i * pieces / COUNT != piece) continue;
#pragma unroll
      for (int e = 0; e < FOUR; ++e) stage[to + (along(i) + e) * (LINES + operand::PAD) + down(i)] = held[i][e];
    }
    load_next(piece, pieces, more);
  }
};

// A barrier of the EACH threads of a team.
template <int EACH>
__device__ __forceinline__ void join(int team) {
  if (EACH == WARP) return __syncwarp();
#ifdef NXCORE_EMULATOR
  __syncthreads();  // all teams have as many steps
#else
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(EACH) : "memory");
#endif
}

// A run with neighbours exchanged. A vector of sums has four neighbouring registers, as have four factors of one term, and
// an instruction that reads two registers of one parity takes a cycle more: a sum's parity is to be another than its factor's.
__device__ __forceinline__ Vector<float, FOUR> exchanged(const Vector<float, FOUR>& run) {
  Vector<float, FOUR> found;
#pragma unroll
  for (int e = 0; e < FOUR; ++e) found[e] = run[e ^ 1];
  return found;
}

}  // namespace product

template <int TALL, int WIDE, int ROWS, int COLUMNS, int RUN, int SLICES, int TEAM, int STAGES, int TURN, int PIECES, bool HELD,
          bool A_INNER, bool A_VECTORS, bool B_INNER, bool B_VECTORS, bool WHOLE>
__device__ __forceinline__ void matmul_slices(const matmul_args& a) {
  using namespace product;
  using Threads = Lie<TALL, WIDE, ROWS, COLUMNS, false>;
  constexpr int DEPTH = RUN * TEAM;  // terms of a stage, RUN for each slice of the team
  using StageA = operand::Stage<TALL, DEPTH, false>;
  using StageB = operand::Stage<WIDE, DEPTH, false>;
  constexpr int EACH = Threads::WARPS * WARP;  // threads of a slice
  constexpr int TOGETHER = EACH * TEAM, ALL = EACH * SLICES;
  constexpr int STEP = RUN * SLICES;
  constexpr int STAGE = StageA::FLOATS + StageB::FLOATS;
  constexpr int VECTORS = ROWS * COLUMNS / FOUR;
  constexpr int OWN = VECTORS / SLICES;  // vectors that a thread adds up
  static_assert(PIECES < RUN, "all are sent before the next stage is waited for");
  static_assert(RUN % FOUR == 0 && OWN * SLICES == VECTORS && SLICES % TEAM == 0, "whole vectors");
  using Order = Path<ROWS, COLUMNS, ROWS_AND_BACK>;
  constexpr int SUMS = EACH * VECTORS * FOUR;
  constexpr int REGION = STAGE * STAGES > TEAM * SUMS ? STAGE * STAGES : TEAM * SUMS;  // of a team

  const int slice = threadIdx.x / EACH, thread = threadIdx.x % EACH;
  float* const shared = dynamic_shared<float>();
  const int team = slice / TEAM, in_team = slice % TEAM;
  float* const region = shared + team * REGION;
  const Threads lie(thread);
  const int down = blockIdx.x / a.across;
  const int row = down * TALL, column = (blockIdx.x - down * a.across) * WIDE;
  const int first = blockIdx.y * a.span, last = min(first + a.span, a.terms);
  using SenderA = Sender<TALL, DEPTH, TOGETHER, STEP, A_INNER, A_VECTORS, WHOLE>;
  using SenderB = Sender<WIDE, DEPTH, TOGETHER, STEP, B_INNER, B_VECTORS, WHOLE>;
  // Most products are no batch: what locates one is much code, which a cold instruction cache waits for.
  const bool one = blockIdx.z == 0;
  const int begin = first + team * DEPTH, of_team = threadIdx.x % TOGETHER;
  SenderA from_a(a.a + (one ? 0 : locate(blockIdx.z, a.batch, a.a_batch)), a.of_a, of_team, row, a.rows, begin, last);
  SenderB from_b(a.b + (one ? 0 : locate(blockIdx.z, a.batch, a.b_batch)), a.of_b, of_team, column, a.columns, begin, last);
  constexpr bool HOLDS_A = HELD && A_INNER && A_VECTORS, HOLDS_B = HELD && B_INNER && B_VECTORS;
  // Where an operand isn't held, its holder is of another that could be, and unused.
  using HolderA = Holder<TALL, DEPTH, TOGETHER, STEP, WHOLE>;
  using HolderB = Holder<WIDE, DEPTH, TOGETHER, STEP, WHOLE>;
  const int held = begin + (STAGES - 1) * STEP;
  HolderA held_a(a.a + (one ? 0 : locate(blockIdx.z, a.batch, a.a_batch)), a.of_a, of_team, row, a.rows, held, last);
  HolderB held_b(a.b + (one ? 0 : locate(blockIdx.z, a.batch, a.b_batch)), a.of_b, of_team, column, a.columns, held, last);

  float sums[ROWS][COLUMNS] = {};
  float x[2][ROWS], y[2][COLUMNS];  // factors of two terms, on their way
  // Where this thread's factors lie in the stage that is read.
  float* const end = region + (STAGES - 1) * STAGE;
  float* at = region;
  const float* at_x = at + StageA::at(lie.row, in_team * RUN);
  const float* at_y = at + StageA::FLOATS + StageB::at(lie.column, in_team * RUN);
  const auto next = [&](int term) {
    read<ROWS, Threads::DOWN * FOUR>(at_x + StageA::at(0, term), x[term % 2]);
    read<COLUMNS, Threads::ALONG * FOUR>(at_y + StageB::at(0, term), y[term % 2]);
  };

  // TURN stages are one turn of the loop: at its ends sums move to other registers, and wait for factors of one parity.
  const int terms = (last - first + TURN * STEP - 1) / (TURN * STEP) * (TURN * STEP);
  int unsent = terms;
#pragma unroll 1  // code that runs once is waited for
  for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
    if (unsent > 0) {
      from_a.fetch(region + ahead * STAGE);
      from_b.fetch(region + ahead * STAGE + StageA::FLOATS);
    }
    unsent -= STEP;
    operand::close_group();
  }
  if (HOLDS_A) held_a.load_next(0, 1, unsent > 0);
  if (HOLDS_B) held_b.load_next(0, 1, unsent > 0);
  operand::arrive_but<STAGES - 2>();
  join<TOGETHER>(team);
  next(0);
#pragma unroll 1
  for (int left = terms; left > 0; left -= TURN * STEP) {
#pragma unroll
    for (int step = 0; step < TURN * RUN; ++step) {
      const int term = step % RUN;
      float* const before = at == region ? end : at - STAGE;
      if (term == RUN - 1) {
        const int by = at == end ? -(STAGES - 1) * STAGE : STAGE;
        at += by;
        at_x += by;
        at_y += by;
        operand::arrive_but<STAGES - 2>();
        join<TOGETHER>(team);
      }
      next((term + 1) % RUN);
      const bool more = unsent > 0;
      if (term < PIECES && (PIECES > 1 || more)) {  // a branch at every piece would cost more than zeros
        // Into the stage that was read last: the barrier since then says that this team has read it.
        if (!HOLDS_A) from_a.fetch(before, term, PIECES, PIECES == 1 || more);
        if (!HOLDS_B) from_b.fetch(before + StageA::FLOATS, term, PIECES, PIECES == 1 || more);
      }
      if (HOLDS_A && term < PIECES) held_a.pass(before, term, PIECES, unsent > STEP);
      if (HOLDS_B && term < PIECES) held_b.pass(before + StageA::FLOATS, term, PIECES, unsent > STEP);
      if (term == PIECES - 1) {
        unsent -= STEP;
        operand::close_group();  // an empty one too: which groups are waited for is a number from the last
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
  }

  if (PIECES > 1) operand::arrive();  // zeros
  // Each slice leaves its sums where its terms were; then all threads add up, in the order of slices.
  join<TOGETHER>(team);
#pragma unroll
  for (int v = 0; v < VECTORS; ++v) store(region + in_team * SUMS + (v * EACH + thread) * FOUR, exchanged(run_of(sums, v)));
  __syncthreads();
  float own[OWN][FOUR] = {};
#pragma unroll
  for (int s = 0; s < SLICES; ++s) {
#pragma unroll
    for (int v = 0; v < OWN; ++v) {
      add_run(own, v, load<FOUR>(shared + s / TEAM * REGION + s % TEAM * SUMS + ((slice * OWN + v) * EACH + thread) * FOUR));
    }
  }
#pragma unroll
  for (int v = 0; v < OWN; ++v) {
    const auto run = exchanged(run_of(own, v));
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
