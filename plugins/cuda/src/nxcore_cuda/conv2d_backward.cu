// conv2d_backward: the image's gradient is a direct convolution of the output's; the filters' and the bias's are sums.
//
// A block of the sums has tiles of one group, 32 columns of some rows: the image's part, with padding, and the
// output's gradient are in shared memory. A thread has a unit, some filters at one row of a channel's taps, and
// a slice of the tile's quads of pixels. The bias's units see ones. Blocks leave shares, which a second launch
// adds up in order.
#pragma once

#include "direct.cuh"

using conv2d_image_args = direct_args;

template <typename T, int ROWS, int COLUMNS, int PIXELS, int FILTERS, int SLICES>
__device__ __forceinline__ void conv2d_image(const conv2d_image_args& a) {
  direct<T, ROWS, COLUMNS, PIXELS, FILTERS, SLICES>(a);
}

struct conv2d_filters_args {
  const void* grad;
  const void* x;
  float* shares;  // [part][group][filter of a lot, tap of a unit][unit]
  direct_steps grad_step, x_step;
  int channels, made;           // of a group; no channels where only the bias's gradient is wanted
  int rows, columns;            // of a filter
  int height, width, out_height, out_width;
  int stride_row, stride_column, pad_row, pad_column, dilation_row, dilation_column;
  int down, across, tiles;      // tiles of an image, and of all
  int tall;                     // rows of a tile
  int deep, pitch;              // rows of a channel in shared memory, and floats from one to the next
  int lots, units, of_filters;  // groups of FILTERS filters; units, the first of which are those of filters
  int lanes, parts;             // units of a block; blocks that share the tiles of a group
};

// COLUMNS: taps of a unit, where neighbouring taps and windows are neighbours in the image; else 0, and a unit has one.
template <typename T, int COLUMNS, int FILTERS>
__device__ __forceinline__ void conv2d_filters(const conv2d_filters_args& a) {
  using namespace direct_detail;
  constexpr int QUAD = 4, QUADS = WARP / QUAD, ONES = 16;
  constexpr int SPAN = COLUMNS ? COLUMNS : 1, SEEN = (QUAD + SPAN - 1 + QUAD - 1) / QUAD * QUAD;
  static_assert(SEEN <= ONES, "a quad's windows lie within the ones");

  float* const ones = dynamic_shared<float>();
  float* const image = ones + ONES;
  float* const grads = image + a.channels * a.deep * a.pitch;
  const int part = blockIdx.x % a.parts, group = blockIdx.x / a.parts;
  const int slices = blockDim.x / a.lanes, slice = threadIdx.x / a.lanes;
  const int unit = blockIdx.y * a.lanes + threadIdx.x % a.lanes;
  const bool works = slice < slices && unit < a.units;

  const bool of_filter = unit < a.of_filters;
  const int taps = COLUMNS ? 1 : a.columns, each = max(a.channels * a.rows * taps, 1);
  const int lot = of_filter ? unit / each : unit - a.of_filters;
  const float* seen_from = ones;
  if (of_filter) {
    const int term = unit % each, tap = term % taps, line = term / taps;
    seen_from = image + (line / a.rows * a.deep + line % a.rows * a.dilation_row) * a.pitch + tap * a.dilation_column;
  }
  const int row_step = of_filter ? a.stride_row * a.pitch : 0, column_step = of_filter ? a.stride_column : 0;
  if (threadIdx.x < ONES) ones[threadIdx.x] = 1.0f;

  float sums[FILTERS][SPAN] = {};
  for (int tile = part; tile < a.tiles; tile += a.parts) {
    const int left = tile % a.across * WARP, top = tile / a.across % a.down * a.tall;
    const int number = tile / a.across / a.down;
    __syncthreads();
    load_part(static_cast<const T*>(a.x) + number * a.x_step.image + (long long)group * a.channels * a.x_step.channel,
              a.x_step, {a.channels, a.channels, a.height, a.width, a.deep, a.pitch}, top * a.stride_row - a.pad_row,
              left * a.stride_column - a.pad_column, image);
    load_part(static_cast<const T*>(a.grad) + number * a.grad_step.image + (long long)group * a.made * a.grad_step.channel,
              a.grad_step, {a.lots * FILTERS, a.made, a.out_height, a.out_width, a.tall, WARP}, top, left, grads);
    __syncthreads();
    if (!works) continue;
    for (int item = slice; item < a.tall * QUADS; item += slices) {
      const int row = item / QUADS, at = item % QUADS * QUAD, count = a.out_width - left - at;
      if (top + row >= a.out_height) break;
      if (count <= 0) continue;
      float seen[SEEN], factor[FILTERS][QUAD];
      const float* const from = seen_from + row * row_step + at * column_step;
      if constexpr (COLUMNS > 0) {
        read<SEEN, QUAD>(from, seen);
      } else {
#pragma unroll
        for (int p = 0; p < QUAD; ++p) seen[p] = from[p * column_step];
      }
#pragma unroll
      for (int o = 0; o < FILTERS; ++o) read<QUAD, QUAD>(grads + ((lot * FILTERS + o) * a.tall + row) * WARP + at, factor[o]);
      // Past the last output a zero might meet an infinity.
#pragma unroll
      for (int p = 0; p < QUAD; ++p) {
        if (p < count) {
#pragma unroll
          for (int o = 0; o < FILTERS; ++o) {
#pragma unroll
            for (int b = 0; b < SPAN; ++b) sums[o][b] = __fmaf_rn(factor[o][p], seen[p + b], sums[o][b]);
          }
        }
      }
    }
  }

  // What slices found, [filter, tap][thread].
  float* const found = dynamic_shared<float>();
  __syncthreads();
  if (works) {
#pragma unroll
    for (int o = 0; o < FILTERS; ++o) {
#pragma unroll
      for (int b = 0; b < SPAN; ++b) found[(o * SPAN + b) * blockDim.x + threadIdx.x] = sums[o][b];
    }
  }
  __syncthreads();
  float* const to = a.shares + ((long long)part * (gridDim.x / a.parts) + group) * FILTERS * SPAN * a.units;
  for (int i = threadIdx.x; i < FILTERS * SPAN * a.lanes; i += blockDim.x) {
    const int own = blockIdx.y * a.lanes + i % a.lanes;
    if (own >= a.units) continue;
    float total = found[i / a.lanes * blockDim.x + i % a.lanes];
    for (int s = 1; s < slices; ++s) total += found[i / a.lanes * blockDim.x + s * a.lanes + i % a.lanes];
    to[i / a.lanes * a.units + own] = total;
  }
}

struct conv2d_totals_args {
  const float* shares;
  void* weight_grad;
  void* bias_grad;
  direct_steps weight_step;
  long long width;  // of a part's shares
  int parts, filters, span, lots, units, of_filters, made, rows, columns;
};

// Adds up what blocks left: 16 threads a column, in fixed order. `shared`: blockDim.x floats.
template <typename T>
__device__ __forceinline__ void conv2d_totals(const conv2d_totals_args& a) {
  constexpr int COLUMNS = 16;
  float* const shared = dynamic_shared<float>();
  const long long column = (long long)blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
  const int first = threadIdx.x / COLUMNS, abreast = blockDim.x / COLUMNS;
  float total = 0.0f;
  if (column < a.width) {
#pragma unroll 8
    for (int part = first; part < a.parts; part += abreast) total += a.shares[part * a.width + column];
  }
  shared[threadIdx.x] = total;
  __syncthreads();
  if (first || column >= a.width) return;
  for (int p = 1; p < abreast; ++p) total += shared[p * COLUMNS + threadIdx.x];

  const int unit = column % a.units, of_lot = column / a.units % (a.filters * a.span);
  const long long group = column / a.units / (a.filters * a.span);
  const bool of_filter = unit < a.of_filters;
  const int each = max(a.of_filters / a.lots, 1);
  const int lot = of_filter ? unit / each : unit - a.of_filters;
  const int filter = lot * a.filters + of_lot / a.span, b = of_lot % a.span;
  if (filter >= a.made) return;
  const long long made = group * a.made + filter;
  if (of_filter) {
    const int term = unit % each * a.span + b, line = term / a.columns;
    static_cast<T*>(a.weight_grad)[made * a.weight_step.image + line / a.rows * a.weight_step.channel +
                                   line % a.rows * a.weight_step.row + term % a.columns * a.weight_step.column] =
        narrow<T>(total);
  } else if (b == 0) {
    static_cast<T*>(a.bias_grad)[made] = narrow<T>(total);
  }
}
