// Any filter, stride, padding, dilation and layout: a thread for each output, or for each tap's share.
#pragma once
#include "depthwise_filters.cuh"

namespace depthwise {

// A tensor's strides in elements.
struct Steps {
  long long image, channel, row, column;
};
// What a window is like, downwards and across.
struct Shape {
  int height, width, rows, columns;  // of what the window lies on; taps
  int stride_row, stride_column, pad_row, pad_column, dilation_row, dilation_column;
};

struct Place {
  long long image;
  int channel, row, column;
};
template <typename Index>
__device__ __forceinline__ Place place(Index i, int channels, int height, int width, bool channels_inside) {
  int channel = 0;
  if (channels_inside) {
    channel = i % channels;
    i /= channels;
  }
  const int column = i % width;
  i /= width;
  const int row = i % height;
  i /= height;
  if (!channels_inside) {
    channel = i % channels;
    i /= channels;
  }
  return {(long long)i, channel, row, column};
}

}  // namespace depthwise

struct depthwise_any_args {
  const void* from;
  const void* weight;
  void* out;
  long long total;  // outputs
  depthwise::Steps from_step, out_step;
  long long weight_channel, weight_row, weight_column;
  depthwise::Shape shape;
  int channels, height, width, channels_inside;  // of the outputs; which of them are neighbours
};

// IMAGE: makes the image's gradient from the output's, where a place belongs to the windows that see it.
template <typename T, bool IMAGE>
__device__ __forceinline__ void depthwise_any(const depthwise_any_args& a) {
  using namespace depthwise;
  const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= a.total) return;
  const bool inside = a.channels_inside;
  const Place at = a.total < 1ll << 31 ? place((unsigned)index, a.channels, a.height, a.width, inside)
                                       : place((unsigned long long)index, a.channels, a.height, a.width, inside);
  const Shape& s = a.shape;
  const T* from = static_cast<const T*>(a.from) + at.image * a.from_step.image + at.channel * a.from_step.channel;
  const T* weight = static_cast<const T*>(a.weight) + at.channel * a.weight_channel;
  float sum = 0.0f;
  for (int tap_row = 0; tap_row < s.rows; ++tap_row) {
    int row = IMAGE ? at.row + s.pad_row - tap_row * s.dilation_row
                    : at.row * s.stride_row - s.pad_row + tap_row * s.dilation_row;
    if (IMAGE && row % s.stride_row) continue;
    if (IMAGE) row /= s.stride_row;
    if (row < 0 || row >= s.height) continue;
    for (int tap_column = 0; tap_column < s.columns; ++tap_column) {
      int column = IMAGE ? at.column + s.pad_column - tap_column * s.dilation_column
                         : at.column * s.stride_column - s.pad_column + tap_column * s.dilation_column;
      if (IMAGE && column % s.stride_column) continue;
      if (IMAGE) column /= s.stride_column;
      if (column < 0 || column >= s.width) continue;
      sum = __fmaf_rn(widen(weight[tap_row * a.weight_row + tap_column * a.weight_column]),
                      widen(from[row * a.from_step.row + column * a.from_step.column]), sum);
    }
  }
  static_cast<T*>(a.out)[at.image * a.out_step.image + at.channel * a.out_step.channel +
                         at.row * a.out_step.row + at.column * a.out_step.column] = narrow<T>(sum);
}

struct depthwise_any_filter_args {
  const void* x;
  const void* grad;
  void* weight_grad;
  void* partials;
  void* tickets;
  depthwise::Steps x_step, grad_step;
  depthwise::FilterTarget target;
  long long terms;         // of a tap: the places of the output's gradient in a channel
  depthwise::Shape shape;  // on x
  int channels, height, width;  // of the output's gradient
  unsigned splits;         // blocks of a channel
};

// A few taps at a time, so that the output's gradient is read once for all of them.
template <typename T>
__device__ __forceinline__ void depthwise_any_filter(const depthwise_any_filter_args& a) {
  using namespace depthwise;
  constexpr int FEW = 8;
  const Shape& s = a.shape;
  const int channel = blockIdx.x % a.channels, taps = s.rows * s.columns;
  const unsigned split = blockIdx.x / a.channels;
  const T* x = static_cast<const T*>(a.x) + channel * a.x_step.channel;
  const T* grad = static_cast<const T*>(a.grad) + channel * a.grad_step.channel;
  float* partials = static_cast<float*>(a.partials) + (long long)channel * a.splits * taps;
  for (int first = 0; first < taps; first += FEW) {
    float sum[FEW] = {};
    int down[FEW], right[FEW];
#pragma unroll
    for (int i = 0; i < FEW; ++i) {
      const int tap = min(first + i, taps - 1);
      down[i] = tap / s.columns * s.dilation_row - s.pad_row;
      right[i] = tap % s.columns * s.dilation_column - s.pad_column;
    }
    for (long long i = (long long)split * blockDim.x + threadIdx.x; i < a.terms; i += (long long)a.splits * blockDim.x) {
      const Place at = a.terms < 1ll << 31 ? place((unsigned)i, 1, a.height, a.width, false)
                                           : place((unsigned long long)i, 1, a.height, a.width, false);
      const float g = widen(grad[at.image * a.grad_step.image + at.row * a.grad_step.row +
                                 at.column * a.grad_step.column]);
#pragma unroll
      for (int i = 0; i < FEW; ++i) {
        const int row = at.row * s.stride_row + down[i], column = at.column * s.stride_column + right[i];
        if (row >= 0 && row < s.height && column >= 0 && column < s.width)
          sum[i] = __fmaf_rn(g, widen(x[at.image * a.x_step.image + row * a.x_step.row +
                                        column * a.x_step.column]), sum[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < FEW; ++i) {
      const float total = sum_of_block(sum[i]);
      if (threadIdx.x == 0 && first + i < taps) partials[(long long)split * taps + first + i] = total;
    }
  }
  if (!last_to_arrive(static_cast<unsigned*>(a.tickets) + channel, a.splits)) return;
  T* to = static_cast<T*>(a.weight_grad) + channel * a.target.channel;
  for (int tap = threadIdx.x; tap < taps; tap += blockDim.x) {
    float sum = 0.0f;
    for (unsigned from = 0; from < a.splits; ++from) sum += __ldcg(partials + (long long)from * taps + tap);
    to[tap / a.target.width * a.target.row + tap % a.target.width * a.target.column] = narrow<T>(sum);
  }
}
