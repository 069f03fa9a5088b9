// sep_conv2d_backward of square planes: all three gradients of an image or of a part of one in one block, all channels.
// Blocks leave shares as sep_conv2d_backward does, and the same launch adds them up.
#pragma once
#include "planes.cuh"

struct sep_conv2d_planes_backward_args {
  const void* grad;
  const void* x;
  const void* filters;
  const void* points;
  void* x_grad;
  float* shares;  // [block][filters, then points]
  int items;      // images, or parts of them
};

namespace planes {

// A block's share: the first of its items writes, the others add.
__device__ __forceinline__ void leave(float* share, float value, bool first) {
  *share = first ? value : *share + value;
}

// Sums over the block's own pixels of a gradient's channel times an inner channel. A thread has OVER by ACROSS of
// them, SPLITS lanes share these. Channels of a thread are far from each other: those of neighbouring threads are
// neighbours, which begin in different banks.
template <typename S, int OVER, int ACROSS, int SPLITS>
struct Points {
  static constexpr int CHANNELS = S::CHANNELS, WARPS = S::THREADS / WARP, TILES = WARP / SPLITS;
  static constexpr int LANES_OVER = TILES >= 16 ? 4 : 2, LANES_ACROSS = TILES / LANES_OVER;
  static constexpr int TILES_OVER = CHANNELS / OVER, TILES_ACROSS = CHANNELS / ACROSS;
  static constexpr int WARPS_OVER = TILES_OVER / LANES_OVER, WARPS_ACROSS = TILES_ACROSS / LANES_ACROSS;
  static constexpr int TURNS = WARPS / (WARPS_OVER * WARPS_ACROSS);  // warps that share the same sums
  static constexpr int SCRATCH = TURNS > 1 ? TURNS * CHANNELS * CHANNELS : 0;
  static constexpr unsigned MASK = (WARP - 1) & ~(TILES - 1);
  static_assert(SPLITS == 1 || SPLITS == 2 || SPLITS == 8, "32, 16 or 4 tiles of a warp");
  static_assert(TURNS * WARPS_OVER * WARPS_ACROSS == WARPS && WARPS_OVER * LANES_OVER == TILES_OVER &&
                    WARPS_ACROSS * LANES_ACROSS == TILES_ACROSS && S::GROUPS % (SPLITS * TURNS) == 0,
                "warps share the tiles");

  static __device__ __forceinline__ void sum(float* shares, float* scratch, const float* ys, const float* us, int half,
                                             bool first) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int tile = lane % TILES, split = lane / TILES, turn = warp / (WARPS_OVER * WARPS_ACROSS);
    const int of_warp = warp % (WARPS_OVER * WARPS_ACROSS);
    // Of four neighbouring lanes two read the same: such a load takes half the time.
    const int over = of_warp / WARPS_ACROSS * LANES_OVER + (tile & 1) + (TILES >= 16 ? tile >> 2 & 1 : 0) * 2;
    const int across = of_warp % WARPS_ACROSS * LANES_ACROSS + (tile >> 1 & 1) + (TILES >= 16 ? tile >> 3 : 0) * 2;
    const int begin = S::own(half) * S::SIDE + (SPLITS == 8 ? 2 * (split & 3) + (split >> 2) : split) * STRIP;
    const float* const y = ys + over * S::PITCH + begin;
    const float* const u = us + across * S::PITCH + begin;
    float sum[OVER * ACROSS] = {};
#pragma unroll 1
    for (int group = turn * SPLITS; group < S::GROUPS; group += TURNS * SPLITS) {
      Strip g[OVER];
#pragma unroll
      for (int i = 0; i < OVER; ++i) g[i] = load<STRIP>(y + i * TILES_OVER * S::PITCH + group * STRIP);
#pragma unroll
      for (int j = 0; j < ACROSS; ++j) {
        const Strip v = load<STRIP>(u + j * TILES_ACROSS * S::PITCH + group * STRIP);
#pragma unroll
        for (int i = 0; i < OVER; ++i)
#pragma unroll
          for (int e = 0; e < STRIP; ++e) sum[i * ACROSS + j] = fmaf(g[i][e], v[e], sum[i * ACROSS + j]);
      }
    }
    fold<MASK>(sum, [&](int number, float total) {
      const int i = over + number / ACROSS * TILES_OVER, j = across + number % ACROSS * TILES_ACROSS;
      if constexpr (TURNS > 1) {
        scratch[turn * CHANNELS * CHANNELS + i * CHANNELS + j] = total;
      } else {
        leave(shares + i * CHANNELS + j, total, first);
      }
    });
  }

  // After a barrier: what several warps have sums of.
  static __device__ __forceinline__ void finish(float* shares, const float* scratch, bool first) {
    if constexpr (TURNS > 1) {
      for (int i = threadIdx.x; i < CHANNELS * CHANNELS; i += S::THREADS) {
        float total = scratch[i];
#pragma unroll
        for (int turn = 1; turn < TURNS; ++turn) total += scratch[turn * CHANNELS * CHANNELS + i];
        leave(shares + i, total, first);
      }
    }
  }
};

// Whether the channels are no power of two.
template <typename S>
constexpr bool ODD = (S::CHANNELS & (S::CHANNELS - 1)) != 0;

// How many channels of a group of pixels a thread has in `inner`.
template <typename S>
constexpr int EACH = !ODD<S> ? (S::CHANNELS * S::GROUPS / S::THREADS < 8 ? 4 : 8)
                             : (S::CHANNELS * S::HELD * S::STRIPS <= 4 * S::THREADS ? 4 : 6);

// The inner gradient of COUNT groups of four pixels from `first` on: zs = ws turned, times ys. A thread has EACH
// channels of a group, in fours or in twos; two neighbouring lanes have the same pixels.
template <typename S, int EACH, int COUNT>
__device__ __forceinline__ void inner(float* zs, const float* ws, const float* ys, int first) {
  constexpr int TILES = S::CHANNELS / EACH, PAIR = TILES > 1 ? 2 : 1, UNIT = EACH % STRIP ? 2 : STRIP;
  static_assert(EACH % UNIT == 0 && TILES % PAIR == 0, "pairs of lanes share a group");
  for (int task = threadIdx.x; task < COUNT * TILES; task += S::THREADS) {
    const int outer = task / (PAIR * COUNT), group = first + task / PAIR % COUNT;
    const int channel = outer * PAIR * EACH + task % PAIR * UNIT;
    float sum[EACH][STRIP] = {};
#pragma unroll 4
    for (int made = 0; made < S::CHANNELS; ++made) {
      const Strip y = load<STRIP>(ys + made * S::PITCH + group * STRIP);
#pragma unroll
      for (int v = 0; v < EACH / UNIT; ++v) {
        const Vector<float, UNIT> w = load<UNIT>(ws + made * S::CHANNELS + channel + v * PAIR * UNIT);
#pragma unroll
        for (int e = 0; e < UNIT; ++e)
#pragma unroll
          for (int j = 0; j < STRIP; ++j) sum[v * UNIT + e][j] = fmaf(w[e], y[j], sum[v * UNIT + e][j]);
      }
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i)
      store(zs + (channel + i / UNIT * PAIR * UNIT + i % UNIT) * S::PITCH + group * STRIP,
            Strip{sum[i][0], sum[i][1], sum[i][2], sum[i][3]});
  }
}

// A tap's sum where it isn't finite: an infinite or NaN pixel at an edge counts only for outputs that there are.
template <typename S>
__device__ __forceinline__ float seen_alone(const float* xs, const float* zs, int tap, int half) {
  const int down = tap / S::SIZE - S::HALF, right = (tap % S::SIZE - S::HALF) * S::DILATION;
  float sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < S::BAND * S::SIDE; ++i) {
    const int line = S::own(half) + i / S::SIDE, column = i % S::SIDE - right, from = line - down;
    if (from < 0 || from / S::PART != line / S::PART || column < 0 || column >= S::SIDE) continue;
    sum = fmaf(positive(xs[line * S::SIDE + i % S::SIDE]), zs[from * S::SIDE + column], sum);
  }
  return sum;
}

// The image's gradient and the filters' share: both see the same windows of the inner gradient.
template <typename S>
__device__ __forceinline__ void gradients(float* image, float* shares, const float* zs, const float* xs,
                                          const float* filters, int half, bool first) {
  const Place<S> place;
  float weight[S::TAPS], share[S::TAPS] = {}, sum[S::ROWS][STRIP] = {};
  Strip x[S::ROWS];
#pragma unroll
  for (int t = 0; t < S::TAPS; ++t) weight[t] = __ldg(filters + place.channel * S::TAPS + S::TAPS - 1 - t);
  const float* const plane = xs + place.channel * S::PITCH;
  const float* const own = plane + (S::own(half) + place.first) * S::SIDE + place.strip * STRIP;
  float* const to = image + place.channel * S::PLANE + place.strip * STRIP;
  const bool vectors = aligned(image);
  const auto leave_row = [&](int k) {
    Strip made;
#pragma unroll
    for (int j = 0; j < STRIP; ++j) made[j] = x[k][j] <= 0.0f ? 0.0f : sum[k][j];
    float* const at = to + S::row(S::own(half) + place.first + k, half) * S::SIDE;
    if (vectors) {
      store(at, made);
    } else {
#pragma unroll
      for (int j = 0; j < STRIP; ++j) at[j] = made[j];
    }
  };
  const auto read = [&](int k) {
    x[k] = load<STRIP>(own + k * S::SIDE);
#pragma unroll
    for (int j = 0; j < STRIP; ++j) x[k][j] = positive(x[k][j]);
  };
  if constexpr (S::ENDS) {
#pragma unroll
    for (int k = 0; k < S::HALF; ++k) read(k);
  }
  walk<S, false>(zs + place.channel * S::PITCH, place, half, [&](int i, const auto& seen) {
    if (i < S::ROWS) read(i);
#pragma unroll
    for (int a = 0; a < S::SIZE; ++a) {
      const int k = i - a;
      if (k < 0 || k >= S::ROWS) continue;
#pragma unroll
      for (int b = 0; b < S::SIZE; ++b)
#pragma unroll
        for (int j = 0; j < STRIP; ++j) {
          sum[k][j] = fmaf(weight[a * S::SIZE + b], seen[j + b * S::DILATION], sum[k][j]);
          share[a * S::SIZE + b] = fmaf(x[k][j], seen[j + b * S::DILATION], share[a * S::SIZE + b]);
        }
    }
  }, leave_row);
  fold<S::OF_PLANE>(share, [&](int number, float total) {
    const int tap = S::TAPS - 1 - number;
    if (!(total - total == 0.0f)) total = seen_alone<S>(plane, zs + place.channel * S::PITCH, tap, half);
    leave(shares + place.channel * S::TAPS + tap, total, first);
  });
}

}  // namespace planes

// The work of the block with number `block` of `blocks`. A: a struct with grad, x, filters, points, x_grad and shares.
// `shared`: xs and ys (the lines of x and of the gradient), ts (what lies between the convolutions, then its
// gradient), ws (the points) and scratch.
template <typename S, typename P, typename A>
__device__ __forceinline__ void sep_conv2d_planes_backward_items(const A& a, int items, unsigned block,
                                                                 unsigned blocks) {
  using namespace planes;
  constexpr int BEYOND = (S::HELD - S::BAND) * S::STRIPS;
  float* const xs = dynamic_shared<float>();
  float* const ys = xs + S::PLANES;
  float* const ts = ys + S::PLANES;
  float* const ws = ts + S::PLANES;
  float* const scratch = ws + S::CHANNELS * S::CHANNELS;
  const float* const x = static_cast<const float*>(a.x);
  const float* const grad = static_cast<const float*>(a.grad);
  const float* const filters = static_cast<const float*>(a.filters);
  const float* const points = static_cast<const float*>(a.points);
  float* const of_filters = a.shares + (long long)block * S::CHANNELS * (S::TAPS + S::CHANNELS);
  float* const of_points = of_filters + S::CHANNELS * S::TAPS;

  const auto image = [](int item) { return (long long)(item / S::PIECES) * S::IMAGE; };
  int item = block;
  send_lines<S>(xs, x + image(item), item % S::PIECES);
  depart();
  send_lines<S>(ys, grad + image(item), item % S::PIECES);
  const bool vectors = aligned(points);
  for (int i = threadIdx.x * STRIP; i < S::CHANNELS * S::CHANNELS; i += S::THREADS * STRIP)
    send_strip(ws + i, points + i, vectors);
  depart();
  for (bool first = true; item < items; first = false) {
    const int half = item % S::PIECES, next = item + blocks;
    if (first) {
      arrive<1>();
    } else {
      arrive<0>();
    }
    __syncthreads();
    convolve<S>(ts, xs, filters, half, S::own(half));
    arrive<0>();
    __syncthreads();
    P::sum(of_points, scratch, ys, ts, half, first);
    __syncthreads();
    P::finish(of_points, scratch, first);
    if constexpr (ODD<S>) {  // all lines at once, as threads are many
      inner<S, EACH<S>, S::GROUPS + BEYOND>(ts, ws, ys, 0);
    } else {
      inner<S, EACH<S>, S::GROUPS>(ts, ws, ys, S::own(half) * S::STRIPS);
      if constexpr (BEYOND > 0) inner<S, STRIP, BEYOND>(ts, ws, ys, half ? 0 : S::GROUPS);
    }
    __syncthreads();
    if (next < items) {
      send_lines<S>(ys, grad + image(next), next % S::PIECES);
      depart();
    }
    gradients<S>(static_cast<float*>(a.x_grad) + image(item), of_filters, ts, xs, filters, half, first);
    item = next;
    if (item >= items) break;
    __syncthreads();
    send_lines<S>(xs, x + image(item), item % S::PIECES);
    depart();
  }
}

// OVER, ACROSS, SPLITS: of planes::Points.
template <int SIZE, int DILATION, int CHANNELS, int SIDE, int BAND, int THREADS, int OVER, int ACROSS, int SPLITS>
__device__ __forceinline__ void sep_conv2d_planes_backward(const sep_conv2d_planes_backward_args& a) {
  using S = planes::Shape<SIZE, DILATION, CHANNELS, SIDE, BAND, THREADS>;
  sep_conv2d_planes_backward_items<S, planes::Points<S, OVER, ACROSS, SPLITS>>(a, a.items, blockIdx.x, gridDim.x);
}
