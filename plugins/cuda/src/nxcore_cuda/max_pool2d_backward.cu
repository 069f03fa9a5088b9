// max_pool2d_backward: each input adds up the gradients of the windows whose largest tap it is, in float32.
//
// The windows that an input lies in are looked at in one order, so the bits are the same each time.
#pragma once

#include "pool.cuh"

struct max_pool2d_backward_args {
  const void* grad;
  const void* taps;  // the number of each window's largest
  void* out;
  tiling tiles;
  image_strides grad_strides;
  image_strides tap_strides;
  image_strides out_strides;
  int image[2];  // rows and columns
  int outputs[2];
};

// Windows of K by K taps, S apart, P beyond the image. A thread has ROWS rows of Q columns of L channels of the
// image, ROWS and Q multiples of S, and goes down the rows of windows: each adds to the rows that it reaches.
template <typename T, int K, int S, int P, int Q, int L, int ROWS, bool VECTOR>
__device__ __forceinline__ void max_pool2d_backward(const max_pool2d_backward_args& a) {
  constexpr unsigned NONE = 255;
  static_assert(ROWS % S == 0 && Q % S == 0 && K * K <= NONE, "threads begin where windows do");
  const unsigned piece = pool::piece_of(a.tiles);
  const pool::Place place = pool::place_of(piece, a.tiles, Q, ROWS, L);
  if (piece >= a.tiles.count || place.image >= a.tiles.images) return;
  using Across = pool::Reach<K, S, P, Q>;
  using Down = pool::Reach<K, S, P, ROWS>;
  using Line = pool::Line<Across::COUNT, -Across::FIRST, Q / S, L, VECTOR>;
  const int first = place.column / S + Across::FIRST;
  const Line grad_line = {first, a.outputs[1], a.grad_strides.column};
  const Line tap_line = {first, a.outputs[1], a.tap_strides.column};
  const int top = place.row / S + Down::FIRST;
  const T* grad = static_cast<const T*>(a.grad) + offset(place, a.grad_strides);
  const unsigned char* taps = static_cast<const unsigned char*>(a.taps) + offset(place, a.tap_strides);
  grad += top * a.grad_strides.row + grad_line.start();
  taps += top * a.tap_strides.row + tap_line.start();
  T* out = static_cast<T*>(a.out) + start(place, a.out_strides);
  float sums[ROWS][Q][L];
#pragma unroll
  for (int i = 0; i < ROWS * Q * L; ++i) sums[i / (Q * L)][i / L % Q][i % L] = 0.0f;
#pragma unroll
  for (int i = Down::FIRST; i < Down::FIRST + Down::COUNT; ++i) {
    const bool in = (unsigned)(place.row / S + i) < (unsigned)a.outputs[0];
    T grads[Across::COUNT][L];
    unsigned found[Across::COUNT][L];
    grad_line.read(in, grad, pool::Or<T>{narrow<T>(0.0f)}, grads);
    tap_line.read(in, taps, pool::BytesInPlace{NONE}, found);
    grad += a.grad_strides.row;
    taps += a.tap_strides.row;
#pragma unroll
    for (int n = 0; n < Across::COUNT; ++n) {
#pragma unroll
      for (int l = 0; l < L; ++l) {
        const float value = widen(grads[n][l]);
#pragma unroll
        for (int t = 0; t < K * K; ++t) {
          const int r = i * S - P + t / K, q = (Across::FIRST + n) * S - P + t % K;
          if (r < 0 || r >= ROWS || q < 0 || q >= Q) continue;
          if (found[n][l] == (unsigned)t << Line::index(n, l) % 4 * 8) sums[r][q][l] += value;
        }
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

struct max_pool2d_backward_rounds_args {
  const void* grad;
  const void* taps;
  void* out;
  tiling tiles;
  image_strides grad_strides;
  image_strides tap_strides;
  image_strides out_strides;
  int image[2];
  int outputs[2];
  int padding[2];
  int rows;  // of the image, that a warp has
};

namespace max_pool2d_backward_parts {

// Neighbouring windows of one row that a lane takes: at least as many as a window is wide, and whole vectors.
constexpr int GROUP = 8;

template <typename T>
struct Windows {
  Vector<T, GROUP> grads;
  Vector<unsigned char, GROUP> taps;
  int row;
  int column;
};

template <typename T>
__device__ __forceinline__ bool in_vectors(const max_pool2d_backward_rounds_args& a, const T* grad,
                                           const unsigned char* taps) {
  const auto at = reinterpret_cast<unsigned long long>(grad) | (a.grad_strides.row * sizeof(T));
  const auto tap_at = reinterpret_cast<unsigned long long>(taps) | (unsigned long long)a.tap_strides.row;
  const bool dense = a.grad_strides.column == 1 && a.tap_strides.column == 1;
  return dense && a.outputs[1] % GROUP == 0 && at % 16 == 0 && tap_at % GROUP == 0;
}

// Of the windows from row `low` to `high`, those whose turn it is: each K-th row, in groups of columns.
template <typename T, int K>
__device__ __forceinline__ void read(const max_pool2d_backward_rounds_args& a, const T* grad,
                                     const unsigned char* taps, bool vectors, int turn, int group, int across,
                                     int low, int high, Windows<T>& found) {
  found.row = low + group / across * K + turn;
  found.column = group % across * GROUP;
  const T* const from = grad + found.row * a.grad_strides.row + found.column * a.grad_strides.column;
  const unsigned char* const tap = taps + found.row * a.tap_strides.row + found.column * a.tap_strides.column;
  const bool on = found.row <= high;
  if (vectors) {
    constexpr int V = 16 / sizeof(T);
#pragma unroll
    for (int i = 0; i < GROUP; i += V) {
      const Vector<T, V> some = pool::load_if<V>(on, from + i, narrow<T>(0.0f));
#pragma unroll
      for (int v = 0; v < V; ++v) found.grads[i + v] = some[v];
    }
    found.taps = pool::load_if<GROUP>(on, tap, (unsigned char)255);
    return;
  }
#pragma unroll
  for (int k = 0; k < GROUP; ++k) {
    const bool in = on && found.column + k < a.outputs[1];
    found.grads[k] = pool::load_if<1>(in, from + k * a.grad_strides.column, narrow<T>(0.0f))[0];
    found.taps[k] = pool::load_if<1>(in, tap + k * a.tap_strides.column, (unsigned char)255)[0];
  }
}

}  // namespace max_pool2d_backward_parts

// Windows of K by K taps, 1 apart. A warp has some rows of an image in shared memory, and goes through the
// windows that reach them in K * K rounds: those of one round lie K apart or more, so that no two
// add to one input.
template <typename T, int K>
__device__ __forceinline__ void max_pool2d_backward_rounds(const max_pool2d_backward_rounds_args& a) {
  using namespace max_pool2d_backward_parts;
  static_assert(K * K < 255, "255 is no tap");
  static_assert(K <= GROUP, "windows of two lanes don't meet");
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const unsigned piece = pool::piece_of(a.tiles);
  const pool::Place place = pool::place_of(piece, a.tiles, 1, a.rows, 1);
  if (piece >= a.tiles.count || place.image >= a.tiles.images) return;
  const int width = a.image[1];
  const int rows = a.image[0] - place.row < a.rows ? a.image[0] - place.row : a.rows;
  const int count = rows * width;
  float* const sums = dynamic_shared<float>() + warp * (a.rows * width + WARP);
  const int beside = a.rows * width + lane;
  for (int i = lane; i < count; i += WARP) sums[i] = 0.0f;
  const T* const grad = static_cast<const T*>(a.grad) + offset(place, a.grad_strides);
  const unsigned char* const taps = static_cast<const unsigned char*>(a.taps) + offset(place, a.tap_strides);
  const int from = place.row + a.padding[0] - (K - 1), to = place.row + rows - 1 + a.padding[0];
  const int low = from > 0 ? from : 0, high = to < a.outputs[0] ? to : a.outputs[0] - 1;
  const int across = (a.outputs[1] + GROUP - 1) / GROUP, groups = across * ((high - low + K) / K);
  const int first = (a.padding[0] + place.row) * width + a.padding[1];  // of the sums, from the image's corner
  const bool vectors = in_vectors(a, grad, taps);
  Windows<T> next;
  int turn = 0, group = lane;
  read<T, K>(a, grad, taps, vectors, turn, group, across, low, high, next);
  __syncwarp();
  while (turn < K) {
    const Windows<T> now = next;
    group += WARP;
    if (group - (int)lane >= groups) group = lane, ++turn;
    if (turn < K) read<T, K>(a, grad, taps, vectors, turn, group, across, low, high, next);
    const int corner = now.row * width + now.column - first;
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
      // No division (exact while K is at most 8), and no branch: what lands beside the rows goes where nobody looks.
      const unsigned tap = now.taps[k], down = tap * ((256 + K - 1) / K) >> 8;
      const int at = corner + k + (int)(tap + down * (width - K));
      const bool in = tap < K * K && (unsigned)at < (unsigned)count;
      sums[in ? at : beside] += widen(now.grads[k]);
      __syncwarp();
    }
  }
  T* const out = static_cast<T*>(a.out) + start(place, a.out_strides);
  constexpr int V = 16 / sizeof(T);
  int done = 0;
  if (reinterpret_cast<unsigned long long>(out) % 16 == 0) {
    done = count / V * V;
    for (int i = lane * V; i < done; i += WARP * V) {
      Vector<T, V> values;
#pragma unroll
      for (int v = 0; v < V; ++v) values[v] = narrow<T>(sums[i + v]);
      pool::store_if(true, out + i, values);
    }
  }
  for (int i = done + lane; i < count; i += WARP) out[i] = narrow<T>(sums[i]);
}

struct max_pool2d_backward_window_args {
  const void* grad;
  const void* taps;
  void* out;
  tiling tiles;
  image_strides grad_strides;
  image_strides tap_strides;
  pool_window window;
};

// Any window: a thread has one input.
template <typename T, typename TAP>
__device__ __forceinline__ void max_pool2d_backward_window(const max_pool2d_backward_window_args& a) {
  const pool_window& w = a.window;
  const unsigned piece = pool::piece_of(a.tiles);
  const pool::Place place = pool::place_of(piece, a.tiles);
  if (piece >= a.tiles.count || place.image >= a.tiles.images) return;
  const T* const grad = static_cast<const T*>(a.grad) + offset(place, a.grad_strides);
  const TAP* const taps = static_cast<const TAP*>(a.taps) + offset(place, a.tap_strides);
  const pool::Owners down(w, 0, place.row), across(w, 1, place.column);
  float sum = 0.0f;
  for (int i = down.first; i <= down.last; ++i) {
    const int y = down.tap(w, 0, i);
    if (y < 0) continue;
#pragma unroll 4
    for (int j = across.first; j <= across.last; ++j) {
      const int x = across.tap(w, 1, j);
      if (x < 0) continue;
      const long long at = i * a.tap_strides.row + j * a.tap_strides.column;
      if ((int)pool::fetch(taps + at) != y * w.kernel[1] + x) continue;
      sum += widen(pool::fetch(grad + i * a.grad_strides.row + j * a.grad_strides.column));
    }
  }
  static_cast<T*>(a.out)[(long long)blockIdx.y * a.tiles.count + piece] = narrow<T>(sum);
}
