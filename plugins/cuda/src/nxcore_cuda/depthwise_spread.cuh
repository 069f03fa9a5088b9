// The image's gradient where the stride is 2: each row of the output's gradient spreads over the rows that it
// came from. Which taps meet at a place depends on whether its row and column are even, known when compiling.
#pragma once
#include "depthwise_rows.cuh"

// Strides in elements.
struct depthwise_spread_args {
  const void* grad;
  const void* weight;
  void* out;
  long long grad_image, grad_channel, out_image, out_channel, weight_channel;
  int grad_row, channels, grad_height, grad_width, out_height, out_width;
  unsigned units, plane_units, row_units;  // threads' strips: of a channel in all images, of a plane, in a row
  depthwise::Divisor by_channels, by_plane, by_row;
};

// The padding is half the filter's reach. A thread makes 2 COLUMNS by 2 ROWS places.
template <typename T, int K, int D, int COLUMNS, int LOAD, int ROWS, int AHEAD>
__device__ __forceinline__ void depthwise_spread(const depthwise_spread_args& a) {
  using namespace depthwise;
  constexpr int PAD = D * (K - 1) / 2, BESIDE = (PAD + 1) / 2, ABOVE = PAD / 2;
  constexpr int SEEN = ROWS + ABOVE + BESIDE, RING = AHEAD < SEEN ? AHEAD : SEEN;
  using WindowRow = Row<T, 2 * BESIDE + 1, 1, 1, COLUMNS, LOAD>;

  const unsigned chunk = quotient(blockIdx.x, a.by_channels);
  const int channel = blockIdx.x - chunk * a.channels;
  const T* weight = static_cast<const T*>(a.weight) + channel * a.weight_channel;
  float taps[K * K];
#pragma unroll
  for (int i = 0; i < K * K; ++i) taps[i] = widen(weight[i]);

  const unsigned unit = chunk * blockDim.x + threadIdx.x;
  const bool busy = unit < a.units;
  const unsigned image = quotient(busy ? unit : 0, a.by_plane);
  const unsigned place = (busy ? unit : 0) - image * a.plane_units;
  const int strip = quotient(place, a.by_row);
  const int column = (place - strip * a.row_units) * COLUMNS, row = strip * ROWS;
  const int seen = row - ABOVE, height = busy ? a.grad_height : 0, out_height = busy ? a.out_height : 0;
  const T* from = static_cast<const T*>(a.grad) + image * a.grad_image + channel * a.grad_channel +
                  (long long)seen * a.grad_row + column;
  T* out = static_cast<T*>(a.out) + image * a.out_image + channel * a.out_channel +
           2 * (long long)row * a.out_width + 2 * column;

  WindowRow ring[RING];
  float sum[2 * ROWS][2 * COLUMNS] = {};
  auto fetch = [&](int t) {
    ring[t % RING].load(from + t * (long long)a.grad_row, column, a.grad_width, BESIDE,
                        (unsigned)(seen + t) < (unsigned)height);
  };
#pragma unroll
  for (int t = 0; t < RING; ++t) fetch(t);
#pragma unroll
  for (int t = 0; t < SEEN; ++t) {
    float value[WindowRow::WIDTH];
#pragma unroll
    for (int i = 0; i < WindowRow::WIDTH; ++i) value[i] = ring[t % RING][i];
    if (t + RING < SEEN) fetch(t + RING);
    const int top = 2 * (t - ABOVE) - PAD;  // the first row that this one spreads over
#pragma unroll
    for (int tap = 0; tap < K; ++tap) {
      const int k = top + D * tap;
      if (k < 0 || k >= 2 * ROWS) continue;
#pragma unroll
      for (int b = 0; b < K; ++b)
#pragma unroll
        for (int j = 0; j < 2 * COLUMNS; ++j) {
          const int twice = j + PAD - D * b + 2 * BESIDE;  // the column of the window, if this is even
          if (twice % 2 == 0) sum[k][j] = __fmaf_rn(taps[tap * K + b], value[twice / 2], sum[k][j]);
        }
    }
#pragma unroll
    for (int k = top; k < top + 2; ++k)
      if (k >= 0 && k < 2 * ROWS && 2 * row + k < out_height)
#pragma unroll
        for (int j = 0; j < 2 * COLUMNS; j += LOAD)
          if (2 * column + j < a.out_width)
            write<T, LOAD>(out + (long long)k * a.out_width + j, &sum[k][j]);
  }
}
