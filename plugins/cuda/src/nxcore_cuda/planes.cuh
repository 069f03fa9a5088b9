// Separable convolutions of square planes whose side, number of channels and window the compiler knows: a block has
// all channels of whole images, or of halves of them, in shared memory, and a thread walks down a strip of a plane.
#pragma once
#include "separable.cuh"

namespace planes {

using separable::aligned;
using separable::STRIP;
using Strip = Vector<float, STRIP>;

// What a block has. Lines are rows as shared memory has them: where the window is dilated, the even rows and then the
// odd ones, which never see each other. A half of an image is its upper or lower rows, with those beyond that its
// windows see, or its even or odd rows. A quarter is one of four bands of rows, with as many beyond as a band between
// two others sees, or the upper or lower ones of the even or of the odd rows.
template <int SIZE_, int DILATION_, int CHANNELS_, int SIDE_, int BAND_, int THREADS_>
struct Shape {
  static constexpr int SIZE = SIZE_, DILATION = DILATION_, CHANNELS = CHANNELS_, SIDE = SIDE_;
  static constexpr int BAND = BAND_, THREADS = THREADS_;  // a block's own lines
  static constexpr int TAPS = SIZE * SIZE, HALF = SIZE / 2, REACH = HALF * DILATION, PIECES = SIDE / BAND;
  static constexpr int PLANE = SIDE * SIDE, IMAGE = CHANNELS * PLANE, STRIPS = SIDE / STRIP;
  static constexpr int BANDS = PIECES > DILATION ? PIECES / DILATION : 1;  // of rows that see each other
  static constexpr int HELD = BAND + (BANDS == 1 ? 0 : BANDS == 2 ? HALF : 2 * HALF);
  static constexpr int PART = DILATION > PIECES ? SIDE / DILATION : HELD;  // lines that see each other
  // Neighbouring planes begin four banks apart, so that a load of eight of them has no conflict.
  static constexpr int PITCH = (HELD * SIDE + 31) / 32 * 32 + STRIP, PLANES = CHANNELS * PITCH;
  static constexpr int GROUPS = BAND * STRIPS;  // of four neighbouring pixels, in a plane's own lines
  // A thread's part of a depthwise convolution: a strip of ROWS lines. A warp has whole planes.
  static constexpr int ROWS = BAND * CHANNELS * STRIPS / THREADS, SEGMENTS = BAND / ROWS;
  static constexpr int SPREAD = 8 / STRIPS;  // planes of a quarter of a warp
  static constexpr unsigned OF_PLANE = STRIPS - 1 + 8 * (SEGMENTS - 1);  // bits of a lane: the same plane
  static constexpr bool ENDS = ROWS == PART && HELD == BAND;  // a thread sees no lines but its own
  static_assert(PIECES == 1 || PIECES == 2 || PIECES == 4, "a block has an image, or a half or quarter of one");
  static_assert(SIDE >= 8 && SIDE <= 32 && ROWS * SEGMENTS == BAND && 8 * SEGMENTS <= WARP && ROWS <= PART,
                "a warp has whole planes");

  // `half`: the number of the piece.
  static __device__ __forceinline__ int row(int line, int half) {
    if constexpr (PIECES == 4) {
      const int band = half / DILATION;
      return (band * BAND - before(band) + line) * DILATION + half % DILATION;
    }
    if (DILATION == 1) return PIECES == 2 && half ? line + BAND - HALF : line;
    return PIECES == 2 ? 2 * line + half : line % PART * 2 + line / PART;
  }
  // The line at which a block's own begin.
  static __device__ __forceinline__ int own(int half) {
    if constexpr (PIECES == 4) return before(half / DILATION);
    return HELD > BAND && half ? HALF : 0;
  }
  // Lines that a block holds before its own: the first and the last band hold more on their other side.
  static __device__ __forceinline__ int before(int band) {
    return band == 0 ? 0 : band == BANDS - 1 ? HELD - BAND : HALF;
  }
};

template <int FLOATS>
__device__ __forceinline__ void send(float* to, const float* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const unsigned at = (unsigned)__cvta_generic_to_shared(to);
  if constexpr (FLOATS == STRIP) {  // past the first-level cache
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
  }
#else
  store(to, load<FLOATS>(from));
#endif
}

// Ends a batch of copies; `arrive` waits until all but the LATEST batches of this thread are there.
__device__ __forceinline__ void depart() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LATEST>
__device__ __forceinline__ void arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LATEST) : "memory");
#endif
}

__device__ __forceinline__ void send_strip(float* to, const float* from, bool vectors) {
  if (vectors) {
    send<STRIP>(to, from);
  } else {
#pragma unroll
    for (int e = 0; e < STRIP; ++e) send<1>(to + e, from + e);
  }
}

// LINES lines of all planes, from line `first` on. A thread has the same place in several planes, so that it finds
// out once where that is.
template <typename S, int LINES>
__device__ __forceinline__ void send_part(float* to, const float* image, int half, int first) {
  constexpr int OF_PLANE = LINES * S::STRIPS, STEP = S::THREADS / OF_PLANE;  // planes at a time
  static_assert(STEP > 0, "threads have whole planes");
  const int channel = threadIdx.x / OF_PLANE, place = threadIdx.x % OF_PLANE;
  if (STEP * OF_PLANE < S::THREADS && channel >= STEP) return;  // fewer than have a plane
  const int line = first + place / S::STRIPS, strip = place % S::STRIPS * STRIP;
  to += channel * S::PITCH + line * S::SIDE + strip;
  image += channel * S::PLANE + S::row(line, half) * S::SIDE + strip;
  const auto each = [&](int c) { return S::CHANNELS % STEP == 0 || channel + c < S::CHANNELS; };
  if (aligned(image)) {
#pragma unroll
    for (int c = 0; c < S::CHANNELS; c += STEP)
      if (each(c)) send<STRIP>(to + c * S::PITCH, image + c * S::PLANE);
  } else {
#pragma unroll 1
    for (int c = 0; c < S::CHANNELS; c += STEP)
      if (each(c)) send_strip(to + c * S::PITCH, image + c * S::PLANE, false);
  }
}

// The lines that a block holds of one image.
template <typename S>
__device__ __forceinline__ void send_lines(float* to, const float* image, int half) {
  send_part<S, S::BAND>(to, image, half, 0);
  if constexpr (S::HELD > S::BAND) send_part<S, S::HELD - S::BAND>(to, image, half, S::BAND);
}

// The positive part; NaN stays.
__device__ __forceinline__ float positive(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float found;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(found) : "f"(x));
  return found;
#else
  return x < 0.0f ? 0.0f : x;
#endif
}

// Which strip of which plane and of which lines a thread has. A quarter of a warp has planes that are STRIPS apart:
// their strips lie in different banks.
template <typename S>
struct Place {
  int channel, strip, first;  // first: of its lines, counted from the block's own
  __device__ __forceinline__ Place() {
    constexpr int ACROSS = 8 / S::SPREAD;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, more = WARP / (8 * S::SEGMENTS);
    strip = lane % ACROSS;
    first = lane / 8 % S::SEGMENTS * S::ROWS;
    const int outer = warp * more + lane / (8 * S::SEGMENTS);
    channel = outer % S::STRIPS + S::STRIPS * (lane % 8 / ACROSS) + 8 * (outer / S::STRIPS);
  }
};

// What the windows of a strip's outputs see of one line: zeros beyond the plane.
template <typename S, bool POSITIVE>
struct Seen {
  static constexpr int REACH = S::REACH;
  static constexpr bool WIDE = REACH == STRIP;  // three loads cost less than eight shuffles
  Strip left, middle, right;
  float at[STRIP + 2 * REACH];

  // Begins to load a line; `spread` puts it in place.
  __device__ __forceinline__ void read(const float* own, int strip, bool inside) {
    left = middle = right = Strip{};
    if (inside) middle = load<STRIP>(own);
    if (WIDE && inside && strip > 0) left = load<STRIP>(own - STRIP);
    if (WIDE && inside && strip < S::STRIPS - 1) right = load<STRIP>(own + STRIP);
  }

  __device__ __forceinline__ void spread(int strip) {
#pragma unroll
    for (int e = 0; e < STRIP; ++e) at[REACH + e] = POSITIVE ? positive(middle[e]) : middle[e];
#pragma unroll
    for (int e = 0; e < REACH; ++e) {
      if constexpr (WIDE) {
        at[e] = POSITIVE ? positive(left[e]) : left[e];
        at[REACH + STRIP + e] = POSITIVE ? positive(right[e]) : right[e];
      } else {
        const float before = __shfl_up_sync(ALL_LANES, at[STRIP + e], 1);
        const float after = __shfl_down_sync(ALL_LANES, at[REACH + e], 1);
        at[e] = strip > 0 ? before : 0.0f;
        at[REACH + STRIP + e] = strip < S::STRIPS - 1 ? after : 0.0f;
      }
    }
  }
};

// Walks down the lines that a thread's outputs see: step(i, seen), where output k sees lines k to k + SIZE - 1, and
// then done(k) when it has seen all of them. A line is on its way while the one before is used.
template <typename S, bool POSITIVE, typename Step, typename Done>
__device__ __forceinline__ void walk(const float* plane, const Place<S>& place, int half, Step step, Done done) {
  constexpr int FROM = S::ENDS ? S::HALF : 0, UNTIL = S::ROWS + S::SIZE - 1 - FROM;
  const int first = S::own(half) + place.first - S::HALF, begin = (first + S::HALF) / S::PART * S::PART;
  const float* const own = plane + first * S::SIDE + place.strip * STRIP;
  Seen<S, POSITIVE> seen[2];
  const auto read = [&](int i) {
    const bool inside = S::ENDS || (first + i >= begin && first + i < begin + S::PART);
    seen[i % 2].read(own + i * S::SIDE, place.strip, inside);
  };
  read(FROM);
#pragma unroll
  for (int i = FROM; i < UNTIL; ++i) {
    if (i + 1 < UNTIL) read(i + 1);
    seen[i % 2].spread(place.strip);
    step(i, seen[i % 2].at);
    if (i >= S::SIZE - 1) done(i - (S::SIZE - 1));
  }
#pragma unroll
  for (int k = UNTIL - (S::SIZE - 1); k < S::ROWS; ++k) done(k);
}

// The depthwise convolution of what is positive: us, whose planes are U_PITCH apart, gets the block's own lines, behind
// `before` others.
template <typename S, int U_PITCH = S::PITCH>
__device__ __forceinline__ void convolve(float* us, const float* xs, const float* filters, int half, int before) {
  const Place<S> place;
  float weight[S::TAPS], sum[S::ROWS][STRIP] = {};
#pragma unroll
  for (int t = 0; t < S::TAPS; ++t) weight[t] = __ldg(filters + place.channel * S::TAPS + t);
  float* const to = us + place.channel * U_PITCH + (before + place.first) * S::SIDE + place.strip * STRIP;
  walk<S, true>(xs + place.channel * S::PITCH, place, half, [&](int i, const auto& seen) {
#pragma unroll
    for (int a = 0; a < S::SIZE; ++a) {
      const int k = i - a;
      if (k < 0 || k >= S::ROWS) continue;
#pragma unroll
      for (int b = 0; b < S::SIZE; ++b)
#pragma unroll
        for (int j = 0; j < STRIP; ++j)
          sum[k][j] = fmaf(weight[a * S::SIZE + b], seen[j + b * S::DILATION], sum[k][j]);
    }
  }, [&](int k) { store(to + k * S::SIDE, Strip{sum[k][0], sum[k][1], sum[k][2], sum[k][3]}); });
}

// Adds up each of COUNT values over the lanes that differ in the bits of MASK: emit(value's number, sum) is called in
// one of them. ALL: the next power of two.
template <unsigned MASK, int COUNT, int ALL = ::depthwise::ceil_to_power(COUNT), typename Emit>
__device__ __forceinline__ void fold(const float (&given)[COUNT], Emit emit) {
  const int lane = threadIdx.x % WARP;
  float value[ALL];
#pragma unroll
  for (int i = 0; i < ALL; ++i) value[i] = i < COUNT ? given[i < COUNT ? i : 0] : 0.0f;
  int held = ALL, base = 0;
  bool emits = true;
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) {
    if (!(MASK & step)) continue;
    const bool upper = lane & step;
    if (held > 1) {
      held /= 2;
      base += upper ? held : 0;
#pragma unroll
      for (int i = 0; i < ALL / 2; ++i) {
        if (i < held) {
          const float other = upper ? value[i] : value[i + held];
          value[i] = (upper ? value[i + held] : value[i]) + __shfl_xor_sync(ALL_LANES, other, step);
        }
      }
    } else {
      value[0] += __shfl_xor_sync(ALL_LANES, value[0], step);
      emits = emits && !upper;
    }
  }
#pragma unroll
  for (int i = 0; i < ALL; ++i)
    if (i < held && emits && base + i < COUNT) emit(base + i, value[i]);
}

}  // namespace planes
