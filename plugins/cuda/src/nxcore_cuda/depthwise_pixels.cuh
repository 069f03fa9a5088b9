// A window slides down a strip of pixels, for a few neighbouring channels: where channels are neighbours in
// memory, a warp reads whole pixels, and each thread keeps its channels' filters in registers.
#pragma once
#include "depthwise_filters.cuh"
#include "depthwise_rows.cuh"

// Strides in elements; that from channel to channel is 1. As in depthwise_slide_args, the window slides over one
// tensor and stands where the pixels of `own` and `out` are.
struct depthwise_pixels_args {
  const void* window;
  const void* weight;
  const void* own;
  void* out;
  void* partials;  // of each split, for each tap, of each channel
  long long window_image, own_image, out_image, weight_channel;
  int window_row, window_column, own_row, own_column, out_row, out_column, channels;
  int window_height, window_width, out_height, out_width, pad_row, pad_column;
  unsigned units, plane_units, row_units;  // strips: in all images, of an image, in a row
  unsigned chunks, splits, tiles;          // blocks' shares of the strips; blocks of a tile of channels; tiles
  depthwise::Divisor by_tiles, by_plane, by_row;
};

namespace depthwise {

constexpr int CONVOLVES_PIXELS = 1, SUMS_PIXELS = 2, TURNED_PIXELS = 4;  // what a launch does: bits

}  // namespace depthwise

// ROLE, K, S, D, ROWS, AHEAD: as in depthwise_slide. A thread makes COLUMNS by ROWS outputs of CHANNELS
// channels; a block has a thread for each group of channels of a tile (x), and for several strips (y).
template <typename T, int ROLE, int K, int S, int D, int CHANNELS, int COLUMNS, int ROWS, int AHEAD>
__device__ __forceinline__ void depthwise_pixels(const depthwise_pixels_args& a) {
  using namespace depthwise;
  constexpr bool CONVOLVING = ROLE & CONVOLVES_PIXELS, SUMMING = ROLE & SUMS_PIXELS, TURNING = ROLE & TURNED_PIXELS;
  // A thread's outputs are APART rows and columns from each other, or each would see D times what it needs; from
  // one to the next its window moves by STEP of the rows and columns, D apart, that it sees.
  constexpr int APART = S == 1 ? D : 1, STEP = S % D == 0 ? S / D : 1, TAPS = K * K;
  constexpr int SEEN = STEP * (ROWS - 1) + K, WIDTH = STEP * (COLUMNS - 1) + K, RING = AHEAD < SEEN ? AHEAD : SEEN;
  using Pixel = Packed<T, CHANNELS>;

  const unsigned split = quotient(blockIdx.x, a.by_tiles);
  const int tile = (blockIdx.x - split * a.tiles) * blockDim.x * CHANNELS;
  const int channel = tile + threadIdx.x * CHANNELS;
  const bool wanted = channel < a.channels;
  float taps[TAPS][CHANNELS], gradient[SUMMING ? TAPS : 1][CHANNELS] = {};
  if constexpr (CONVOLVING) {
    const T* weight = static_cast<const T*>(a.weight) + channel * a.weight_channel;
    Pixel packed[TAPS];  // the channels' filters follow each other
#pragma unroll
    for (int i = 0; i < TAPS; ++i) packed[i].load(weight + i * CHANNELS, wanted);
#pragma unroll
    for (int i = 0; i < TAPS; ++i)
#pragma unroll
      for (int c = 0; c < CHANNELS; ++c) {
        const int at = c * TAPS + (TURNING ? TAPS - 1 - i : i);
        taps[i][c] = packed[at / CHANNELS][at % CHANNELS];
      }
  }

  for (unsigned chunk = split; chunk < a.chunks; chunk += a.splits) {
    const unsigned unit = chunk * blockDim.y + threadIdx.y;
    const bool busy = wanted && unit < a.units;
    const unsigned image = quotient(busy ? unit : 0, a.by_plane);
    const unsigned place = (busy ? unit : 0) - image * a.plane_units;
    const int strip = quotient(place, a.by_row), group = place - strip * a.row_units;
    const int row = strip / APART * (APART * ROWS) + strip % APART;
    const int column = group / APART * (APART * COLUMNS) + group % APART;
    const int seen = row * S - a.pad_row, left = column * S - a.pad_column;
    const int height = busy ? a.window_height : 0, out_height = busy ? a.out_height : 0;
    const T* from = static_cast<const T*>(a.window) + image * a.window_image + (long long)seen * a.window_row +
                    (long long)left * a.window_column + channel;
    const T* own = static_cast<const T*>(a.own);
    if constexpr (SUMMING)
      own += image * a.own_image + (long long)row * a.own_row + (long long)column * a.own_column + channel;
    T* out = static_cast<T*>(a.out);
    if constexpr (CONVOLVING)
      out += image * a.out_image + (long long)row * a.out_row + (long long)column * a.out_column + channel;

    Pixel ring[RING][WIDTH], mine[SUMMING ? ROWS : 1][COLUMNS];
    float sum[ROWS][COLUMNS][CHANNELS] = {};
    auto fetch = [&](int t) {
      const bool inside = (unsigned)(seen + t * D) < (unsigned)height;
#pragma unroll
      for (int i = 0; i < WIDTH; ++i)
        ring[t % RING][i].load(from + t * D * (long long)a.window_row + i * D * (long long)a.window_column,
                               inside && (unsigned)(left + i * D) < (unsigned)a.window_width);
      if constexpr (SUMMING)
        if (t % STEP == 0 && t / STEP < ROWS) {
          const int k = t / STEP;
#pragma unroll
          for (int j = 0; j < COLUMNS; ++j)
            mine[k][j].load(own + k * APART * (long long)a.own_row + j * APART * (long long)a.own_column,
                            row + k * APART < out_height && column + j * APART < a.out_width);
        }
    };
#pragma unroll
    for (int t = 0; t < RING; ++t) fetch(t);
#pragma unroll
    for (int t = 0; t < SEEN; ++t) {
      float value[WIDTH][CHANNELS];
#pragma unroll
      for (int i = 0; i < WIDTH; ++i)
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) value[i][c] = ring[t % RING][i][c];
      if (t + RING < SEEN) fetch(t + RING);
#pragma unroll
      for (int tap = 0; tap < K; ++tap) {
        const int k = (t - tap) / STEP;
        if (t < tap || (t - tap) % STEP != 0 || k >= ROWS) continue;
#pragma unroll
        for (int b = 0; b < K; ++b)
#pragma unroll
          for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
              const float seen_value = value[STEP * j + b][c];
              if constexpr (CONVOLVING) sum[k][j][c] = __fmaf_rn(taps[tap * K + b][c], seen_value, sum[k][j][c]);
              if constexpr (SUMMING) {
                float& to = gradient[tap * K + b][c];
                to = __fmaf_rn(mine[k][j][c], seen_value, to);
              }
            }
        if constexpr (CONVOLVING)
          if (tap == K - 1 && row + k * APART < out_height) {
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j)
              if (column + j * APART < a.out_width)
                write<T, CHANNELS>(
                    out + k * APART * (long long)a.out_row + j * APART * (long long)a.out_column, sum[k][j]);
          }
      }
    }
  }

  if constexpr (SUMMING) {
    // A row of taps at a time, over the threads of the same channels.
    float* kept = dynamic_shared<float>();
    const int width = blockDim.x * CHANNELS, threads = blockDim.x * blockDim.y;
    float* partials = static_cast<float*>(a.partials) + (long long)split * TAPS * a.channels + tile;
#pragma unroll
    for (int tap = 0; tap < K; ++tap) {
      __syncthreads();
#pragma unroll
      for (int b = 0; b < K; ++b)
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c)
          kept[(b * blockDim.y + threadIdx.y) * width + threadIdx.x * CHANNELS + c] = gradient[tap * K + b][c];
      __syncthreads();
#pragma unroll 1
      for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < K * width; i += threads) {
        const int b = i / width, c = i - b * width;
        float total = 0.0f;
#pragma unroll 4
        for (unsigned y = 0; y < blockDim.y; ++y) total += kept[(b * blockDim.y + y) * width + c];
        if (tile + c < a.channels) partials[(long long)(tap * K + b) * a.channels + c] = total;
      }
    }
  }
}

struct depthwise_pixels_finish_args {
  const void* partials;
  const void* window;
  const void* own;
  void* weight_grad;
  long long window_image, own_image;
  depthwise::FilterTarget target;
  int window_row, window_column, own_row, own_column, channels;
  int window_height, window_width, out_height, out_width, pad_row, pad_column;
  int images, splits;
};

// Adds up the splits' sums: a warp for as many sums, all threads of a lane for one.
template <typename T, int K, int S, int D, bool TURNING>
__device__ __forceinline__ void depthwise_pixels_finish(const depthwise_pixels_finish_args& a) {
  using namespace depthwise;
  constexpr int TAPS = K * K, WARPS = 32;
  __shared__ float kept[WARPS][WARP];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
  const int sums = TAPS * a.channels, first = blockIdx.x * WARP;
  const float* partials = static_cast<const float*>(a.partials) + first + lane;
  float sum = 0.0f;
  if (first + lane < sums) {
#pragma unroll 8
    for (int split = warp; split < a.splits; split += warps) sum += partials[(long long)split * sums];
  }
  kept[warp][lane] = sum;
  __syncthreads();
  if (warp == 0) {
    for (int i = 1; i < warps; ++i) sum += kept[i][lane];
    kept[0][lane] = sum;
  }
  if (__syncthreads_or(warp == 0 && is_nan(sum))) {
    // Sum anew without what lies beside the image, where a zero times an infinity or NaN was added.
#pragma unroll 1
    for (int i = 0; i < WARP && first + i < sums; ++i) {
      if (!is_nan(kept[0][i])) continue;
      const int tap = (first + i) / a.channels, channel = (first + i) % a.channels;
      const int down = tap / K * D - a.pad_row, right = tap % K * D - a.pad_column;
      float exact = 0.0f;
      for (long long at = threadIdx.x; at < (long long)a.images * a.out_height * a.out_width; at += blockDim.x) {
        const int column = at % a.out_width, row = at / a.out_width % a.out_height;
        const long long image = at / a.out_width / a.out_height;
        const int y = row * S + down, x = column * S + right;
        if (y < 0 || y >= a.window_height || x < 0 || x >= a.window_width) continue;
        exact = __fmaf_rn(
            widen(static_cast<const T*>(a.own)[image * a.own_image + (long long)row * a.own_row +
                                               (long long)column * a.own_column + channel]),
            widen(static_cast<const T*>(a.window)[image * a.window_image + (long long)y * a.window_row +
                                                  (long long)x * a.window_column + channel]),
            exact);
      }
      exact = sum_of_block(exact);
      if (threadIdx.x == 0) kept[0][i] = exact;
      __syncthreads();
    }
  }
  if (warp == 0 && first + lane < sums) {
    const int tap = (first + lane) / a.channels, channel = (first + lane) % a.channels;
    const int to = TURNING ? TAPS - 1 - tap : tap;
    static_cast<T*>(a.weight_grad)[channel * a.target.channel + to / K * a.target.row + to % K * a.target.column] =
        narrow<T>(kept[0][lane]);
  }
}
