// sep_conv2d_backward: all three gradients of a band of an image, for some channels, in one block. What lies
// between the convolutions is made again from x. A block leaves its shares of the weights' gradients, and a
// second launch adds them up in fixed order.
#pragma once
#include "separable.cuh"

struct sep_conv2d_backward_args {
  const void* grad;
  const void* x;
  const void* filters;
  const void* points;
  void* x_grad;
  float* shares;  // [blocks of a chunk][filters, then points]
  separable::Band band;
};

namespace separable {

constexpr int IMAGE = 1, FILTERS = 2, POINTS = 4;

// A block's share: the first of its bands writes, the others add.
__device__ __forceinline__ void leave(float* share, float value, bool first) {
  *share = first ? value : *share + value;
}

// Sums of a channel's outputs' gradients, which are in zs, times what its taps saw.
template <int SIZE, int STRIDE, int DILATION>
__device__ __forceinline__ void filter_shares(float* shares, const float* zs, const float* xs, int count, int rows,
                                              bool first, const Band& b) {
  constexpr int TAPS = SIZE * SIZE;
  const int group = threadIdx.x / b.lanes, lane = threadIdx.x % b.lanes, groups = blockDim.x / b.lanes;
  for (int start = 0; start < count; start += groups) {  // a warp stays together for its sums
    const int channel = min(start + group, count - 1);
    const bool own = start + group < count;
    const float* const plane = xs + channel * b.x_rows * b.x_pitch;
    const float* const inner = zs + channel * b.z_rows * b.z_pitch;
    float sum[TAPS] = {};
    for (int strip = lane; strip < rows * b.strips; strip += b.lanes) {
      const int row = quotient(strip, b.by_strips), column = (strip - row * b.strips) * STRIP;
      const int left = b.out_width - column;
      float grad[STRIP];
#pragma unroll
      for (int j = 0; j < STRIP; ++j)
        grad[j] = j < left ? inner[row * STRIDE * b.z_pitch + (column + j) * STRIDE] : 0.0f;
      const float* const from = plane + row * STRIDE * b.x_pitch + column * STRIDE;
#pragma unroll
      for (int a = 0; a < SIZE; ++a) {
        Row<SIZE, STRIDE, DILATION> seen;
        seen.read(from + a * DILATION * b.x_pitch);
#pragma unroll
        for (int j = 0; j < STRIP; ++j) {
          if (j < left) {  // what no output saw may be NaN
#pragma unroll
            for (int t = 0; t < SIZE; ++t)
              sum[a * SIZE + t] = fmaf(grad[j], seen.at[j * STRIDE + t * DILATION], sum[a * SIZE + t]);
          }
        }
      }
    }
    add_over(sum, b.lanes, [&](int tap, float total) {
      if (own) leave(shares + channel * TAPS + tap, total, first);
    });
  }
}

// Sums over pixels of a gradient's channel times an inner channel, in tiles that neighbouring threads share.
__device__ __forceinline__ void point_shares(float* shares, const float* ys, const float* us, int outputs, int count,
                                             int pixels, bool first, const Band& b) {
  const int across = round_up(count) / STRIP, tiles = across * (round_up(outputs) / STRIP);
  for (int start = 0; start < tiles * b.splits; start += blockDim.x) {
    const int task = start + threadIdx.x, tile = min(task / b.splits, tiles - 1), split = task % b.splits;
    const int made = tile / across * STRIP, channel = tile % across * STRIP;
    float sum[STRIP * STRIP] = {};
#pragma unroll 2
    for (int p = split; p < pixels; p += b.splits) {
      float g[STRIP], u[STRIP];
#pragma unroll
      for (int i = 0; i < STRIP; ++i) {
        g[i] = ys[(made + i) * b.y_pitch + p];
        u[i] = us[(channel + i) * b.u_pitch + p];
      }
#pragma unroll
      for (int i = 0; i < STRIP * STRIP; ++i) sum[i] = fmaf(g[i / STRIP], u[i % STRIP], sum[i]);
    }
    add_over<STRIP * STRIP, STRIP * STRIP>(sum, b.splits, [&](int place, float total) {
      const int i = made + place / STRIP, j = channel + place % STRIP;
      if (task < tiles * b.splits && i < outputs && j < count) leave(shares + (long long)i * b.channels + j, total, first);
    });
  }
}

}  // namespace separable

// The work of the block with number `block` of `blocks` of a chunk of channels. A: a struct with grad, x, filters,
// points, x_grad and shares. `shared`: xs (chunk planes), zs (chunk planes: the inner gradient, with zeros between its elements where windows
// have a stride), ys (the gradient, tile by pixels), ws (tile by chunk), us (chunk by pixels) and fs (filters).
template <typename T, int SIZE, int STRIDE, int DILATION, typename A>
__device__ __forceinline__ void sep_conv2d_backward_bands(const A& a, const separable::Band& b, unsigned block,
                                                          unsigned blocks, unsigned chunk) {
  using namespace separable;
  constexpr int TAPS = SIZE * SIZE, REACH = (SIZE - 1) * DILATION;
  const int channel = chunk * b.chunk, count = min(b.chunk, b.channels - channel);
  float* const xs = dynamic_shared<float>();
  float* const zs = xs + b.chunk * b.x_rows * b.x_pitch;
  float* const ys = zs + b.chunk * b.z_rows * b.z_pitch;
  float* const ws = ys + b.tile * b.y_pitch;
  float* const us = ws + b.tile * b.w_pitch;
  float* const fs = us + round_up(b.chunk) * b.u_pitch;
  float* const shares = a.shares + (long long)block * b.channels * (TAPS + b.made);
  const T* const points = static_cast<const T*>(a.points);

  copy_filters<T, SIZE>(fs, static_cast<const T*>(a.filters), channel, count, b);

  for (int item = block; item < b.items; item += blocks) {
    const bool first = item == block;
    const int image = item / b.bands, index = item - image * b.bands;
    const int out = index * b.band, rows = min(b.band, b.out_height - out);
    // Rows of the image whose gradient is made here, and the rows of the output that saw them.
    const int top = min(out * STRIDE, b.height);
    const int bottom = index == b.bands - 1 ? b.height : min((out + rows) * STRIDE, b.height);
    const int origin = top + b.pad_row - REACH;  // the inner gradient's row that zs begins with
    const int from = origin > 0 ? (origin + STRIDE - 1) / STRIDE : 0;
    const int until = min(b.out_height, (bottom - 1 + b.pad_row) / STRIDE + 1);
    const T* const x = static_cast<const T*>(a.x) + image * b.x_step.image;

    const T* const grad = static_cast<const T*>(a.grad) + image * b.y_step.image + from * b.y_step.row;
    const int pixels = (until - from) * b.out_width, across = (pixels + STRIP - 1) / STRIP;
    const int corner = (from * STRIDE - origin) * b.z_pitch + REACH - b.pad_column;

    __syncthreads();
    clear(xs, count * b.x_rows * b.x_pitch);
    clear(zs, count * b.z_rows * b.z_pitch);
    __syncthreads();
    for (int start = 0; start < b.made; start += b.tile) {
      const int outputs = min(b.tile, b.made - start);
      if (start) __syncthreads();
      copy_band<T, true>(ys, b.y_pitch, b.out_width, grad + start * b.y_step.channel, b.y_step, outputs, until - from,
                         b.out_width, b.y_vectors, b.by_y, b.by_y_vectors, false);
      const T* const matrix = points + start * b.point_made + channel * b.point_channel;
      copy<T>(
          outputs * b.chunk,
          [&](int i) {
            const int made = quotient(i, b.by_inner), inner = min(i - made * b.chunk, count - 1);
            return matrix + made * b.point_made + inner * b.point_channel;
          },
          [&](int i) {
            const int made = quotient(i, b.by_inner);
            return ws + made * b.w_pitch + i - made * b.chunk;
          });
      if (!start) copy_image(xs, x, channel, count, out * STRIDE - b.pad_row, b);
      arrive();
      __syncthreads();
      if (!start && b.wanted & POINTS) depthwise_band<SIZE, STRIDE, DILATION>(us, xs, fs, count, rows, b);
      if (b.wanted & (IMAGE | FILTERS)) {
        for (int task = threadIdx.x; task < across * (round_up(count) / STRIP); task += blockDim.x) {
          const int down = task / across, pixel = (task - down * across) * STRIP;
          float sum[STRIP][STRIP] = {};
          multiply(ws + down * STRIP, b.w_pitch, ys + pixel, b.y_pitch, outputs, sum);
#pragma unroll
          for (int j = 0; j < STRIP; ++j) {
            if (pixel + j >= pixels) break;
            const int row = quotient(pixel + j, b.by_y), column = pixel + j - row * b.out_width;
            float* const to = zs + corner + row * STRIDE * b.z_pitch + column * STRIDE;
#pragma unroll
            for (int i = 0; i < STRIP; ++i) {
              const int inner = down * STRIP + i;
              if (inner >= count) break;
              float& place = to[inner * b.z_rows * b.z_pitch];
              place = start ? place + sum[i][j] : sum[i][j];
            }
          }
        }
      }
      __syncthreads();
      if (b.wanted & POINTS)
        point_shares(shares + (long long)b.channels * TAPS + (long long)start * b.channels + channel,
                     ys + (out - from) * b.out_width, us, outputs, count, rows * b.out_width, first, b);
    }
    if (b.wanted & FILTERS)
      filter_shares<SIZE, STRIDE, DILATION>(
          shares + channel * TAPS, zs + (out * STRIDE - origin) * b.z_pitch + REACH - b.pad_column, xs, count, rows,
          first, b);
    if (!(b.wanted & IMAGE)) continue;

    T* const x_grad = static_cast<T*>(a.x_grad) + image * b.z_step.image;
    const int strips = round_up(b.width) / STRIP, total = (bottom - top) * strips;
    const int group = threadIdx.x / b.lanes, lane = threadIdx.x % b.lanes;
    for (int inner = group; inner < count; inner += blockDim.x / b.lanes) {
      float weight[TAPS];
#pragma unroll
      for (int t = 0; t < TAPS; ++t) weight[t] = fs[inner * TAPS + TAPS - 1 - t];
      const float* const kept = xs + inner * b.x_rows * b.x_pitch + b.pad_column;
      const T* const seen = x + (channel + inner) * b.x_step.channel;
      T* const plane = x_grad + (channel + inner) * b.z_step.channel;
      for (int strip = lane; strip < total; strip += b.lanes) {
        const int row = quotient(strip, b.by_z_strips), column = (strip - row * strips) * STRIP;
        float sum[STRIP] = {};
        convolve<SIZE, 1, DILATION>(zs + (inner * b.z_rows + row) * b.z_pitch + column, b.z_pitch, weight, sum);
        const int at = row + top - (out * STRIDE - b.pad_row);  // its row in xs, if it is there
        T* const to = plane + (top + row) * b.z_step.row + column * b.z_step.column;
        if (b.relu) {
#pragma unroll
          for (int j = 0; j < STRIP; ++j) {
            if (column + j >= b.width) break;
            const float value = at < b.x_rows ? kept[at * b.x_pitch + column + j]
                                              : widen(seen[(top + row) * b.x_step.row + (column + j) * b.x_step.column]);
            if (value <= 0.0f) sum[j] = 0.0f;
          }
        }
        if (b.z_vectors && (reinterpret_cast<unsigned long long>(to) & (STRIP * sizeof(T) - 1)) == 0) {
          Vector<T, STRIP> four;
#pragma unroll
          for (int j = 0; j < STRIP; ++j) four[j] = narrow<T>(sum[j]);
          store(to, four);
        } else {
#pragma unroll
          for (int j = 0; j < STRIP; ++j) {
            if (column + j >= b.width) break;
            to[j * b.z_step.column] = narrow<T>(sum[j]);
          }
        }
      }
    }
  }
}

template <typename T, int SIZE, int STRIDE, int DILATION>
__device__ __forceinline__ void sep_conv2d_backward(const sep_conv2d_backward_args& a) {
  sep_conv2d_backward_bands<T, SIZE, STRIDE, DILATION>(a, a.band, blockIdx.x, gridDim.x, blockIdx.y);
}

struct sep_conv2d_totals_args {
  const float* shares;
  void* filters_grad;
  void* points_grad;
  long long filter_channel, filter_row, filter_column, point_made, point_channel;
  int rows, columns, taps, size, channels, first, last;  // first, last: the columns asked for
};

// Adds up what blocks left: 16 threads a column, in fixed order. `shared`: blockDim.x floats.
template <typename T>
__device__ __forceinline__ void sep_conv2d_totals(const sep_conv2d_totals_args& a) {
  constexpr int COLUMNS = 16;
  float* const shared = dynamic_shared<float>();
  const int column = a.first + blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
  const int part = threadIdx.x / COLUMNS, parts = blockDim.x / COLUMNS;
  float total = 0.0f;
  if (column < a.last) {
#pragma unroll 8
    for (int row = part; row < a.rows; row += parts) total += a.shares[(long long)row * a.columns + column];
  }
  shared[threadIdx.x] = total;
  __syncthreads();
  if (part || column >= a.last) return;
  for (int p = 1; p < parts; ++p) total += shared[p * COLUMNS + threadIdx.x];
  const int filters = a.channels * a.taps;
  if (column < filters) {
    const int channel = column / a.taps, tap = column % a.taps;
    static_cast<T*>(a.filters_grad)[channel * a.filter_channel + tap / a.size * a.filter_row +
                                    tap % a.size * a.filter_column] = narrow<T>(total);
  } else {
    const int made = (column - filters) / a.channels, channel = (column - filters) % a.channels;
    static_cast<T*>(a.points_grad)[made * a.point_made + channel * a.point_channel] = narrow<T>(total);
  }
}
