// sep_conv2d: ReLU, a depthwise convolution and a 1x1 convolution of a band of an image, in one block.
#pragma once
#include "separable.cuh"

struct sep_conv2d_args {
  const void* x;
  const void* filters;
  const void* points;
  void* out;
  separable::Band band;
};

// `shared`: xs (chunk planes), fs (their filters), us (channels by pixels), ws (channels by tile).
template <typename T, int SIZE, int STRIDE, int DILATION>
__device__ __forceinline__ void sep_conv2d(const sep_conv2d_args& a) {
  using namespace separable;
  const Band& b = a.band;
  float* const xs = dynamic_shared<float>();
  float* const us = xs + b.chunk * b.x_rows * b.x_pitch;
  float* const ws = us + b.channels * b.u_pitch;
  float* const fs = ws + b.channels * b.w_pitch;
  const int image = blockIdx.x / b.bands, first = (blockIdx.x - image * b.bands) * b.band;
  const int rows = min(b.band, b.out_height - first), pixels = rows * b.out_width;
  const T* const x = static_cast<const T*>(a.x) + image * b.x_step.image;
  const T* const points = static_cast<const T*>(a.points);
  T* const out = static_cast<T*>(a.out) + image * b.y_step.image;

  const auto copy_points = [&](int start) {
    copy<T>(
        min(b.tile, b.made - start) * b.channels,
        [&](int i) {
          const int made = quotient(i, b.by_inner);
          return points + (start + made) * b.point_made + (i - made * b.channels) * b.point_channel;
        },
        [&](int i) {
          const int made = quotient(i, b.by_inner);
          return ws + (i - made * b.channels) * b.w_pitch + made;
        });
  };

  copy_points(0);
  for (int channel = 0; channel < b.channels; channel += b.chunk) {
    const int count = min(b.chunk, b.channels - channel);
    __syncthreads();
    copy_filters<T, SIZE>(fs, static_cast<const T*>(a.filters), channel, count, b);
    clear(xs, count * b.x_rows * b.x_pitch);
    __syncthreads();
    copy_image(xs, x, channel, count, first * STRIDE - b.pad_row, b);
    arrive();
    __syncthreads();
    depthwise_band<SIZE, STRIDE, DILATION>(us + channel * b.u_pitch, xs, fs, count, rows, b);
  }

  const int across = (pixels + STRIP - 1) / STRIP;
  const bool packed = b.y_step.column == 1 && b.y_step.row == b.out_width;
  for (int start = 0; start < b.made; start += b.tile) {
    const int count = min(b.tile, b.made - start);
    if (start) {
      __syncthreads();
      copy_points(start);
      arrive();
    }
    __syncthreads();
    for (int task = threadIdx.x; task < across * (round_up(count) / STRIP); task += blockDim.x) {
      const int down = task / across, pixel = (task - down * across) * STRIP;
      float sum[STRIP][STRIP] = {};
      multiply(ws + down * STRIP, b.w_pitch, us + pixel, b.u_pitch, b.channels, sum);
      const int left = pixels - pixel;
#pragma unroll
      for (int i = 0; i < STRIP; ++i) {
        const int made = start + down * STRIP + i;
        if (made >= b.made) break;
        T* const plane = out + made * b.y_step.channel;
        T* const to = plane + (long long)first * b.out_width + pixel;
        if (packed && left >= STRIP && (reinterpret_cast<unsigned long long>(to) & (STRIP * sizeof(T) - 1)) == 0) {
          Vector<T, STRIP> four;
#pragma unroll
          for (int j = 0; j < STRIP; ++j) four[j] = narrow<T>(sum[i][j]);
          store(to, four);
        } else {
#pragma unroll
          for (int j = 0; j < STRIP; ++j) {
            if (j >= left) break;
            const int row = quotient(pixel + j, b.by_y);
            plane[(first + row) * b.y_step.row + (pixel + j - row * b.out_width) * b.y_step.column] =
                narrow<T>(sum[i][j]);
          }
        }
      }
    }
  }
}
