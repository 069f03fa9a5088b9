// avg_pool2d: out = sum over the window's taps on the image of x / divisor, in float32.
#pragma once

#include "pool.cuh"

struct avg_pool2d_args {
  const void* x;
  void* out;
  tiling tiles;
  image_strides x_strides;
  image_strides out_strides;
  int image[2];    // rows and columns
  int outputs[2];
  int bounds[2][2];    // down and across: the rows and columns that count
  float scales[2][8];  // what a sum of so many of them is multiplied by
};

namespace avg_pool2d_parts {

template <typename T, int K, int S, int P, int Q, int L, bool VECTOR>
struct Mean {
  using Item = float;
  const avg_pool2d_args& a;
  T* out;
  int row;  // the first of the outputs'
  int column;
  float scales[Q];

  __device__ __forceinline__ T fill() const { return narrow<T>(0.0f); }
  template <int N>
  __device__ __forceinline__ void take(int, const T (&values)[N][L], float (&items)[L][N]) const {
#pragma unroll
    for (int i = 0; i < N * L; ++i) items[i % L][i / L] = widen(values[i / L][i % L]);
  }
  __device__ __forceinline__ float combine(float x, float y) const { return x + y; }
  __device__ __forceinline__ float line(float sum, int) const { return sum; }
  __device__ __forceinline__ void finish(int r, const float (&sums)[Q][L]) {
    const int i = row + r < a.outputs[0] ? row + r : a.outputs[0] - 1;
    const float scale = a.scales[0][pool::counted(i * S - P, K, a.bounds[0])];
    T means[Q][L];
#pragma unroll
    for (int q = 0; q < Q; ++q) {
#pragma unroll
      for (int l = 0; l < L; ++l) means[q][l] = narrow<T>(sums[q][l] * (scale * scales[q]));
    }
    pool::write<VECTOR>(row + r < a.outputs[0], out, column, a.outputs[1], a.out_strides.column, means);
    out += a.out_strides.row;
  }
};

}  // namespace avg_pool2d_parts

// Windows of K by K taps, S apart, P beyond the image. A thread has ROWS rows of Q columns of L channels.
template <typename T, int K, int S, int P, int Q, int L, int ROWS, bool VECTOR>
__device__ __forceinline__ void avg_pool2d(const avg_pool2d_args& a) {
  using namespace avg_pool2d_parts;
  const unsigned piece = pool::piece_of(a.tiles);
  const pool::Place place = pool::place_of(piece, a.tiles, Q, ROWS, L);
  if (piece >= a.tiles.count || place.image >= a.tiles.images) return;
  const pool::Line<(Q - 1) * S + K, P, Q * S, L, VECTOR> line = {place.column * S - P, a.image[1],
                                                              a.x_strides.column};
  T* const out = static_cast<T*>(a.out) + start(place, a.out_strides);
  Mean<T, K, S, P, Q, L, VECTOR> rule = {a, out, place.row, place.column, {}};
#pragma unroll
  for (int q = 0; q < Q; ++q) {
    const int column = place.column + q < a.outputs[1] ? place.column + q : a.outputs[1] - 1;
    rule.scales[q] = a.scales[1][pool::counted(column * S - P, K, a.bounds[1])];
  }
  const T* const x = static_cast<const T*>(a.x) + offset(place, a.x_strides);
  pool::slide<K, S, Q, L, ROWS>(rule, x, line, place.row * S - P, a.image[0], a.x_strides.row);
}

struct avg_pool2d_window_args {
  const void* x;
  void* out;
  tiling tiles;
  image_strides x_strides;
  pool_window window;
  int bounds[2][2];
  int divisor;  // instead of the number of taps, unless it is 0
};

// Any window: each thread has a share of its taps.
template <typename T>
__device__ __forceinline__ void avg_pool2d_window(const avg_pool2d_window_args& a) {
  const pool_window& w = a.window;
  const int lanes = 1 << a.tiles.lanes, lane = threadIdx.x & (lanes - 1);
  const unsigned piece = pool::piece_of(a.tiles);
  pool::Place place = pool::place_of(piece, a.tiles);
  const bool wanted = piece < a.tiles.count && place.image < a.tiles.images;
  if (!wanted) place = {};  // whole warps shuffle
  const T* const x = static_cast<const T*>(a.x) + offset(place, a.x_strides);
  const pool::Taps down(w, 0, place.row), across(w, 1, place.column);
  float sum = 0.0f;
  for (int i = down.first; i < down.last; ++i) {
    const T* const row = x + (down.start + (long long)i) * a.x_strides.row;
    const int before = (i - down.first) * (across.last - across.first) & (lanes - 1);  // whose turn it is
    float part = 0.0f;  // short sums: small errors
#pragma unroll 4
    for (int j = across.first + ((lane - before) & (lanes - 1)); j < across.last; j += lanes) {
      part += widen(pool::fetch(row + (across.start + (long long)j) * a.x_strides.column));
    }
    sum += part;
  }
  for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
  if (lane != 0 || !wanted) return;
  const long long index = (long long)blockIdx.y * a.tiles.count + piece;
  const float taps = (float)pool::counted(down.start, w.kernel[0], a.bounds[0]) *
                     (float)pool::counted(across.start, w.kernel[1], a.bounds[1]);
  static_cast<T*>(a.out)[index] = narrow<T>(sum / (a.divisor ? (float)a.divisor : taps));
}
