// sep_conv2d: ReLU, a depthwise convolution and a 1x1 convolution of a band of an image, in one block.
#pragma once
#include "moments.cuh"
#include "separable.cuh"

struct sep_conv2d_args {
  const void* x;
  const void* filters;
  const void* points;
  void* out;
  float* shares;  // [channel][block] of moments, if they are wanted
  separable::Band band;
};

namespace separable {

using moments::Moments;

constexpr int FEWEST = 8, GROUPS = 32;  // lanes that have the same channels, at least; groups of them, at most

// The sum over `lanes` neighbouring threads, in each of them.
__device__ __forceinline__ float over(float x, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
  return x;
}

// Some pixels of four channels, one after the other.
struct Four {
  float count, mean[STRIP], squares[STRIP];

  // Puts the first `some` pixels of a tile to them.
  __device__ __forceinline__ void add(const float (&tile)[STRIP][STRIP], int some) {
    const float all = count + some, share = 1.0f / some, inverse = 1.0f / all;
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
      float sum = 0.0f, own = 0.0f;
#pragma unroll
      for (int j = 0; j < STRIP; ++j) sum += j < some ? tile[i][j] : 0.0f;
      const float middle = sum * share, joint = (count * mean[i] + sum) * inverse;
#pragma unroll
      for (int j = 0; j < STRIP; ++j) own += j < some ? (tile[i][j] - middle) * (tile[i][j] - middle) : 0.0f;
      const float of_this = mean[i] - joint, of_that = middle - joint;
      squares[i] += own + count * of_this * of_this + some * of_that * of_that;
      mean[i] = joint;
    }
    count = all;
  }

  // Makes them those of `lanes` neighbouring threads.
  __device__ __forceinline__ void join(int lanes) {
    const float all = over(count, lanes), inverse = all > 0.0f ? 1.0f / all : 0.0f;
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
      const float joint = over(count * mean[i], lanes) * inverse, off = mean[i] - joint;
      squares[i] = over(squares[i] + count * off * off, lanes);
      mean[i] = joint;
    }
    count = all;
  }
};

// What the groups of lanes found. One array for all windows of a kernel: shared memory is what blocks lack.
__device__ __forceinline__ Moments (&found_by_groups())[GROUPS][STRIP] {
  __shared__ Moments found[GROUPS][STRIP];
  return found;
}

// Calls make(down, strip, tile) for every tile of a product and leaves the moments of each of `count` channels, those
// of the block with number `block` of `blocks`: the lanes of a group have the same four channels, and there may be
// several groups for them.
template <typename Make>
__device__ __forceinline__ void make_with_moments(int count, int across, int pixels, float* shares, unsigned block,
                                                  unsigned blocks, Make make) {
  Moments(&found)[GROUPS][STRIP] = found_by_groups();
  int lanes = FEWEST;
  while (lanes < WARP && (lanes < across || (int)blockDim.x > lanes * GROUPS)) lanes *= 2;
  const int downs = round_up(count) / STRIP, groups = blockDim.x / lanes, group = threadIdx.x / lanes;
  const int lane = threadIdx.x - group * lanes, parts = max(groups / downs, 1), slots = groups / parts;
  const int slot = group / parts, part = group - slot * parts;
  for (int base = 0; base < downs; base += slots) {
    const int down = base + slot;
    Four four = {};
    if (slot < slots && down < downs) {
      for (int strip = part * lanes + lane; strip < across; strip += parts * lanes) {
        float tile[STRIP][STRIP] = {};
        make(down, strip, tile);
        four.add(tile, min(pixels - strip * STRIP, STRIP));
      }
    }
    four.join(lanes);
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < STRIP; ++i) found[group][i] = {four.count, four.mean[i], four.squares[i]};
    }
    __syncthreads();
    for (int i = threadIdx.x; i < slots * STRIP; i += blockDim.x) {
      const int channel = base * STRIP + i;
      if (channel >= count) continue;
      const int first = i / STRIP * parts;
      Moments all = found[first][i % STRIP];
      for (int p = 1; p < parts; ++p) all = moments::together(all, found[first + p][i % STRIP]);
      moments::leave(shares, (long long)channel * blocks + block, all);
    }
    __syncthreads();
  }
}

}  // namespace separable

// The work of the block with number `block` of `blocks`. A: a struct with x, filters, points, out and shares.
// `shared`: xs (chunk planes), fs (their filters), us (channels by pixels), ws (channels by tile).
template <typename T, int SIZE, int STRIDE, int DILATION, bool MOMENTS, typename A>
__device__ __forceinline__ void sep_conv2d_band(const A& a, const separable::Band& b, unsigned block, unsigned blocks) {
  using namespace separable;
  float* const xs = dynamic_shared<float>();
  float* const us = xs + b.chunk * b.x_rows * b.x_pitch;
  float* const ws = us + b.channels * b.u_pitch;
  float* const fs = ws + b.channels * b.w_pitch;
  const int image = block / b.bands, first = (block - image * b.bands) * b.band;
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
    const auto make = [&](int down, int strip, float (&sum)[STRIP][STRIP]) {
      const int pixel = strip * STRIP, left = pixels - pixel;
      multiply(ws + down * STRIP, b.w_pitch, us + pixel, b.u_pitch, b.channels, sum);
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
    };
    if constexpr (MOMENTS) {
      make_with_moments(count, across, pixels, a.shares + 4LL * start * blocks, block, blocks, make);
    } else {
      for (int task = threadIdx.x; task < across * (round_up(count) / STRIP); task += blockDim.x) {
        const int down = task / across;
        float sum[STRIP][STRIP] = {};
        make(down, task - down * across, sum);
      }
    }
  }
}

template <typename T, int SIZE, int STRIDE, int DILATION, bool MOMENTS = false>
__device__ __forceinline__ void sep_conv2d(const sep_conv2d_args& a) {
  sep_conv2d_band<T, SIZE, STRIDE, DILATION, MOMENTS>(a, a.band, blockIdx.x, gridDim.x);
}
