// max_pool2d: the largest tap of each window, and where it lies if asked for.
//
// A tap replaces the one before where it is larger, or NaN: the first of equals counts, and the last NaN.
#pragma once

#include "largest.cuh"
#include "pool.cuh"

struct max_pool2d_args {
  const void* x;
  void* out;
  void* at;  // laid out as out: the taps' numbers (of 8 or 32 bits), or places on the plane (of 64); or null
  tiling tiles;
  image_strides x_strides;
  image_strides out_strides;
  int image[2];  // rows and columns
  int outputs[2];
};

namespace max_pool2d_parts {

using largest::Best;
using largest::replaces;
using pool::nothing;
using pool::same;

// The largest with their places, of Q columns from output (row, column) on.
template <typename T, typename AT, int K, int S, int P, int Q, int L, int ROWS, bool VECTOR>
struct Largest {
  static constexpr bool NUMBERED = sizeof(AT) < 8;  // the taps are; places on the plane are asked for otherwise
  static constexpr int PITCH = NUMBERED ? K : 32;   // from row to row of the numbers of what a thread reads
  static constexpr int MOST = NUMBERED ? 255 : 32767;
  static_assert(((ROWS - 1) * S + K) * PITCH <= MOST && (Q - 1) * S + K <= 32, "numbers fit below an element");
  using Order = largest::Order<T>;
  using Item = typename Order::Item;
  const max_pool2d_args& a;
  T* out;
  AT* at;
  int row;
  int column;
  Order seen = {};

  __device__ __forceinline__ T fill() const { return narrow<T>(pool::minus_infinity()); }
  template <int N>
  __device__ __forceinline__ void take(int k, const T (&values)[N][L], Item (&items)[L][N]) const {
    // Two that one register holds: a vector's own begin behind P others.
#pragma unroll
    for (int i = VECTOR ? -(P % 2) : 0; i < N * L; i += 2) {
      const bool first = i >= 0, second = i + 1 < N * L;
      const int one = first ? i : 0, two = second ? i + 1 : 0;
      Item spare;
      Order::put(first ? values[one / L][one % L] : T{}, second ? values[two / L][two % L] : T{},
                 MOST - (k * PITCH + one / L), MOST - (k * PITCH + two / L), first ? items[one % L][one / L] : spare,
                 second ? items[two % L][two / L] : spare);
    }
  }
  __device__ __forceinline__ Item combine(const Item& x, const Item& y) const { return Order::combine(x, y); }
  __device__ __forceinline__ Item line(const Item& best, int) const { return best; }
  // From distances to places.
  __device__ __forceinline__ void place(int r, AT (&at)[Q][L]) const {
    if constexpr (!NUMBERED) {
#pragma unroll
      for (int i = 0; i < Q * L; ++i) {
        const int number = MOST - (int)at[i / L][i % L];
        at[i / L][i % L] = (AT)((row * S - P + number / PITCH) * a.image[1] + column * S - P + number % PITCH);
      }
    } else if constexpr (sizeof(AT) == 1 && Q * L % 4 == 0) {
#pragma unroll
      for (int i = 0; i < Q * L; i += 4) {  // four at once: none borrows from the next
        pool::Piece<AT, 4> taps;
        unsigned first = 0;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          taps.values[k] = at[(i + k) / L][(i + k) % L];
          first |= (unsigned)(MOST - (r * K + (i + k) / L) * S) << 8 * k;
        }
        taps.words.word[0] = first - taps.words.word[0];
#pragma unroll
        for (int k = 0; k < 4; ++k) at[(i + k) / L][(i + k) % L] = taps.values[k];
      }
    } else {
#pragma unroll
      for (int i = 0; i < Q * L; ++i) {
        at[i / L][i % L] = (AT)(MOST - (r * K + i / L) * S - (int)at[i / L][i % L]);
      }
    }
  }
  __device__ __forceinline__ void finish(int r, const Item (&best)[Q][L]) {
    const bool in = row + r < a.outputs[0];
    T values[Q][L];
    AT places[Q][L];
    Order order = {};
#pragma unroll
    for (int i = 0; i < Q * L; i += 2) {
      const bool second = i + 1 < Q * L;
      const int two = second ? i + 1 : i;
      T one_value, two_value;
      int one_at, two_at;
      Order::get(best[i / L][i % L], second ? best[two / L][two % L] : Item{}, one_value, two_value, one_at, two_at);
      order.watch(one_value, two_value);
      if (VECTOR ? i + 2 >= Q * L : L == 1 || (i + 2) % L == 0) {  // what isn't written is in no doubt
        seen.join(in && (VECTOR || column + i / L < a.outputs[1]), order);
        order = {};
      }
      values[two / L][two % L] = two_value;
      places[two / L][two % L] = (AT)two_at;
      values[i / L][i % L] = one_value;
      places[i / L][i % L] = (AT)one_at;
    }
    place(r, places);
    pool::write<VECTOR>(in, out, column, a.outputs[1], a.out_strides.column, values);
    pool::write<VECTOR>(in, at, column, a.outputs[1], a.out_strides.column, places);
    out += a.out_strides.row;
    at += a.out_strides.row;
  }
};

template <typename T, int K, int S, int P, int Q, int L, int ROWS, bool VECTOR>
struct Largest<T, nothing, K, S, P, Q, L, ROWS, VECTOR> {
  using Item = float;
  const max_pool2d_args& a;
  T* out;
  nothing* at;
  int row;
  int column;

  __device__ __forceinline__ T fill() const { return narrow<T>(pool::minus_infinity()); }
  template <int N>
  __device__ __forceinline__ void take(int, const T (&values)[N][L], float (&items)[L][N]) const {
#pragma unroll
    for (int i = 0; i < N * L; ++i) items[i % L][i / L] = widen(values[i / L][i % L]);
  }
  __device__ __forceinline__ float combine(float x, float y) const { return largest::larger(x, y); }
  __device__ __forceinline__ float line(float best, int) const { return best; }
  __device__ __forceinline__ void finish(int r, const float (&best)[Q][L]) {
    T values[Q][L];
#pragma unroll
    for (int i = 0; i < Q * L; ++i) values[i / L][i % L] = narrow<T>(best[i / L][i % L]);
    pool::write<VECTOR>(row + r < a.outputs[0], out, column, a.outputs[1], a.out_strides.column, values);
    out += a.out_strides.row;
  }
};

// Writes the place of one window's largest tap again, whatever the taps are: a NaN's, or, where all is minus
// infinity, that of the first tap on the image.
template <typename AT, int K, int S, int P, typename T>
__device__ __forceinline__ void place_again(const max_pool2d_args& a, const T* x, AT* at, int row, int column) {
  const int top = row * S - P, left = column * S - P;
  int found = -1;
  float value = 0.0f;
#pragma unroll 1
  for (int tap = 0; tap < K * K; ++tap) {
    const int i = top + tap / K, j = left + tap % K;
    if (i < 0 || i >= a.image[0] || j < 0 || j >= a.image[1]) continue;
    const float next = widen(pool::fetch(x + i * a.x_strides.row + j * a.x_strides.column));
    if (found < 0 || replaces(next, value)) value = next, found = tap;
  }
  *at = sizeof(AT) < 8 ? (AT)found : (AT)((top + found / K) * a.image[1] + left + found % K);
}

}  // namespace max_pool2d_parts

// Windows of K by K taps, S apart, P beyond the image. A thread has ROWS rows of Q columns of L channels.
template <typename T, typename AT, int K, int S, int P, int Q, int L, int ROWS, bool VECTOR>
__device__ __forceinline__ void max_pool2d(const max_pool2d_args& a) {
  using namespace max_pool2d_parts;
  const unsigned piece = pool::piece_of(a.tiles);
  const pool::Place place = pool::place_of(piece, a.tiles, Q, ROWS, L);
  if (piece >= a.tiles.count || place.image >= a.tiles.images) return;
  const long long to = start(place, a.out_strides);
  AT* const at = same<AT, nothing> ? nullptr : static_cast<AT*>(a.at) + to;
  Largest<T, AT, K, S, P, Q, L, ROWS, VECTOR> rule = {a, static_cast<T*>(a.out) + to, at, place.row, place.column};
  const pool::Line<(Q - 1) * S + K, P, Q * S, L, VECTOR> line = {place.column * S - P, a.image[1],
                                                              a.x_strides.column};
  const T* const x = static_cast<const T*>(a.x) + offset(place, a.x_strides);
  pool::slide<K, S, Q, L, ROWS>(rule, x, line, place.row * S - P, a.image[0], a.x_strides.row);
  if constexpr (!same<AT, nothing>) {
    if (!rule.seen.doubtful()) return;
#pragma unroll 1
    for (int i = 0; i < ROWS * Q * L; ++i) {
      const int r = i / (Q * L), q = i / L % Q, l = i % L;
      if (place.row + r >= a.outputs[0] || place.column + q >= a.outputs[1]) continue;
      AT* const own = at + r * a.out_strides.row + q * a.out_strides.column + l;
      place_again<AT, K, S, P>(a, x + l, own, place.row + r, place.column + q);
    }
  }
}

struct max_pool2d_window_args {
  const void* x;
  void* out;
  void* at;
  tiling tiles;
  image_strides x_strides;
  pool_window window;
};

// Any window: each thread has a share of its taps.
template <typename T, typename AT>
__device__ __forceinline__ void max_pool2d_window(const max_pool2d_window_args& a) {
  using namespace max_pool2d_parts;
  const pool_window& w = a.window;
  const int lanes = 1 << a.tiles.lanes, lane = threadIdx.x & (lanes - 1);
  const unsigned piece = pool::piece_of(a.tiles);
  pool::Place place = pool::place_of(piece, a.tiles);
  const bool wanted = piece < a.tiles.count && place.image < a.tiles.images;
  if (!wanted) place = {};  // whole warps shuffle
  const T* const x = static_cast<const T*>(a.x) + offset(place, a.x_strides);
  const pool::Taps down(w, 0, place.row), across(w, 1, place.column);
  constexpr int NONE = 0x7fffffff;
  Best best = {pool::minus_infinity(), NONE};
  for (int i = down.first; i < down.last; ++i) {
    const T* const row = x + (down.start + (long long)i * w.dilation[0]) * a.x_strides.row;
    const int before = (i - down.first) * (across.last - across.first) & (lanes - 1);  // whose turn it is
#pragma unroll 4
    for (int j = across.first + ((lane - before) & (lanes - 1)); j < across.last; j += lanes) {
      const float value = widen(pool::fetch(row + (across.start + (long long)j * w.dilation[1]) * a.x_strides.column));
      if (best.at == NONE || replaces(value, best.value)) best = {value, i * w.kernel[1] + j};
    }
  }
  for (int step = lanes / 2; step > 0; step /= 2) {
    const float value = __shfl_xor_sync(ALL_LANES, best.value, step);
    const int at = __shfl_xor_sync(ALL_LANES, best.at, step);
    const bool later = at > best.at, nan = is_nan(value);
    if (nan ? later || !is_nan(best.value) : value > best.value || (value == best.value && !later)) best = {value, at};
  }
  if (lane != 0 || !wanted) return;
  const long long index = (long long)blockIdx.y * a.tiles.count + piece;
  static_cast<T*>(a.out)[index] = narrow<T>(best.value);
  if constexpr (!same<AT, nothing>) {
    const bool none = best.at == NONE;  // no tap is on the image: torch has the first that isn't before it
    if constexpr (sizeof(AT) < 8) {
      static_cast<AT*>(a.at)[index] = (AT)(none ? 0 : best.at);
    } else {
      const int i = none ? down.first : best.at / w.kernel[1];
      const int j = none ? across.first : best.at - i * w.kernel[1];
      static_cast<AT*>(a.at)[index] = (down.start + (long long)i * w.dilation[0]) * w.image[1] + across.start +
                                      (long long)j * w.dilation[1];
    }
  }
}
