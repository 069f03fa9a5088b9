// Separable convolutions of stride 2 on square planes whose side, number of channels and window the compiler knows.
// A block has all channels of whole images, or of halves or quarters of them, in shared memory; a thread has two
// neighbouring outputs in each of ROWS lines, and the pixels of x below them: a vector of four in each line of x.
#pragma once
#include "planes.cuh"

namespace strided_planes {

using planes::depart;
using planes::positive;
using planes::send;
using planes::Strip;
using separable::aligned;
using separable::STRIP;
using Pair = Vector<float, 2>;

// Windows see FINE lines and FINE columns of x for each of the output: two, or where they are dilated too, one: then
// they see nothing of the odd lines and columns, and shared memory doesn't have those lines. SIDE and BAND are of the
// output, BAND in the lines of a block. HELD and PITCH, as Points has them, are of the output's gradient and of what
// lies between the convolutions, X_HELD and X_PITCH of x.
template <int SIZE_, int DILATION_, int CHANNELS_, int SIDE_, int BAND_, int THREADS_>
struct Shape {
  static constexpr int SIZE = SIZE_, DILATION = DILATION_, CHANNELS = CHANNELS_, SIDE = SIDE_;
  static constexpr int BAND = BAND_, THREADS = THREADS_;
  static constexpr int TAPS = SIZE * SIZE, PAD = SIZE / 2, FINE = 2 / DILATION, PIECES = SIDE / BAND;
  // What x's pixels see of the inner gradient: lines above that of their output, and below; columns likewise.
  static constexpr int BEFORE = PAD / FINE, AFTER = (FINE - 1 + PAD) / FINE;
  static constexpr int HELD = BAND + (PIECES == 1 ? 0 : PIECES == 2 ? AFTER : BEFORE + AFTER);
  static constexpr int PLANE = SIDE * SIDE, IMAGE = CHANNELS * PLANE;
  static constexpr int STRIPS = SIDE / STRIP, GROUPS = BAND * STRIPS;
  // Neighbouring planes begin 4 or 20 banks apart, those that are four apart 16.
  static constexpr int PITCH = (HELD * SIDE + 15) / 16 * 16 + STRIP, PLANES = CHANNELS * PITCH;

  static constexpr int X_SIDE = 2 * SIDE, X_PLANE = X_SIDE * X_SIDE, X_IMAGE = CHANNELS * X_PLANE;
  static constexpr int X_BAND = FINE * BAND, BELOW = PAD + 1 - FINE;  // lines that a half sees beyond its own
  static constexpr int X_HELD = X_BAND + (PIECES == 1 ? 0 : PIECES == 2 ? PAD : PAD + BELOW);
  // A quarter of a warp reads a line of 32, or a line of two planes that are four apart.
  static constexpr int X_PITCH = X_HELD * X_SIDE + (X_SIDE < 32 ? STRIP : 0), X_PLANES = CHANNELS * X_PITCH;

  static constexpr int LANES = SIDE / 2, ROWS = CHANNELS * LANES * BAND / THREADS, SEGMENTS = BAND / ROWS;
  static constexpr unsigned OF_PLANE = LANES - 1 + (SEGMENTS == 2 ? WARP / 2 : 0);  // bits of a lane: the same plane
  static constexpr bool ENDS = PIECES == 1 && SEGMENTS == 1;  // a thread sees no lines but its own
  static_assert(DILATION == 1 || DILATION == 2, "windows see all of x, or a quarter");
  static_assert(PIECES == 1 || PIECES == 2 || PIECES == 4, "a block has an image, or a half or quarter of one");
  static_assert(SEGMENTS * ROWS == BAND && CHANNELS * LANES * SEGMENTS == THREADS, "a thread has two outputs a line");
  static_assert((LANES == 8 && SEGMENTS == 2 && CHANNELS == 32) || (LANES == 8 && SEGMENTS == 1 && CHANNELS % 8 == 0) ||
                    (LANES == 4 && SEGMENTS == 1 && CHANNELS % 16 == 0),
                "Place has planes of these");

  // `half`: the number of the piece.
  static __device__ __forceinline__ int row(int line, int half) {
    if constexpr (PIECES == 4) return line + half * BAND - own(half);
    return PIECES == 2 && half ? line + BAND - AFTER : line;
  }
  static __device__ __forceinline__ int own(int half) {
    if constexpr (PIECES == 4) return half == 0 ? 0 : half == PIECES - 1 ? HELD - BAND : BEFORE;
    return PIECES == 2 && half ? AFTER : 0;
  }
  static __device__ __forceinline__ int x_row(int line, int half) {
    if constexpr (PIECES == 4) return DILATION * (line + half * X_BAND - x_own(half));
    return DILATION * (PIECES == 2 && half ? line + X_BAND - PAD : line);
  }
  static __device__ __forceinline__ int x_own(int half) {
    if constexpr (PIECES == 4) return half == 0 ? 0 : half == PIECES - 1 ? X_HELD - X_BAND : PAD;
    return PIECES == 2 && half ? PAD : 0;
  }
};

// Which outputs of which plane a thread has. Planes of a half of a warp are four apart, or two: a vector that a
// thread reads, or a pair, lies in other banks than its neighbours'.
template <typename S>
struct Place {
  int channel, strip, first;  // strip: of two outputs; first: of its lines, counted from the block's own
  __device__ __forceinline__ Place() {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    strip = lane % S::LANES;
    first = S::SEGMENTS == 2 ? lane / (WARP / 2) * S::ROWS : 0;
    if (S::LANES == 8 && S::CHANNELS % 32 != 0) {
      const int pair = 2 * warp + lane / 16;
      channel = lane / 8 % 2 * 4 + pair % 4 + pair / 4 * 8;
    } else if (S::LANES == 8) {
      channel = lane / 8 % 2 * 4 + warp % 4 + 8 * (S::SEGMENTS == 2 ? warp / 4 : lane / 16 + 2 * (warp / 4));
    } else {
      channel = lane / 4 % 2 * 4 + lane / 8 % 2 * 2 + lane / 16 * 8 + warp % 2 + warp / 2 * 16;
    }
  }
};

// LINES lines of WIDTH floats of all planes, of which the first MANY at most are wanted. A thread has the same place
// in several planes, so that it finds out once where that is.
template <typename S, int LINES, int WIDTH>
__device__ __forceinline__ void send_part(float* to, int pitch, const float* from, int plane, int step, int many) {
  constexpr int OF_LINE = WIDTH / STRIP, OF_PLANE = LINES * OF_LINE, STEP = S::THREADS / OF_PLANE;
  static_assert(STEP > 0, "threads have whole planes");
  const int channel = threadIdx.x / OF_PLANE, line = threadIdx.x % OF_PLANE / OF_LINE;
  const int column = threadIdx.x % OF_LINE * STRIP;
  if (line >= many || (STEP * OF_PLANE < S::THREADS && channel >= STEP)) return;
  const bool vectors = aligned(from);
  to += channel * pitch + line * WIDTH + column;
  from += channel * plane + line * step + column;
  const auto each = [&](int c) { return S::CHANNELS % STEP == 0 || channel + c < S::CHANNELS; };
  if (vectors) {
#pragma unroll
    for (int c = 0; c < S::CHANNELS; c += STEP)
      if (each(c)) send<STRIP>(to + c * pitch, from + c * plane);
  } else {
#pragma unroll 1
    for (int c = 0; c < S::CHANNELS; c += STEP)
      if (each(c)) planes::send_strip(to + c * pitch, from + c * plane, false);
  }
}

// The lines of x that a block holds of one image.
template <typename S>
__device__ __forceinline__ void send_x(float* to, const float* image, int half) {
  constexpr int STEP = S::DILATION * S::X_SIDE;
  if constexpr (S::PIECES == 4) {
    send_part<S, S::X_HELD, S::X_SIDE>(to, S::X_PITCH, image + S::x_row(0, half) * S::X_SIDE, S::X_PLANE, STEP,
                                       S::X_HELD);
    return;
  }
  const int own = S::x_own(half);
  send_part<S, S::X_BAND, S::X_SIDE>(to + own * S::X_SIDE, S::X_PITCH, image + S::x_row(own, half) * S::X_SIDE,
                                     S::X_PLANE, STEP, S::X_BAND);
  if constexpr (S::PIECES == 2) {
    const int beyond = half ? 0 : S::X_BAND;
    send_part<S, S::PAD, S::X_SIDE>(to + beyond * S::X_SIDE, S::X_PITCH, image + S::x_row(beyond, half) * S::X_SIDE,
                                    S::X_PLANE, STEP, half ? S::PAD : S::BELOW);
  }
}

// The lines of the gradient that a block holds of one image.
template <typename S>
__device__ __forceinline__ void send_grad(float* to, const float* image, int half) {
  if constexpr (S::PIECES == 4) {
    send_part<S, S::HELD, S::SIDE>(to, S::PITCH, image + S::row(0, half) * S::SIDE, S::PLANE, S::SIDE, S::HELD);
    return;
  }
  const int own = S::own(half);
  send_part<S, S::BAND, S::SIDE>(to + own * S::SIDE, S::PITCH, image + S::row(own, half) * S::SIDE, S::PLANE, S::SIDE,
                                 S::BAND);
  if constexpr (S::PIECES == 2) {
    const int beyond = half ? 0 : S::BAND;
    send_part<S, S::AFTER, S::SIDE>(to + beyond * S::SIDE, S::PITCH, image + S::row(beyond, half) * S::SIDE, S::PLANE,
                                    S::SIDE, half ? S::BEFORE : S::AFTER);
  }
}

// A thread's columns of a line, with LEFT and RIGHT ones of the neighbours': zeros beyond the plane.
template <int LANES, int OWN, int LEFT, int RIGHT>
struct Line {
  static_assert(LEFT <= OWN && RIGHT <= OWN, "lanes see their neighbours");
  float at[LEFT + OWN + RIGHT];
  __device__ __forceinline__ float& own(int i) { return at[LEFT + i]; }
  __device__ __forceinline__ void spread(int strip) {
#pragma unroll
    for (int e = 0; e < LEFT; ++e) {
      const float before = __shfl_up_sync(ALL_LANES, own(OWN - LEFT + e), 1);
      at[e] = strip > 0 ? before : 0.0f;
    }
#pragma unroll
    for (int e = 0; e < RIGHT; ++e) {
      const float after = __shfl_down_sync(ALL_LANES, own(e), 1);
      at[LEFT + OWN + e] = strip < LANES - 1 ? after : 0.0f;
    }
  }
};

// The taps of a thread's channel.
template <typename S>
struct Taps {
  float at[S::TAPS];
  __device__ __forceinline__ Taps(const float* filters) {
    const float* const own = filters + Place<S>().channel * S::TAPS;
#pragma unroll
    for (int t = 0; t < S::TAPS; ++t) at[t] = __ldg(own + t);
  }
};

// The depthwise convolution of what is positive: us, whose planes are U_PITCH apart, gets the block's own lines, behind
// `before` others.
template <typename S, int U_PITCH = S::PITCH>
__device__ __forceinline__ void convolve(float* us, const float* xs, const Taps<S>& taps, int half, int before) {
  constexpr int FINE = S::FINE, SEEN = FINE * (S::ROWS - 1) + S::SIZE, OWN = FINE * S::ROWS;
  const Place<S> place;
  float sum[S::ROWS][2] = {};
  float* const to = us + place.channel * U_PITCH + (before + place.first) * S::SIDE + place.strip * 2;
  const int first = S::x_own(half) + FINE * place.first - S::PAD;
  const float* const from = xs + place.channel * S::X_PITCH + first * S::X_SIDE + place.strip * STRIP;
  const auto owns = [](int i) { return i >= S::PAD && i < S::PAD + OWN; };  // else the line may be beyond the plane
  Strip given[2];
  const auto read = [&](int i) {
    given[i % 2] = Strip{};
    if (owns(i) || (!S::ENDS && first + i >= 0 && first + i < S::X_HELD)) given[i % 2] = load<STRIP>(from + i * S::X_SIDE);
  };
  read(0);
#pragma unroll
  for (int i = 0; i < SEEN; ++i) {
    if (i + 1 < SEEN) read(i + 1);
    if (owns(i) || !S::ENDS) {
      Line<S::LANES, 2 * FINE, S::PAD, S::BELOW> line;
#pragma unroll
      for (int e = 0; e < 2 * FINE; ++e) line.own(e) = positive(given[i % 2][e * S::DILATION]);
      line.spread(place.strip);
#pragma unroll
      for (int a = 0; a < S::SIZE; ++a) {
        const int k = (i - a) / FINE;
        if (i < a || (i - a) % FINE != 0 || k >= S::ROWS) continue;
#pragma unroll
        for (int b = 0; b < S::SIZE; ++b)
#pragma unroll
          for (int j = 0; j < 2; ++j)
            sum[k][j] = fmaf(taps.at[a * S::SIZE + b], line.at[FINE * j + b], sum[k][j]);
      }
    }
    const int k = (i - (S::SIZE - 1)) / FINE;
    if (i >= S::SIZE - 1 && (i - (S::SIZE - 1)) % FINE == 0) store(to + k * S::SIDE, Pair{sum[k][0], sum[k][1]});
  }
}

}  // namespace strided_planes
