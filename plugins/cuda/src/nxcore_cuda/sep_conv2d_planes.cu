// sep_conv2d of square planes: a block has all channels of some images in shared memory, and a thread makes outputs of
// a few pixels in registers. Nothing lies between the convolutions: what the first makes of a channel, the second
// takes from registers, so that one barrier is enough.
#pragma once
#include "moments.cuh"
#include "planes.cuh"

struct sep_conv2d_planes_args {
  const void* x;
  const void* filters;
  const void* points;
  void* out;
  float* shares;  // [channel][block] of moments, if they are wanted
  int images, relu;
};

namespace planes {

using moments::Moments;

// What a block has. A thread has ROWS times STRIP pixels of CHANNELS / SPLIT of the outputs' channels; SPLIT lanes have
// the same pixels. One of these makes one of SPLIT inner channels, and they exchange them. Neighbours of a strip are
// loaded where windows reach LOADED pixels, and come by shuffles where they reach fewer. The code of a loop has TURN of
// the SPLIT inner channels: code that is too long for the instruction cache takes longer.
template <int CHANNELS_, int SIDE_, int ROWS_, int SPLIT_, int IMAGES_, int LOADED_, int TURN_>
struct Block {
  static constexpr int CHANNELS = CHANNELS_, SIDE = SIDE_, ROWS = ROWS_, SPLIT = SPLIT_, IMAGES = IMAGES_;
  static constexpr int LOADED = LOADED_, TURN = TURN_;
  static constexpr int STRIPS = SIDE / STRIP, PIXELS = ROWS * STRIP, OUTS = CHANNELS / SPLIT;
  static constexpr int LANES = WARP / SPLIT;                        // of a warp, that differ in their pixels
  static constexpr int OF_IMAGE = SIDE * SIDE / PIXELS * SPLIT;     // threads
  static constexpr int THREADS = OF_IMAGE * IMAGES, WARPS = THREADS / WARP;
  static constexpr int LINES = (SIDE + 1) * SIDE;  // the last one is zeros: what is above and below the plane
  // Quarters of a warp that read several channels read other banks of each.
  static constexpr int AT_ONCE = LANES * STRIP;
  static constexpr int PLANE = LINES + (AT_ONCE < 32 ? (32 + AT_ONCE - LINES % 32) % 32 : 0);
  static constexpr int PITCH = CHANNELS + STRIP;   // of a channel's points, so that lanes read other banks
  static constexpr int XS = IMAGES * CHANNELS * PLANE, WS = CHANNELS * PITCH, FOUND = WARPS * CHANNELS;
  static_assert(OF_IMAGE % WARP == 0 && LANES >= STRIPS && OUTS % STRIP == 0 && SIDE % (2 * ROWS) == 0,
                "a warp has pixels of one image");

  // Where a row lies: those that lanes read together lie side by side, in different banks.
  template <int DILATION>
  static __device__ __forceinline__ int line(int row) {
    return row / DILATION % ROWS * (SIDE / ROWS) + row / (DILATION * ROWS) * DILATION + row % DILATION;
  }
};

// Filters in shared memory: each of their rows begins at a float4, so that few taps are in registers at a time.
template <int SIZE>
struct Filters {
  static constexpr int TAPS = SIZE * SIZE, ROW = (SIZE + STRIP - 1) / STRIP * STRIP, PITCH = SIZE * ROW;
};

__device__ __forceinline__ Strip load_strip(const float* from, bool vectors) {
  return vectors ? load<STRIP>(from) : Strip{from[0], from[1], from[2], from[3]};
}

__device__ __forceinline__ void store_strip(float* to, const Strip& strip, bool vectors) {
  if (vectors) {
    store(to, strip);
  } else {
#pragma unroll
    for (int j = 0; j < STRIP; ++j) to[j] = strip[j];
  }
}

// Planes from `x` on. A thread has the same strips of several planes, so that it finds out once where they lie.
template <typename B, int DILATION, bool VECTORS>
__device__ __forceinline__ void copy_planes(float* xs, const float* x, int planes, bool relu) {
  constexpr int FOURS = B::SIDE * B::STRIPS, STEP = B::THREADS / FOURS > 0 ? B::THREADS / FOURS : 1;
  constexpr int PARTS = FOURS > B::THREADS ? FOURS / B::THREADS : 1;
  constexpr int FLIGHT = B::CHANNELS / STEP < 16 ? B::CHANNELS / STEP : 16;
  static_assert(STEP * FOURS == B::THREADS * PARTS, "threads have whole planes, or parts of them");
  static_assert(B::CHANNELS % (STEP * FLIGHT) == 0, "an image has no remainder");
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
    const int place = threadIdx.x % FOURS + part * B::THREADS, first = threadIdx.x / FOURS;
    const float* const from = x + place * STRIP;
    float* const to = xs + B::template line<DILATION>(place / B::STRIPS) * B::SIDE + place % B::STRIPS * STRIP;
#pragma unroll 1
    for (int plane = first; plane < planes; plane += STEP * FLIGHT) {
      Strip found[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; ++i)
        found[i] = load_strip(from + (plane + i * STEP) * B::SIDE * B::SIDE, VECTORS);
#pragma unroll
      for (int i = 0; i < FLIGHT; ++i) {
        if (relu) {
#pragma unroll
          for (int e = 0; e < STRIP; ++e) found[i][e] = positive(found[i][e]);
        }
        store(to + (plane + i * STEP) * B::PLANE, found[i]);
      }
    }
  }
}

// The images from `x` on, with zeros behind each plane.
template <typename B, int DILATION>
__device__ __forceinline__ void copy_images(float* xs, const float* x, int images, bool relu) {
  const int planes = images * B::CHANNELS;
  if (aligned(x)) {
    copy_planes<B, DILATION, true>(xs, x, planes, relu);
  } else {
    copy_planes<B, DILATION, false>(xs, x, planes, relu);
  }
  for (int i = threadIdx.x; i < planes * B::STRIPS; i += B::THREADS)
    store(xs + i / B::STRIPS * B::PLANE + B::SIDE * B::SIDE + i % B::STRIPS * STRIP, Strip{});
}

// The 1x1 filters, turned, so that the outputs' channels of an inner channel are neighbours; and the others.
template <typename B, int SIZE>
__device__ __forceinline__ void send_filters(float* ws, float* fs, const float* points, const float* filters) {
  using F = Filters<SIZE>;
#pragma unroll 4
  for (int i = threadIdx.x; i < B::CHANNELS * B::CHANNELS; i += B::THREADS)
    send<1>(ws + i % B::CHANNELS * B::PITCH + i / B::CHANNELS, points + i);
#pragma unroll 4
  for (int i = threadIdx.x; i < B::CHANNELS * F::TAPS; i += B::THREADS)
    send<1>(fs + i / F::TAPS * F::PITCH + i % F::TAPS / SIZE * F::ROW + i % SIZE, filters + i);
  depart();
}

// Which pixels and which channels a thread has.
template <typename B, int DILATION>
struct Pixels {
  int image, split, strip, row;  // row: the first; the others are DILATION apart
  __device__ __forceinline__ Pixels() {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x % B::OF_IMAGE / WARP;
    const int group = warp * B::LANES + lane % B::LANES, down = group / B::STRIPS;
    image = threadIdx.x / B::OF_IMAGE;
    split = lane / B::LANES;
    strip = group % B::STRIPS;
    row = down / DILATION * (DILATION * B::ROWS) + down % DILATION;
  }
};

// What a thread's windows see of a line: zeros beyond the plane.
template <typename B, int REACH>
struct Line {
  float at[STRIP + 2 * REACH];
  __device__ __forceinline__ void read(const float* own, int strip) {
    const Strip middle = load<STRIP>(own);
#pragma unroll
    for (int e = 0; e < STRIP; ++e) at[REACH + e] = middle[e];
    if constexpr (REACH >= B::LOADED) {
      Vector<float, REACH> left = {}, right = {};
      if (strip > 0) left = load<REACH>(own - REACH);
      if (strip < B::STRIPS - 1) right = load<REACH>(own + STRIP);
#pragma unroll
      for (int e = 0; e < REACH; ++e) {
        at[e] = left[e];
        at[REACH + STRIP + e] = right[e];
      }
    } else {
#pragma unroll
      for (int e = 0; e < REACH; ++e) {
        const float before = __shfl_up_sync(ALL_LANES, at[STRIP + e], 1);
        const float after = __shfl_down_sync(ALL_LANES, at[REACH + e], 1);
        at[e] = strip > 0 ? before : 0.0f;
        at[REACH + STRIP + e] = strip < B::STRIPS - 1 ? after : 0.0f;
      }
    }
  }
};

template <int SIZE>
__device__ __forceinline__ void read_taps(float (&taps)[SIZE], const float* row) {
  const Strip four = load<STRIP>(row);
#pragma unroll
  for (int b = 0; b < SIZE; ++b) taps[b] = b < STRIP ? four[b % STRIP] : row[b];
}

// All outputs of a thread: both convolutions, an inner channel after the other.
template <typename B, int SIZE, int DILATION>
__device__ __forceinline__ void make(float (&sum)[B::OUTS][B::PIXELS], const Pixels<B, DILATION>& own, const float* xs,
                                     const float* ws, const float* fs) {
  using F = Filters<SIZE>;
  constexpr int HALF = SIZE / 2, LINES = B::ROWS + SIZE - 1;
  const float* from[LINES];
#pragma unroll
  for (int i = 0; i < LINES; ++i) {
    const int row = own.row + (i - HALF) * DILATION;
    const int line = row >= 0 && row < B::SIDE ? B::template line<DILATION>(row) : B::SIDE;
    from[i] = xs + own.split * B::PLANE + line * B::SIDE + own.strip * STRIP;
  }
  const float* filter = fs + own.split * F::PITCH;
  const float* column = ws + own.split * B::OUTS;
#pragma unroll 1
  for (int base = 0; base < B::CHANNELS; base += B::SPLIT) {
    float taps[SIZE][SIZE], inner[B::ROWS][STRIP] = {};
#pragma unroll
    for (int i = 0; i < LINES; ++i) {
      Line<B, HALF * DILATION> line;
      line.read(from[i], own.strip);
      from[i] += B::SPLIT * B::PLANE;
      if (i < SIZE) read_taps(taps[i], filter + i * F::ROW);
#pragma unroll
      for (int a = 0; a < SIZE; ++a) {
        const int k = i - a;
        if (k < 0 || k >= B::ROWS) continue;
#pragma unroll
        for (int b = 0; b < SIZE; ++b)
#pragma unroll
          for (int j = 0; j < STRIP; ++j)
            inner[k][j] = fmaf(taps[a][b], line.at[j + b * DILATION], inner[k][j]);
      }
    }
#pragma unroll 1
    for (int turn = 0; turn < B::SPLIT; turn += B::TURN) {
      float u[B::TURN][B::PIXELS];
#pragma unroll
      for (int s = 0; s < B::TURN; ++s)
#pragma unroll
        for (int p = 0; p < B::PIXELS; ++p) {
          u[s][p] = inner[p / STRIP][p % STRIP];
          if (s > 0 || B::TURN < B::SPLIT) u[s][p] = __shfl_xor_sync(ALL_LANES, u[s][p], (turn + s) * B::LANES);
        }
#pragma unroll
      for (int s = 0; s < B::TURN; ++s) {
        const float* const w = column + (own.split ^ (turn + s)) * B::PITCH;
#pragma unroll
        for (int o = 0; o < B::OUTS; o += STRIP) {
          const Strip four = load<STRIP>(w + o);
#pragma unroll
          for (int e = 0; e < STRIP; ++e)
#pragma unroll
            for (int p = 0; p < B::PIXELS; ++p) sum[o + e][p] = fmaf(four[e], u[s][p], sum[o + e][p]);
        }
      }
    }
    filter += B::SPLIT * F::PITCH;
    column += B::SPLIT * B::PITCH;
  }
}

template <typename B, int DILATION>
__device__ __forceinline__ void leave_pixels(float* image, const Pixels<B, DILATION>& own,
                                             const float (&sum)[B::OUTS][B::PIXELS], bool vectors) {
  float* const to = image + own.split * B::OUTS * B::SIDE * B::SIDE + own.row * B::SIDE + own.strip * STRIP;
#pragma unroll
  for (int o = 0; o < B::OUTS; ++o)
#pragma unroll
    for (int k = 0; k < B::ROWS; ++k) {
      const float* const p = sum[o] + k * STRIP;
      store_strip(to + o * B::SIDE * B::SIDE + k * DILATION * B::SIDE, Strip{p[0], p[1], p[2], p[3]}, vectors);
    }
}

// The means of a warp's pixels, and their squared deviations from these: found[0] and found[1] of each warp have all
// channels.
template <typename B>
__device__ __forceinline__ void find_moments(float* means, float* squares, const float (&sum)[B::OUTS][B::PIXELS],
                                             int split) {
  constexpr float SHARE = 1.0f / (B::LANES * B::PIXELS);
  float own[B::OUTS];
#pragma unroll
  for (int o = 0; o < B::OUTS; ++o) {
    own[o] = sum[o][0];
#pragma unroll
    for (int p = 1; p < B::PIXELS; ++p) own[o] += sum[o][p];
  }
  fold<B::LANES - 1>(own, [&](int o, float total) { means[split * B::OUTS + o] = total * SHARE; });
  __syncwarp();
#pragma unroll
  for (int o = 0; o < B::OUTS; ++o) {
    const float mean = means[split * B::OUTS + o];
    own[o] = 0.0f;
#pragma unroll
    for (int p = 0; p < B::PIXELS; ++p) own[o] = fmaf(sum[o][p] - mean, sum[o][p] - mean, own[o]);
  }
  fold<B::LANES - 1>(own, [&](int o, float total) { squares[split * B::OUTS + o] = total; });
}

}  // namespace planes

// The work of the block with number `block` of `blocks`. A: a struct with x, filters, points, out and shares.
// `shared`: xs (the planes), ws (the points), means and squares of warps, fs (the filters).
template <typename B, int SIZE, int DILATION, typename A>
__device__ __forceinline__ void sep_conv2d_planes_images(const A& a, int images, bool relu, unsigned block,
                                                         unsigned blocks) {
  using namespace planes;
  constexpr int IMAGE = B::CHANNELS * B::SIDE * B::SIDE;
  float* const xs = dynamic_shared<float>();
  float* const ws = xs + B::XS;
  float* const means = ws + B::WS;
  float* const squares = means + B::FOUND;
  float* const fs = squares + B::FOUND;
  const int first = block * B::IMAGES, some = min(B::IMAGES, images - first);
  send_filters<B, SIZE>(ws, fs, static_cast<const float*>(a.points), static_cast<const float*>(a.filters));
  copy_images<B, DILATION>(xs, static_cast<const float*>(a.x) + (long long)first * IMAGE, some, relu);
  arrive<0>();
  __syncthreads();

  const Pixels<B, DILATION> own;
  if (own.image < some) {
    float sum[B::OUTS][B::PIXELS] = {};
    make<B, SIZE, DILATION>(sum, own, xs + own.image * B::CHANNELS * B::PLANE, ws, fs);
    float* const out = static_cast<float*>(a.out);
    leave_pixels<B, DILATION>(out + (long long)(first + own.image) * IMAGE, own, sum, aligned(out));
    const int begin = threadIdx.x / WARP * B::CHANNELS;
    if (a.shares) find_moments<B>(means + begin, squares + begin, sum, own.split);
  }
  if (a.shares) {
    __syncthreads();
    for (int channel = threadIdx.x; channel < B::CHANNELS; channel += B::THREADS) {
      Moments all = {};
      for (int warp = 0; warp < some * (B::OF_IMAGE / WARP); ++warp) {
        const int at = warp * B::CHANNELS + channel;
        const Moments next = {(float)(B::LANES * B::PIXELS), means[at], squares[at]};
        all = warp ? moments::together(all, next) : next;
      }
      moments::leave(a.shares, (long long)channel * blocks + block, all);
    }
  }
}

template <int SIZE, int DILATION, int CHANNELS, int SIDE, int ROWS, int SPLIT, int IMAGES, int LOADED, int TURN>
__device__ __forceinline__ void sep_conv2d_planes(const sep_conv2d_planes_args& a) {
  using B = planes::Block<CHANNELS, SIDE, ROWS, SPLIT, IMAGES, LOADED, TURN>;
  sep_conv2d_planes_images<B, SIZE, DILATION>(a, a.images, a.relu, blockIdx.x, gridDim.x);
}
