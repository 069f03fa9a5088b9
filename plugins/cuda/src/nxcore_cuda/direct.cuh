// Direct convolutions of few channels, forward and to the image's gradient.
//
// Each term is one fused multiply-add; no tensor core.
//
// A block has a tile of one image's outputs: 32 columns, and all filters of a group. Its part of the image, with
// padding, and its filters are in shared memory. A warp has 32 columns of PIXELS rows, a thread PIXELS neighbours
// of one row and some filters. Slices of a block share the channels; what they found is added up in order.
#pragma once

#include "element.cuh"

struct direct_steps {
  long long image, channel, row, column;  // of filters: of a filter, and of its channels, rows and columns
};

struct direct_args {
  const void* x;
  const void* weight;
  const void* bias;  // or null
  void* out;
  direct_steps x_step, weight_step, out_step;
  long long bias_step;
  long long weight_start, weight_group, out_start;  // where the first filter and the first output lie; of a group
  int groups, channels, made;  // of a group: channels in and out
  int rows, columns;           // of a filter
  int height, width, out_height, out_width;
  int stride_row, stride_column, pad_row, pad_column, dilation_row, dilation_column;
  int down, across;        // tiles of an image
  int tall;                // rows of a tile's outputs
  int deep, pitch;         // rows of a channel in shared memory, and floats from one to the next
  int lots, filter_pitch;  // groups of FILTERS filters; floats from one term's filters to the next one's
  int whole;               // outputs can be stored in vectors of PIXELS
};

namespace direct_detail {

// COUNT floats from shared memory, in vectors of N.
template <int COUNT, int N>
__device__ __forceinline__ void read(const float* from, float (&to)[COUNT]) {
  static_assert(COUNT % N == 0, "whole vectors");
#pragma unroll
  for (int i = 0; i < COUNT; i += N) {
    const Vector<float, N> some = load<N>(from + i);
#pragma unroll
    for (int e = 0; e < N; ++e) to[i + e] = some[e];
  }
}

// Part of some channels of an image, zeros where there is no image: a warp for each row.
struct direct_part {
  int channels, known;  // channels past the known ones are zeros
  int height, width;
  int deep, pitch;  // rows of a channel in shared memory, and floats from one to the next
};

template <typename T>
__device__ __forceinline__ void load_part(const T* x, const direct_steps& step, const direct_part& part, int top,
                                          int left, float* to) {
  const int warps = blockDim.x / WARP, lane = threadIdx.x % WARP, count = part.channels * part.deep;
#pragma unroll 4
  for (int line = threadIdx.x / WARP; line < count; line += warps) {
    const int c = line / part.deep, row = top + line % part.deep;
    const T* from = x + c * step.channel + row * step.row;
    const bool inside = row >= 0 && row < part.height && c < part.known;
    for (int i = lane; i < part.pitch; i += WARP) {
      const int column = left + i;
      to[line * part.pitch + i] =
          inside && column >= 0 && column < part.width ? widen(from[column * step.column]) : 0.0f;
    }
  }
}

// The filters of a group, term by term, zeros where FILTERS doesn't divide them: a warp for each filter.
template <typename T>
__device__ __forceinline__ void load_filters(const direct_args& a, const T* weight, float* to) {
  const int warps = blockDim.x / WARP, lane = threadIdx.x % WARP, taps = a.rows * a.columns;
  const int terms = a.channels * taps;
  const bool dense = a.weight_step.column == 1 && a.weight_step.row == a.columns && a.weight_step.channel == taps;
#pragma unroll 2
  for (int o = threadIdx.x / WARP; o < a.filter_pitch; o += warps) {
    const T* from = weight + o * a.weight_step.image;
#pragma unroll 4
    for (int t = lane; t < terms; t += WARP) {
      long long at = t;
      if (!dense) {
        const int tap = t % taps;
        at = t / taps * a.weight_step.channel + tap / a.columns * a.weight_step.row +
             tap % a.columns * a.weight_step.column;
      }
      to[t * a.filter_pitch + o] = o < a.made ? widen(from[at]) : 0.0f;
    }
  }
}

}  // namespace direct_detail

// ROWS, COLUMNS: the filter's, where neighbouring taps and windows are neighbours in the image; else 0.
template <typename T, int ROWS, int COLUMNS, int PIXELS, int FILTERS, int SLICES>
__device__ __forceinline__ void direct(const direct_args& a) {
  using namespace direct_detail;
  constexpr bool SLIDES = COLUMNS > 0;
  constexpr int SEEN = SLIDES ? (PIXELS + COLUMNS - 1 + PIXELS - 1) / PIXELS * PIXELS : 1;
  constexpr int OWN = FILTERS / SLICES;  // filters that a thread finishes
  static_assert(SLIDES || PIXELS == 1, "a thread has one output where taps aren't neighbours");
  static_assert(FILTERS % SLICES == 0 && FILTERS % 4 == 0, "slices finish whole filters, read four at a time");

  float* const image = dynamic_shared<float>();
  float* const filters = image + a.channels * a.deep * a.pitch;
  int index = blockIdx.x;
  const int left = index % a.across * WARP;
  index /= a.across;
  const int top = index % a.down * a.tall;
  index /= a.down;
  const int group = index % a.groups, number = index / a.groups;

  load_part(static_cast<const T*>(a.x) + number * a.x_step.image + (long long)group * a.channels * a.x_step.channel,
            a.x_step, {a.channels, a.channels, a.height, a.width, a.deep, a.pitch}, top * a.stride_row - a.pad_row,
            left * a.stride_column - a.pad_column, image);
  load_filters(a, static_cast<const T*>(a.weight) + a.weight_start + group * a.weight_group, filters);
  __syncthreads();

  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int slice = warp % SLICES, lot = warp / SLICES % a.lots;
  const int row = warp / SLICES / a.lots * PIXELS + lane / (WARP / PIXELS), column = lane % (WARP / PIXELS) * PIXELS;
  float sums[FILTERS][PIXELS] = {};
  for (int c = slice; c < a.channels; c += SLICES) {
    const float* const x = image + (c * a.deep + row * a.stride_row) * a.pitch + column * a.stride_column;
    const float* const w = filters + c * a.rows * a.columns * a.filter_pitch + lot * FILTERS;
    if constexpr (SLIDES) {
#pragma unroll
      for (int tap_row = 0; tap_row < ROWS; ++tap_row) {
        float seen[SEEN];
        read<SEEN, PIXELS>(x + tap_row * a.dilation_row * a.pitch, seen);
#pragma unroll
        for (int tap = 0; tap < COLUMNS; ++tap) {
          float factor[FILTERS];
          read<FILTERS, 4>(w + (tap_row * COLUMNS + tap) * a.filter_pitch, factor);
#pragma unroll
          for (int o = 0; o < FILTERS; ++o) {
#pragma unroll
            for (int p = 0; p < PIXELS; ++p) sums[o][p] = __fmaf_rn(factor[o], seen[tap + p], sums[o][p]);
          }
        }
      }
    } else {
      for (int tap_row = 0; tap_row < a.rows; ++tap_row) {
        for (int tap = 0; tap < a.columns; ++tap) {
          const float seen = x[tap_row * a.dilation_row * a.pitch + tap * a.dilation_column];
          float factor[FILTERS];
          read<FILTERS, 4>(w + (tap_row * a.columns + tap) * a.filter_pitch, factor);
#pragma unroll
          for (int o = 0; o < FILTERS; ++o) sums[o][0] = __fmaf_rn(factor[o], seen, sums[o][0]);
        }
      }
    }
  }

  // What slices found, [filter][slice][pixel of this thread]: each slice adds up some of the filters.
  if constexpr (SLICES > 1) {
    __syncthreads();
    const int threads = blockDim.x / SLICES, thread = warp / SLICES * WARP + lane;
#pragma unroll
    for (int o = 0; o < FILTERS; ++o) {
      Vector<float, PIXELS> some;
#pragma unroll
      for (int p = 0; p < PIXELS; ++p) some[p] = sums[o][p];
      store(image + ((o * SLICES + slice) * threads + thread) * PIXELS, some);
    }
    __syncthreads();
#pragma unroll
    for (int o = 0; o < OWN; ++o) {
#pragma unroll
      for (int s = 0; s < SLICES; ++s) {
        const Vector<float, PIXELS> some = load<PIXELS>(image + (((slice * OWN + o) * SLICES + s) * threads + thread) * PIXELS);
#pragma unroll
        for (int p = 0; p < PIXELS; ++p) sums[o][p] = s ? sums[o][p] + some[p] : some[p];
      }
    }
  }

  const int y = top + row, at = left + column;
  if (y >= a.out_height || at >= a.out_width) return;
#pragma unroll
  for (int o = 0; o < OWN; ++o) {
    const int filter = lot * FILTERS + slice * OWN + o;
    if (filter >= a.made) break;
    const long long channel = (long long)group * a.made + filter;
    const float shift = a.bias ? widen(static_cast<const T*>(a.bias)[channel * a.bias_step]) : 0.0f;
    T* const to = static_cast<T*>(a.out) + a.out_start + number * a.out_step.image + channel * a.out_step.channel +
                  y * a.out_step.row + at * a.out_step.column;
    if (a.whole) {
      Vector<T, PIXELS> some;
#pragma unroll
      for (int p = 0; p < PIXELS; ++p) some[p] = narrow<T>(sums[o][p] + shift);
      store(to, some);
    } else {
#pragma unroll
      for (int p = 0; p < PIXELS; ++p) {
        if (at + p < a.out_width) to[p * a.out_step.column] = narrow<T>(sums[o][p] + shift);
      }
    }
  }
}
