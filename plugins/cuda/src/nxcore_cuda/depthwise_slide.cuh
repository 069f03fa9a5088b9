// A window slides down a strip of an image's plane, a row at a time: what is seen of a row is loaded once and
// serves all outputs that see it. No shared memory holds the image; neighbours meet in the first-level cache.
#pragma once
#include "depthwise_filters.cuh"
#include "depthwise_rows.cuh"

// Strides in elements. The window slides over one tensor and stands where the elements of `own` and `out` are.
struct depthwise_slide_args {
  const void* window;
  const void* weight;
  const void* own;
  void* out;
  void* weight_grad;
  void* partials;
  void* tickets;
  long long window_image, window_channel, own_image, own_channel, out_image, out_channel;
  long long weight_channel;
  depthwise::FilterTarget target;
  int window_row, own_row, channels;
  int window_height, window_width, out_height, out_width, pad_row, pad_column;
  unsigned units, plane_units, row_units;  // threads' strips: of a channel in all images, of a plane, in a row
  unsigned chunks, splits;                 // blocks' shares of a channel's strips; blocks of a channel
  depthwise::Divisor by_channels, by_plane, by_row;
};

namespace depthwise {

// What a launch does: bits.
constexpr int CONVOLVES = 1;  // writes `out`, the window times the filter
constexpr int SUMS = 2;       // adds up the filter's gradient, the window times `own`
constexpr int TURNED = 4;     // the window slides over the output's gradient, and the filter is turned round

// K, S, D: filter, stride, dilation. A thread makes COLUMNS by ROWS outputs, moves LOAD elements at once and
// keeps AHEAD rows in flight.
template <typename T, int ROLE, int K, int S, int D, int COLUMNS, int LOAD, int ROWS, int AHEAD>
__device__ __forceinline__ void slide(const depthwise_slide_args& a, const unsigned block) {
  constexpr bool CONVOLVING = ROLE & CONVOLVES, SUMMING = ROLE & SUMS, TURNING = ROLE & TURNED;
  // A thread's outputs are APART rows from each other, or each would see D times the rows that it needs; from
  // one to the next its window moves by STEP of the rows, D apart, that it sees.
  constexpr int APART = S == 1 ? D : 1, STEP = S % D == 0 ? S / D : 1;
  constexpr int SEEN = STEP * (ROWS - 1) + K, RING = AHEAD < SEEN ? AHEAD : SEEN;
  using WindowRow = Row<T, K, S, D, COLUMNS, LOAD>;

  const unsigned split = quotient(block, a.by_channels);
  const int channel = block - split * a.channels;
  float taps[K * K], gradient[SUMMING ? K * K : 1] = {};
  if constexpr (CONVOLVING) {
    const T* weight = static_cast<const T*>(a.weight) + channel * a.weight_channel;
#pragma unroll
    for (int i = 0; i < K * K; ++i) taps[i] = widen(weight[TURNING ? K * K - 1 - i : i]);
  }

  unsigned chunk = split;
  do {
    const unsigned unit = chunk * blockDim.x + threadIdx.x;
    const bool busy = unit < a.units;
    const unsigned image = quotient(busy ? unit : 0, a.by_plane);
    const unsigned place = (busy ? unit : 0) - image * a.plane_units;
    const int strip = quotient(place, a.by_row);
    const int column = (place - strip * a.row_units) * COLUMNS;
    const int row = strip / APART * (APART * ROWS) + strip % APART;
    const int seen = row * S - a.pad_row;
    const int height = busy ? a.window_height : 0, out_height = busy ? a.out_height : 0;
    const T* from = static_cast<const T*>(a.window) + image * a.window_image + channel * a.window_channel +
                    (long long)seen * a.window_row + column * S;
    const T* own = static_cast<const T*>(a.own);
    if constexpr (SUMMING)
      own += image * a.own_image + channel * a.own_channel + (long long)row * a.own_row + column;
    T* out = static_cast<T*>(a.out);
    if constexpr (CONVOLVING)
      out += image * a.out_image + channel * a.out_channel + (long long)row * a.out_width + column;

    WindowRow ring[RING];
    Own<T, COLUMNS, LOAD> mine[SUMMING ? ROWS : 1];
    float sum[ROWS][COLUMNS] = {};
    auto fetch = [&](int t) {
      ring[t % RING].load(from + t * (long long)a.window_row * D, column * S, a.window_width, a.pad_column,
                          (unsigned)(seen + t * D) < (unsigned)height);
      if constexpr (SUMMING)
        if (t % STEP == 0 && t / STEP < ROWS) {
          const int k = t / STEP * APART;
          mine[t / STEP].load(own + k * (long long)a.own_row, column, a.out_width, row + k < out_height);
        }
    };
#pragma unroll
    for (int t = 0; t < RING; ++t) fetch(t);
#pragma unroll
    for (int t = 0; t < SEEN; ++t) {
      float value[WindowRow::WIDTH];
#pragma unroll
      for (int i = 0; i < WindowRow::WIDTH; ++i) value[i] = ring[t % RING][i];
      if (t + RING < SEEN) fetch(t + RING);
#pragma unroll
      for (int tap = 0; tap < K; ++tap) {
        const int k = (t - tap) / STEP;
        if (t < tap || (t - tap) % STEP != 0 || k >= ROWS) continue;
        if constexpr (CONVOLVING)
#pragma unroll
          for (int b = 0; b < K; ++b)
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) sum[k][j] = __fmaf_rn(taps[tap * K + b], value[S * j + D * b], sum[k][j]);
        if constexpr (SUMMING)
#pragma unroll
          for (int b = 0; b < K; ++b)
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
              float& to = gradient[tap * K + b];
              to = __fmaf_rn(mine[k][j], value[S * j + D * b], to);
            }
        if constexpr (CONVOLVING)
          if (tap == K - 1 && row + k * APART < out_height) {
#pragma unroll
            for (int j = 0; j < COLUMNS; j += LOAD)
              if (column + j < a.out_width)
                write<T, LOAD>(out + (long long)(k * APART) * a.out_width + j, &sum[k][j]);
          }
      }
    }
    chunk += a.splits;
  } while (ROLE != CONVOLVES && chunk < a.chunks);

  if constexpr (SUMMING) {
    const T* own = static_cast<const T*>(a.own) + channel * a.own_channel;
    const T* window = static_cast<const T*>(a.window) + channel * a.window_channel;
    const long long images = (a.units + a.plane_units - 1) / a.plane_units;
    auto exact = [&](int tap) {
      const int down = tap / K * D - a.pad_row, right = tap % K * D - a.pad_column;
      float sum = 0.0f;
      for (long long i = threadIdx.x; i < images * a.out_height * a.out_width; i += blockDim.x) {
        const int column = i % a.out_width, row = i / a.out_width % a.out_height;
        const long long image = i / a.out_width / a.out_height;
        const int y = row * S + down, x = column * S + right;
        if (y < 0 || y >= a.window_height || x < 0 || x >= a.window_width) continue;
        sum = __fmaf_rn(widen(own[image * a.own_image + (long long)row * a.own_row + column]),
                        widen(window[image * a.window_image + (long long)y * a.window_row + x]), sum);
      }
      return sum;
    };
    finish_filter<T, K * K, TURNING>(gradient, channel, split, a.splits, a.weight_grad, a.partials, a.tickets,
                                          a.target, exact);
  }
}

}  // namespace depthwise

template <typename T, int ROLE, int K, int S, int D, int COLUMNS, int LOAD, int ROWS, int AHEAD>
__device__ __forceinline__ void depthwise_slide(const depthwise_slide_args& a) {
  depthwise::slide<T, ROLE, K, S, D, COLUMNS, LOAD, ROWS, AHEAD>(a, blockIdx.x);
}

// Both gradients in one launch where no thread has the registers for both: blocks take turns.
template <typename T, int ROLE, int K, int S, int D, int COLUMNS, int LOAD, int ROWS, int AHEAD>
__device__ __forceinline__ void depthwise_slide_pair(const depthwise_slide_args& a) {
  using namespace depthwise;
  if (blockIdx.x % 2)
    slide<T, CONVOLVES | TURNED, K, S, D, COLUMNS, LOAD, ROWS, AHEAD>(a, blockIdx.x / 2);
  else
    slide<T, SUMS | TURNED, K, S, D, COLUMNS, LOAD, ROWS, AHEAD>(a, blockIdx.x / 2);
}
