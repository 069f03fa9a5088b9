// sep_conv2d_backward of square planes at stride 2: all three gradients of an image or of a part of one in one
// block, all channels. Blocks leave shares as sep_conv2d_backward does, and the same launch adds them up.
#pragma once
#include "sep_conv2d_planes_backward.cu"
#include "strided_planes.cuh"

using sep_conv2d_strided_planes_backward_args = sep_conv2d_planes_backward_args;

namespace strided_planes {

// The inner gradient of COUNT groups of four pixels from `first` on: zs = the points turned, times ys. A thread has
// four channels of a group; two neighbouring lanes have the same pixels. The points of the last LEFT outputs aren't in
// ws.
template <typename S, int COUNT, int LEFT>
__device__ __forceinline__ void inner(float* zs, const float* ws, const float* points, const float* ys, int first) {
  constexpr int TILES = S::CHANNELS / STRIP, HAVE = S::CHANNELS - LEFT;
  const bool vectors = aligned(points);
  for (int task = threadIdx.x; task < COUNT * TILES; task += S::THREADS) {
    const int group = first + task / 2 % COUNT, channel = (task / (2 * COUNT) * 2 + task % 2) * STRIP;
    float sum[STRIP][STRIP] = {};
    const auto add = [&](int made, const Strip& w) {
      const Strip y = load<STRIP>(ys + made * S::PITCH + group * STRIP);
#pragma unroll
      for (int e = 0; e < STRIP; ++e)
#pragma unroll
        for (int j = 0; j < STRIP; ++j) sum[e][j] = fmaf(w[e], y[j], sum[e][j]);
    };
#pragma unroll 4
    for (int made = 0; made < HAVE; ++made) add(made, load<STRIP>(ws + made * S::CHANNELS + channel));
#pragma unroll
    for (int made = HAVE; made < S::CHANNELS; ++made) {
      const float* const from = points + made * S::CHANNELS + channel;
      add(made, vectors ? load<STRIP>(from) : Strip{from[0], from[1], from[2], from[3]});
    }
#pragma unroll
    for (int e = 0; e < STRIP; ++e)
      store(zs + (channel + e) * S::PITCH + group * STRIP, Strip{sum[e][0], sum[e][1], sum[e][2], sum[e][3]});
  }
}

// The same of lines beyond the block's own, which are few: a thread has one channel of a group.
template <typename S, int COUNT>
__device__ __forceinline__ void inner_beyond(float* zs, const float* ws, const float* ys, int first) {
  for (int task = threadIdx.x; task < COUNT * S::CHANNELS; task += S::THREADS) {
    const int group = first + task / S::CHANNELS, channel = task % S::CHANNELS;
    Strip sum = {};
#pragma unroll 8
    for (int made = 0; made < S::CHANNELS; ++made) {
      const Strip y = load<STRIP>(ys + made * S::PITCH + group * STRIP);
      const float w = ws[made * S::CHANNELS + channel];
#pragma unroll
      for (int j = 0; j < STRIP; ++j) sum[j] = fmaf(w, y[j], sum[j]);
    }
    store(zs + channel * S::PITCH + group * STRIP, sum);
  }
}

// A tap's sum where it isn't finite: an infinite or NaN pixel at an edge counts only for outputs that there are.
template <typename S>
__device__ __forceinline__ float seen_alone(const float* xs, const float* zs, int tap, int half) {
  const int down = S::PAD - tap / S::SIZE, right = S::PAD - tap % S::SIZE;
  float sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < S::X_BAND * S::FINE * S::SIDE; ++i) {
    const int line = i / (S::FINE * S::SIDE), column = i % (S::FINE * S::SIDE);
    const int out = line + down + S::FINE * S::own(half), across = column + right;  // FINE times where the output is
    if (out < 0 || out % S::FINE || out >= S::FINE * S::HELD) continue;
    if (across < 0 || across % S::FINE || across >= S::FINE * S::SIDE) continue;
    sum = fmaf(positive(xs[(S::x_own(half) + line) * S::X_SIDE + column * S::DILATION]),
               zs[out / S::FINE * S::SIDE + across / S::FINE], sum);
  }
  return sum;
}

// The image's gradient and the filters' share: a pixel of x sees the same of the inner gradient for both.
template <typename S>
__device__ __forceinline__ void gradients(float* image, float* shares, const float* zs, const float* xs,
                                          const float* filters, int half, bool first) {
  constexpr int FINE = S::FINE, LINES = S::BEFORE + 1 + S::AFTER;
  const Place<S> place;
  const Taps<S> taps(filters);
  float share[S::TAPS] = {};
  const float* const x_plane = xs + place.channel * S::X_PITCH;
  const float* const z_plane = zs + place.channel * S::PITCH;
  const int line = S::own(half) + place.first, x_line = S::x_own(half) + FINE * place.first;
  const float* const x_own = x_plane + x_line * S::X_SIDE + place.strip * STRIP;
  const float* const z_own = z_plane + line * S::SIDE + place.strip * 2;
  float* const to = image + place.channel * S::X_PLANE + S::x_row(x_line, half) * S::X_SIDE + place.strip * STRIP;
  const bool vectors = aligned(image);
  const auto leave_row = [&](int row, const Strip& made) {
    if (vectors) {
      store(to + row * S::X_SIDE, made);
    } else {
#pragma unroll
      for (int e = 0; e < STRIP; ++e) to[row * S::X_SIDE + e] = made[e];
    }
  };
  Line<S::LANES, 2, S::BEFORE, S::AFTER> seen[LINES];
  const auto read = [&](int k) {
    const bool owns = k >= 0 && k < S::ROWS;
    auto& z = seen[(k + S::BEFORE) % LINES];
    Pair own = {};
    if (owns || (!S::ENDS && line + k >= 0 && line + k < S::HELD)) own = load<2>(z_own + k * S::SIDE);
    z.own(0) = own[0];
    z.own(1) = own[1];
    z.spread(place.strip);
  };
#pragma unroll
  for (int k = -S::BEFORE; k < S::AFTER; ++k) read(k);
#pragma unroll
  for (int k = 0; k < S::ROWS; ++k) {
    read(k + S::AFTER);
#pragma unroll
    for (int p = 0; p < FINE; ++p) {
      const Strip given = load<STRIP>(x_own + (FINE * k + p) * S::X_SIDE);
      float x[2 * FINE], sum[2 * FINE] = {};
#pragma unroll
      for (int e = 0; e < 2 * FINE; ++e) x[e] = positive(given[e * S::DILATION]);
#pragma unroll
      for (int m = -S::BEFORE; m <= S::AFTER; ++m) {
        const int a = p + S::PAD - FINE * m;
        if (a < 0 || a >= S::SIZE) continue;
        const auto& z = seen[(k + m + S::BEFORE) % LINES];
#pragma unroll
        for (int e = 0; e < 2 * FINE; ++e)
#pragma unroll
          for (int c = 0; c < S::BEFORE + 2 + S::AFTER; ++c) {
            const int b = e + S::PAD - FINE * (c - S::BEFORE);
            if (b < 0 || b >= S::SIZE) continue;
            sum[e] = fmaf(taps.at[a * S::SIZE + b], z.at[c], sum[e]);
            share[a * S::SIZE + b] = fmaf(x[e], z.at[c], share[a * S::SIZE + b]);
          }
      }
      Strip made = {};
#pragma unroll
      for (int e = 0; e < 2 * FINE; ++e) made[e * S::DILATION] = x[e] <= 0.0f ? 0.0f : sum[e];
      leave_row(S::DILATION * (FINE * k + p), made);
    }
    if (S::DILATION == 2) leave_row(2 * k + 1, Strip{});  // no window sees it
  }
  planes::fold<S::OF_PLANE>(share, [&](int tap, float total) {
    if (!(total - total == 0.0f)) total = seen_alone<S>(x_plane, z_plane, tap, half);
    planes::leave(shares + place.channel * S::TAPS + tap, total, first);
  });
}

}  // namespace strided_planes

// The work of the block with number `block` of `blocks`, as that of sep_conv2d_planes_backward. LEFT: how many outputs'
// points shared memory has no room for. `shared`: xs (the lines of x), ys (those of the gradient), ts (what lies
// between the convolutions, then its gradient), ws (the points) and scratch.
template <typename S, typename P, int LEFT, typename A>
__device__ __forceinline__ void sep_conv2d_strided_planes_backward_items(const A& a, int items, unsigned block,
                                                                         unsigned blocks) {
  using namespace strided_planes;
  constexpr int BEYOND = (S::HELD - S::BAND) * S::STRIPS, HAVE = (S::CHANNELS - LEFT) * S::CHANNELS;
  float* const xs = dynamic_shared<float>();
  float* const ys = xs + S::X_PLANES;
  float* const ts = ys + S::PLANES;
  float* const ws = ts + S::PLANES;
  float* const scratch = ws + HAVE;
  const float* const x = static_cast<const float*>(a.x);
  const float* const grad = static_cast<const float*>(a.grad);
  const float* const filters = static_cast<const float*>(a.filters);
  const float* const points = static_cast<const float*>(a.points);
  float* const of_filters = a.shares + (long long)block * S::CHANNELS * (S::TAPS + S::CHANNELS);
  float* const of_points = of_filters + S::CHANNELS * S::TAPS;

  const auto of_x = [&](int item) { return (long long)(item / S::PIECES) * S::X_IMAGE; };
  const auto send_ys = [&](int item) {
    send_grad<S>(ys, grad + (long long)(item / S::PIECES) * S::IMAGE, item % S::PIECES);
  };
  int item = block;
  send_x<S>(xs, x + of_x(item), item % S::PIECES);
  depart();
  send_ys(item);
  const bool vectors = aligned(points);
  for (int i = threadIdx.x * STRIP; i < HAVE; i += S::THREADS * STRIP) planes::send_strip(ws + i, points + i, vectors);
  depart();
  for (bool first = true; item < items; first = false) {
    const int half = item % S::PIECES, next = item + blocks;
    const Taps<S> taps(filters);  // on their way while x is
    if (first) {
      planes::arrive<1>();
    } else {
      planes::arrive<0>();
    }
    __syncthreads();
    convolve<S>(ts, xs, taps, half, S::own(half));
    planes::arrive<0>();
    __syncthreads();
    P::sum(of_points, scratch, ys, ts, half, first);
    __syncthreads();
    P::finish(of_points, scratch, first);
    if constexpr (planes::ODD<S>) {  // all lines at once, as threads are many
      inner<S, S::GROUPS + BEYOND, LEFT>(ts, ws, points, ys, 0);
    } else {
      inner<S, S::GROUPS, LEFT>(ts, ws, points, ys, S::own(half) * S::STRIPS);
    }
    if constexpr (BEYOND > 0 && !planes::ODD<S>) {  // a lower half may see nothing above it
      static_assert(LEFT == 0, "ws has all points");
      if (S::BEFORE > 0 || !half) inner_beyond<S, BEYOND>(ts, ws, ys, half ? 0 : S::GROUPS);
    }
    __syncthreads();
    if (next < items) {
      send_ys(next);
      depart();
    }
    gradients<S>(static_cast<float*>(a.x_grad) + of_x(item), of_filters, ts, xs, filters, half, first);
    item = next;
    if (item >= items) break;
    __syncthreads();
    send_x<S>(xs, x + of_x(item), item % S::PIECES);
    depart();
  }
}

// OVER, ACROSS, SPLITS: of planes::Points.
template <int SIZE, int DILATION, int CHANNELS, int SIDE, int BAND, int THREADS, int OVER, int ACROSS, int SPLITS,
          int LEFT>
__device__ __forceinline__ void sep_conv2d_strided_planes_backward(const sep_conv2d_strided_planes_backward_args& a) {
  using S = strided_planes::Shape<SIZE, DILATION, CHANNELS, SIDE, BAND, THREADS>;
  sep_conv2d_strided_planes_backward_items<S, planes::Points<S, OVER, ACROSS, SPLITS>, LEFT>(a, a.items, blockIdx.x,
                                                                                             gridDim.x);
}
