// matmul in the class fp32x: each factor is the sum of two of 11 bits, and three of their four products go through
// tensor cores. A stage's sums begin at zero, since tensor cores don't round to nearest; its threads add them up.
#pragma once

#include "product.cuh"

namespace split {

using operand::FOUR;
using operand::WIDER;

constexpr int TALL_OF_ONE = 16, WIDE_OF_ONE = 8, TERMS_OF_ONE = 8;  // of one instruction

// A number rounded to 11 bits.
__device__ __forceinline__ float leading(float x) { return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u); }

// Tensor cores take the first 11 bits of a number. A low part that isn't ROUNDED to them is cut there: its error is up to
// 2^-22 of the number, not 2^-23.
template <bool ROUNDED>
struct Parts {
  float high, low;
  __device__ __forceinline__ explicit Parts(float x) : high(leading(x)), low(ROUNDED ? leading(x - high) : x - high) {}
};

// sums += a b, of 16 x 8 and 8 x 8 numbers that a warp holds as the instruction wants them.
__device__ __forceinline__ void multiply(float (&sums)[FOUR], const float (&a)[FOUR], const float (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
#else
  const int lane = threadIdx.x % WARP, row = lane / 4, column = lane % 4 * 2;
  const auto seen = [](float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); };
#pragma unroll
  for (int k = 0; k < TERMS_OF_ONE; ++k) {
#pragma unroll
    for (int down = 0; down < 2; ++down) {
      const float x = __shfl_sync(ALL_LANES, seen(a[k / 4 * 2 + down]), row * 4 + k % 4);
#pragma unroll
      for (int along = 0; along < 2; ++along) {
        const float y = __shfl_sync(ALL_LANES, seen(b[k / 4]), (column + along) * 4 + k % 4);
        sums[down * 2 + along] = __fmaf_rn(x, y, sums[down * 2 + along]);
      }
    }
  }
#endif
}

}  // namespace split

// A warp has ROWS x COLUMNS outputs of a tile.
template <int TALL, int WIDE, int ROWS, int COLUMNS, int DEPTH, bool A_INNER, bool A_VECTORS, bool B_INNER, bool B_VECTORS,
          bool ROUNDED = true, bool STRAIGHT = false>
__device__ __forceinline__ void matmul_split(const matmul_args& a) {
  using namespace split;
  constexpr bool A_LINE = A_INNER && A_VECTORS, B_LINE = B_INNER && B_VECTORS;
  using StageA = operand::Stage<TALL, DEPTH, A_LINE, WIDER>;
  using StageB = operand::Stage<WIDE, DEPTH, B_LINE, WIDER>;
  constexpr int ACROSS = WIDE / COLUMNS, ALL = TALL / ROWS * ACROSS * WARP;
  constexpr int STAGE = StageA::FLOATS + StageB::FLOATS;
  constexpr int DOWN = ROWS / TALL_OF_ONE, ALONG = COLUMNS / WIDE_OF_ONE;  // instructions of a warp
  static_assert(DEPTH % TERMS_OF_ONE == 0, "a stage has whole instructions");

  float* const shared = dynamic_shared<float>();
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int at_row = warp / ACROSS * ROWS + lane / 4, at_column = warp % ACROSS * COLUMNS + lane / 4;  // in the tile
  const typename StageA::Own own_a(at_row, lane % 4);
  const typename StageB::Own own_b(at_column, lane % 4);
  const int row = blockIdx.x / a.across * TALL, column = blockIdx.x % a.across * WIDE;
  const int first = blockIdx.y * a.span, terms = min(a.span, a.terms - first);
  operand::Loader<TALL, DEPTH, ALL, A_INNER, A_VECTORS, A_LINE, WIDER, STRAIGHT> from_a(a.a + locate(blockIdx.z, a.batch, a.a_batch), a.of_a, row, a.rows, first, terms);
  operand::Loader<WIDE, DEPTH, ALL, B_INNER, B_VECTORS, B_LINE, WIDER, STRAIGHT> from_b(a.b + locate(blockIdx.z, a.batch, a.b_batch), a.of_b, column, a.columns, first, terms);

  float sums[DOWN * ALONG][FOUR] = {};
  from_a.fetch(shared);
  from_b.fetch(shared + StageA::FLOATS);
  from_a.put(shared);
  from_b.put(shared + StageA::FLOATS);
  __syncthreads();
  int stage = 0;
#pragma unroll 1
  for (int left = terms; left > 0; left -= DEPTH) {
    const bool more = left > DEPTH;
    const float *const of_a = shared + stage, *const of_b = of_a + StageA::FLOATS;
    stage ^= STAGE;
    if (more) {
      from_a.fetch(shared + stage);
      from_b.fetch(shared + stage + StageA::FLOATS);
    }
    float found[DOWN * ALONG][FOUR] = {};
#pragma unroll
    for (int term = 0; term < DEPTH; term += TERMS_OF_ONE) {
      float high[DOWN][FOUR], low[DOWN][FOUR];
#pragma unroll
      for (int i = 0; i < DOWN * FOUR; ++i) {
        const Parts<ROUNDED> x(of_a[own_a.at_after(i / FOUR * TALL_OF_ONE + i % 2 * 8, term + i % FOUR / 2 * 4)]);
        high[i / FOUR][i % FOUR] = x.high;
        low[i / FOUR][i % FOUR] = x.low;
      }
#pragma unroll
      for (int along = 0; along < ALONG; ++along) {
        float b_high[2], b_low[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const Parts<ROUNDED> y(of_b[own_b.at_after(along * WIDE_OF_ONE, term + i * 4)]);
          b_high[i] = y.high;
          b_low[i] = y.low;
        }
#pragma unroll
        for (int down = 0; down < DOWN; ++down) {
          multiply(found[down * ALONG + along], low[down], b_high);
          multiply(found[down * ALONG + along], high[down], b_low);
          multiply(found[down * ALONG + along], high[down], b_high);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < DOWN * ALONG; ++i) {
#pragma unroll
      for (int e = 0; e < FOUR; ++e) sums[i][e] += found[i][e];
    }
    if (more) {
      from_a.put(shared + stage);
      from_b.put(shared + stage + StageA::FLOATS);
    }
    __syncthreads();
  }
  if (gridDim.y > 1 && !product::combine(a, sums, threadIdx.x, ALL, true)) return;
  float* const out = a.out + locate(blockIdx.z, a.batch, a.out_batch);
#pragma unroll
  for (int i = 0; i < DOWN * ALONG; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int down = row + at_row + i / ALONG * TALL_OF_ONE + half * 8;
      const int along = column + at_column - lane / 4 + i % ALONG * WIDE_OF_ONE + lane % 4 * 2;
      if (down >= a.rows) continue;
      float* const line = out + down * a.out_row;
      if (a.whole && along + 2 <= a.columns) {
        Vector<float, 2> pair;
        pair[0] = sums[i][half * 2];
        pair[1] = sums[i][half * 2 + 1];
        store(line + along, pair);
      } else {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (along + e < a.columns) line[(along + e) * a.out_column] = sums[i][half * 2 + e];
        }
      }
    }
  }
}
