// avg_pool2d_backward: each input adds up the gradients of the windows that it lies in, by their divisors.
//
// A divisor is a product of one number down and one across, so the rows are folded first, as in the forward pass.
#pragma once

#include "pool.cuh"

struct avg_pool2d_backward_args {
  const void* grad;
  void* out;
  tiling tiles;
  image_strides grad_strides;
  image_strides out_strides;
  int image[2];  // rows and columns
  int outputs[2];
  int bounds[2][2];    // down and across: the rows and columns that count
  float scales[2][8];  // one over so many of them
};

namespace avg_pool2d_backward_parts {

// The share of one axis in what the gradient of window i is multiplied by, some number if there is no such window.
template <int K, int S, int P>
__device__ __forceinline__ float scale(const avg_pool2d_backward_args& a, int axis, int i) {
  const int window = max(0, min(i, a.outputs[axis] - 1));
  return a.scales[axis][pool::counted(window * S - P, K, a.bounds[axis])];
}

// At step 1 this is the sum over a window of K by K scaled gradients.
template <typename T, int K, int P, int Q, int L, bool VECTOR>
struct Spread {
  using Item = float;
  static constexpr int N = Q + K - 1;
  const avg_pool2d_backward_args& a;
  T* out;
  int row;
  int column;
  float scales[N];

  __device__ __forceinline__ T fill() const { return narrow<T>(0.0f); }
  __device__ __forceinline__ void take(int, const T (&values)[N][L], float (&items)[L][N]) const {
#pragma unroll
    for (int i = 0; i < N * L; ++i) items[i % L][i / L] = widen(values[i / L][i % L]) * scales[i / L];
  }
  __device__ __forceinline__ float combine(float x, float y) const { return x + y; }
  __device__ __forceinline__ float line(float sum, int k) const {
    return sum * scale<K, 1, P>(a, 0, row + P - (K - 1) + k);
  }
  __device__ __forceinline__ void finish(int r, const float (&sums)[Q][L]) {
    T values[Q][L];
#pragma unroll
    for (int k = 0; k < Q * L; ++k) values[k / L][k % L] = narrow<T>(sums[k / L][k % L]);
    pool::write<VECTOR>(row + r < a.image[0], out, column, a.image[1], a.out_strides.column, values);
    out += a.out_strides.row;
  }
};

}  // namespace avg_pool2d_backward_parts

// Windows of K by K taps, S apart, P beyond the image. A thread has ROWS rows of Q columns of L channels of the
// image, multiples of S.
template <typename T, int K, int S, int P, int Q, int L, int ROWS, bool VECTOR>
__device__ __forceinline__ void avg_pool2d_backward(const avg_pool2d_backward_args& a) {
  using namespace avg_pool2d_backward_parts;
  static_assert(ROWS % S == 0 && Q % S == 0, "threads begin where windows do");
  const unsigned piece = pool::piece_of(a.tiles);
  const pool::Place place = pool::place_of(piece, a.tiles, Q, ROWS, L);
  if (piece >= a.tiles.count || place.image >= a.tiles.images) return;
  using Across = pool::Reach<K, S, P, Q>;
  using Down = pool::Reach<K, S, P, ROWS>;
  const int first = place.column / S + Across::FIRST, top = place.row / S + Down::FIRST;
  const pool::Line<Across::COUNT, -Across::FIRST, Q / S, L, VECTOR> line = {first, a.outputs[1],
                                                                            a.grad_strides.column};
  const T* const grad = static_cast<const T*>(a.grad) + offset(place, a.grad_strides);
  T* out = static_cast<T*>(a.out) + start(place, a.out_strides);
  if constexpr (S == 1) {
    Spread<T, K, P, Q, L, VECTOR> rule = {a, out, place.row, place.column, {}};
#pragma unroll
    for (int n = 0; n < Across::COUNT; ++n) rule.scales[n] = scale<K, S, P>(a, 1, first + n);
    pool::slide<K, S, Q, L, ROWS>(rule, grad, line, top, a.outputs[0], a.grad_strides.row);
  } else {
    float scales[Across::COUNT], sums[ROWS][Q][L];
#pragma unroll
    for (int n = 0; n < Across::COUNT; ++n) scales[n] = scale<K, S, P>(a, 1, first + n);
#pragma unroll
    for (int k = 0; k < ROWS * Q * L; ++k) sums[k / (Q * L)][k / L % Q][k % L] = 0.0f;
    const T* own = grad + top * a.grad_strides.row + line.start();
#pragma unroll
    for (int i = Down::FIRST; i < Down::FIRST + Down::COUNT; ++i) {
      const int row = place.row / S + i;
      T grads[Across::COUNT][L];
      line.read((unsigned)row < (unsigned)a.outputs[0], own, pool::Or<T>{narrow<T>(0.0f)}, grads);
      own += a.grad_strides.row;
      const float down = scale<K, S, P>(a, 0, row);
#pragma unroll
      for (int k = 0; k < Q * L; ++k) {
        const int q = k / L, l = k % L;
        float part = 0.0f;
#pragma unroll
        for (int n = 0; n < Across::COUNT; ++n) {
          const int tap = q + P - (Across::FIRST + n) * S;
          if (tap >= 0 && tap < K) part += widen(grads[n][l]) * scales[n];
        }
        part *= down;
#pragma unroll
        for (int t = 0; t < K; ++t) {
          const int r = i * S - P + t;
          if (r >= 0 && r < ROWS) sums[r][q][l] += part;
        }
      }
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        if ((r + P) / S != i) continue;  // later windows begin below
        T values[Q][L];
#pragma unroll
        for (int k = 0; k < Q * L; ++k) values[k / L][k % L] = narrow<T>(sums[r][k / L][k % L]);
        const bool wanted = place.row + r < a.image[0];
        pool::write<VECTOR>(wanted, out, place.column, a.image[1], a.out_strides.column, values);
        out += a.out_strides.row;
      }
    }
  }
}

struct avg_pool2d_backward_window_args {
  const void* grad;
  void* out;
  tiling tiles;
  image_strides grad_strides;
  pool_window window;
  int bounds[2][2];
  int divisor;  // instead of the number of taps, unless it is 0
};

// Any window: a thread has one input.
template <typename T>
__device__ __forceinline__ void avg_pool2d_backward_window(const avg_pool2d_backward_window_args& a) {
  const pool_window& w = a.window;
  const unsigned piece = pool::piece_of(a.tiles);
  const pool::Place place = pool::place_of(piece, a.tiles);
  if (piece >= a.tiles.count || place.image >= a.tiles.images) return;
  const T* const grad = static_cast<const T*>(a.grad) + offset(place, a.grad_strides);
  const pool::Owners down(w, 0, place.row), across(w, 1, place.column);
  float sum = 0.0f;
  for (int i = down.first; i <= down.last; ++i) {
    const float rows = (float)pool::counted(i * w.stride[0] - w.padding[0], w.kernel[0], a.bounds[0]);
    float part = 0.0f;
#pragma unroll 4
    for (int j = across.first; j <= across.last; ++j) {
      const float columns = (float)pool::counted(j * w.stride[1] - w.padding[1], w.kernel[1], a.bounds[1]);
      const float value = widen(pool::fetch(grad + i * a.grad_strides.row + j * a.grad_strides.column));
      part += value / (a.divisor ? (float)a.divisor : rows * columns);
    }
    sum += part;
  }
  static_cast<T*>(a.out)[(long long)blockIdx.y * a.tiles.count + piece] = narrow<T>(sum);
}
