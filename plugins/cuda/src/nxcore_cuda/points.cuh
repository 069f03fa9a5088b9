// 1x1 convolutions, forward and to the image's gradient: products of channels, pixel by pixel.
//
// Each term is one fused multiply-add in float32, of elements of any type; no tensor core.
//
// A thread has PIXELS neighbours and MADE channels out. It loads the pixels of eight channels at once, and reads
// their weights, which the block keeps in shared memory, four at a time. SLICES warps share the channels of one
// place; what they found is added up in order.
#pragma once

#include "element.cuh"

struct points_steps {
  long long image, channel, row, column;
};

// Filters that read one pixel of each window: (0, 0), or (1, 1) for shifted ones.
struct points_filters {
  long long made, term;  // from one channel out to the next one's, and from term to term
  int terms, outs;       // channels in, and channels out
};

template <typename T>
struct points_args {
  const T* x;  // what is multiplied: the image, or the gradient of the output
  const T* weight;
  const T* shifted;  // or null
  const T* seen;     // of the gradient of ReLU: the image, or null
  T* out;
  points_steps x_step, out_step, seen_step;
  points_filters filters[2];
  long long x_start, out_start;  // where the channels of shifted filters begin, in x and in out
  int height, width, out_height, out_width;  // of the image and of the output, whichever is written
  int stride;
  int items, of_image;          // lots of PIXELS pixels: all, and of an image
  int lots, lots_of_weight;     // lots of MADE channels out: all, and those of `weight`
  int relu, has_shifted;
};

namespace points {

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int TOGETHER = 8;  // channels that slices add up at once
constexpr int SPARE = 4;     // floats between the weights of two terms, so that they begin in other banks

__device__ __forceinline__ float positive(float x) { return x < 0.0f ? 0.0f : x; }  // NaN stays

// PIXELS elements, STEP apart, of which the first is the one numbered `shift`.
template <int PIXELS, int STEP, typename T>
__device__ __forceinline__ void load_apart(const T* from, int shift, float (&to)[PIXELS]) {
  static_assert(STEP == 1 || (STEP == 2 && PIXELS > 1), "vectors of neighbours, or of every other one");
  if constexpr (STEP == 1) {
    const Vector<T, PIXELS> some = load<PIXELS>(from);
#pragma unroll
    for (int p = 0; p < PIXELS; ++p) to[p] = widen(some[p]);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Vector<T, PIXELS> some = load<PIXELS>(from + half * PIXELS);
#pragma unroll
      for (int p = 0; p < PIXELS / 2; ++p) {
        to[half * (PIXELS / 2) + p] = widen(shift ? some[2 * p + 1] : some[2 * p]);
      }
    }
  }
}

// Where the thread works: an item, the place of its first pixel, and whether there is such an item.
struct place {
  int image, row, column;
  bool inside;
};

template <int PIXELS>
__device__ __forceinline__ place locate(int item, int items, int of_image, int width) {
  const bool inside = item < items;
  const int known = inside ? item : 0, pixel = known % of_image * PIXELS;
  return {known / of_image, pixel / width, pixel % width, inside};
}

}  // namespace points

// TURNED: the image's gradient. STRIDE: 1 or 2 where vectors of PIXELS are whole, 0 for any other layout and stride.
template <typename T, bool TURNED, int STRIDE, int PIXELS, int MADE, int SLICES>
__device__ __forceinline__ void points_product(const points_args<T>& a) {
  using namespace points;
  constexpr int PITCH = MADE + SPARE, STEP = TURNED || STRIDE == 0 ? 1 : STRIDE;
  constexpr int BATCH = STEP * PIXELS > 4 ? 4 : 8;  // channels whose pixels are on their way at once
  static_assert(STRIDE > 0 || PIXELS == 1, "vectors have a stride of 1 or 2");
  static_assert(MADE % TOGETHER == 0 && TOGETHER % SLICES == 0 && WARPS % SLICES == 0, "slices share whole channels");

  const int lot = blockIdx.x % a.lots, shift = lot >= a.lots_of_weight;
  const int first = (lot - shift * a.lots_of_weight) * MADE;
  const points_filters& f = a.filters[shift];
  const T* const weight = (shift ? a.shifted : a.weight) + first * f.made;
  float* const weights = dynamic_shared<float>();
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;

  const int slice = warp % SLICES, group = warp / SLICES;
  const int item = (blockIdx.x / a.lots * (WARPS / SLICES) + group) * WARP + lane;
  place at = locate<PIXELS>(item, a.items, a.of_image, TURNED && STRIDE == 0 ? a.width : a.out_width);
  bool meets = true;  // an output, where the pixels of the image are the items
  int row = at.row, column = at.column;  // of what is multiplied
  if constexpr (TURNED && STRIDE == 0) {
    const auto met = [&](int by) {
      const int down = at.row - by, across = at.column - by;
      return down >= 0 && across >= 0 && down % a.stride == 0 && across % a.stride == 0 &&
             down / a.stride < a.out_height && across / a.stride < a.out_width;
    };
    meets = met(shift);
    at.inside = at.inside && (shift ? meets : !(a.has_shifted && met(1)));  // a pixel meets one of both at most
    row = meets ? (at.row - shift) / a.stride : 0;
    column = meets ? (at.column - shift) / a.stride : 0;
  } else if constexpr (!TURNED && STRIDE != 1) {
    row = at.row * a.stride + shift;
    column = at.column * a.stride + (STRIDE == 0 ? shift : 0);
  }
  const T* const x = a.x + at.image * a.x_step.image + (TURNED && shift ? a.x_start : 0) + row * a.x_step.row +
                     column * a.x_step.column;

  // The first pixels are on their way while weights are.
  int begin = slice * BATCH;
  float seen[BATCH][PIXELS];
  const auto fetch = [&](int from) {
#pragma unroll
    for (int b = 0; b < BATCH; ++b) load_apart<PIXELS, STEP>(x + (from + b) * a.x_step.channel, shift, seen[b]);
  };
  if (begin + BATCH <= f.terms) fetch(begin);

  // The weights of a term lie side by side. Lanes read neighbours.
  if (f.term == 1) {
    for (int o = warp; o < MADE; o += WARPS) {
      for (int t = lane; t < f.terms; t += WARP) {
        weights[t * PITCH + o] = first + o < f.outs ? widen(weight[o * f.made + t]) : 0.0f;
      }
    }
  } else {
    for (int i = threadIdx.x; i < f.terms * MADE; i += THREADS) {
      const int t = i / MADE, o = i % MADE;
      weights[t * PITCH + o] = first + o < f.outs ? widen(weight[o * f.made + t * f.term]) : 0.0f;
    }
  }
  __syncthreads();

  const bool relu = !TURNED && a.relu;
  float sums[MADE][PIXELS] = {};
  const auto add = [&](float (&pixels)[PIXELS], int term) {
    if (relu) {
#pragma unroll
      for (int p = 0; p < PIXELS; ++p) pixels[p] = positive(pixels[p]);
    }
#pragma unroll
    for (int o = 0; o < MADE; o += 4) {
      const Vector<float, 4> w = load<4>(weights + term * PITCH + o);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int p = 0; p < PIXELS; ++p) sums[o + e][p] = __fmaf_rn(w[e], pixels[p], sums[o + e][p]);
      }
    }
  };
  for (; begin + BATCH <= f.terms; begin += SLICES * BATCH) {
#pragma unroll
    for (int b = 0; b < BATCH; ++b) add(seen[b], begin + b);
    if (begin + (SLICES + 1) * BATCH <= f.terms) fetch(begin + SLICES * BATCH);
  }
  for (int t = begin; t < f.terms && t < begin + BATCH; ++t) {
    float pixels[PIXELS];
    load_apart<PIXELS, STEP>(x + t * a.x_step.channel, shift, pixels);
    add(pixels, t);
  }

  constexpr bool SPREADS = TURNED && STRIDE == 2;  // every other pixel of every other row; the rest are zeros
  const int out_row = SPREADS ? 2 * at.row + shift : at.row, out_column = SPREADS ? 2 * at.column : at.column;
  T* const out = a.out + at.image * a.out_step.image + (!TURNED && shift ? a.out_start : 0) +
                 out_row * a.out_step.row + out_column * a.out_step.column;
  const T* const given = !TURNED || a.seen == nullptr
                             ? nullptr
                             : a.seen + at.image * a.seen_step.image + out_row * a.seen_step.row +
                                   out_column * a.seen_step.column;
  // COUNT channels from the one numbered `o` on. What ReLU saw is loaded for all of them before any is stored.
  const auto emit = [&](auto& made, int o) {
    constexpr int COUNT = sizeof(made) / sizeof(made[0]);
    if (!at.inside) return;
    float own[COUNT][PIXELS];
    if (TURNED && given != nullptr) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        if (first + o + i >= f.outs) break;
        load_apart<PIXELS, SPREADS ? 2 : 1>(given + (first + o + i) * a.seen_step.channel, shift, own[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (first + o + i >= f.outs) break;
      T* const to = out + (first + o + i) * a.out_step.channel;
      if constexpr (TURNED) {
#pragma unroll
        for (int p = 0; p < PIXELS; ++p) {
          if (!meets || (given != nullptr && own[i][p] <= 0.0f)) made[i][p] = 0.0f;
        }
      }
      Vector<T, PIXELS> some;
      if constexpr (SPREADS) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int p = 0; p < PIXELS; ++p) {
            some[p] = narrow<T>(p % 2 == shift ? made[i][half * (PIXELS / 2) + p / 2] : 0.0f);
          }
          store(to + half * PIXELS, some);
        }
      } else {
#pragma unroll
        for (int p = 0; p < PIXELS; ++p) some[p] = narrow<T>(made[i][p]);
        store(to, some);
      }
    }
  };

  if constexpr (SLICES == 1) {
#pragma unroll
    for (int begin = 0; begin < MADE; begin += TOGETHER) {
      float made[TOGETHER][PIXELS];
#pragma unroll
      for (int o = 0; o < TOGETHER; ++o) {
#pragma unroll
        for (int p = 0; p < PIXELS; ++p) made[o][p] = sums[begin + o][p];
      }
      emit(made, begin);
    }
  } else {
    // What slices found, [channel][warp][lane]: each slice adds up some of the channels.
    constexpr int OWN = TOGETHER / SLICES;
    float* const found = dynamic_shared<float>();
#pragma unroll
    for (int begin = 0; begin < MADE; begin += TOGETHER) {
      __syncthreads();
#pragma unroll
      for (int o = 0; o < TOGETHER; ++o) {
        Vector<float, PIXELS> some;
#pragma unroll
        for (int p = 0; p < PIXELS; ++p) some[p] = sums[begin + o][p];
        store(found + ((o * WARPS + warp) * WARP + lane) * PIXELS, some);
      }
      __syncthreads();
      float made[OWN][PIXELS];
#pragma unroll
      for (int own = 0; own < OWN; ++own) {
        const int o = slice * OWN + own;
#pragma unroll
        for (int s = 0; s < SLICES; ++s) {
          const Vector<float, PIXELS> some =
              load<PIXELS>(found + ((o * WARPS + group * SLICES + s) * WARP + lane) * PIXELS);
#pragma unroll
          for (int p = 0; p < PIXELS; ++p) made[own][p] = s ? made[own][p] + some[p] : some[p];
        }
      }
      emit(made, begin + slice * OWN);
    }
  }
}
