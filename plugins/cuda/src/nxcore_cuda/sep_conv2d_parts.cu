// sep_conv2d of parts of square planes: a block has all channels of an image or of a part of one, makes the depthwise
// result in shared memory, and each thread then a few pixels of several outputs' channels.
#pragma once
#include "moments.cuh"
#include "planes.cuh"

struct sep_conv2d_parts_args {
  const void* x;
  const void* filters;
  const void* points;
  void* out;
  float* shares;  // [channel][item] of moments, if they are wanted
  int items;      // images, or parts of them
};

namespace parts {

using moments::Moments;
using planes::Strip;
using separable::aligned;
using separable::STRIP;

// A thread has EACH outputs' channels of four pixels, at each of MANY places; LANES neighbouring lanes have the same
// channels, of all pixels of a block. S: a Shape.
template <typename S, int EACH_, int MANY_>
struct Part : S {
  static constexpr int EACH = EACH_, MANY = MANY_, LANES = S::GROUPS / MANY, PIXELS = S::GROUPS * STRIP;
  static constexpr int UNIT = EACH % STRIP ? 2 : STRIP;  // channels of a load
  static constexpr int U_PITCH = PIXELS + STRIP;         // neighbouring planes begin four banks apart
  static_assert(EACH % UNIT == 0 && S::CHANNELS % EACH == 0 && LANES * MANY == S::GROUPS, "whole vectors of channels");
  static_assert(S::CHANNELS / EACH * LANES == S::THREADS && WARP % LANES == 0, "a warp has all pixels of its channels");
};

// At stride 1: how a block gets its part of an image, and makes the depthwise result.
template <typename S_, int EACH, int MANY>
struct Square : Part<S_, EACH, MANY> {
  using S = S_;
  static constexpr int X_IMAGE = S::IMAGE, X_PLANES = S::PLANES;
  static __device__ __forceinline__ void send(float* xs, const float* image, int part) {
    planes::send_lines<S>(xs, image, part);
  }
  static __device__ __forceinline__ void convolve(float* us, const float* xs, const float* filters, int part) {
    planes::convolve<S, Square::U_PITCH>(us, xs, filters, part, 0);
  }
};

// The 1x1 filters, turned: the outputs' channels of an inner channel are neighbours.
template <typename S>
__device__ __forceinline__ void copy_points(float* ws, const float* points) {
  const bool vectors = aligned(points);
#pragma unroll 4
  for (int i = threadIdx.x; i < S::CHANNELS * S::CHANNELS / STRIP; i += S::THREADS) {
    const int made = i % S::CHANNELS, inner = i / S::CHANNELS * STRIP;
    const float* const from = points + made * S::CHANNELS + inner;
    const Strip four = vectors ? load<STRIP>(from) : Strip{from[0], from[1], from[2], from[3]};
#pragma unroll
    for (int e = 0; e < STRIP; ++e) ws[(inner + e) * S::CHANNELS + made] = four[e];
  }
}

// The outputs of a thread, from `channel` and the pixels of `group` on.
template <typename S>
__device__ __forceinline__ void multiply(float (&sum)[S::EACH][S::MANY * STRIP], const float* us, const float* ws,
                                         int channel, int group) {
#pragma unroll 4
  for (int inner = 0; inner < S::CHANNELS; ++inner) {
    Strip u[S::MANY];
#pragma unroll
    for (int m = 0; m < S::MANY; ++m)
      u[m] = load<STRIP>(us + inner * S::U_PITCH + (group + m * S::LANES) * STRIP);
#pragma unroll
    for (int o = 0; o < S::EACH; o += S::UNIT) {
      const Vector<float, S::UNIT> w = load<S::UNIT>(ws + inner * S::CHANNELS + channel + o);
#pragma unroll
      for (int e = 0; e < S::UNIT; ++e)
#pragma unroll
        for (int p = 0; p < S::MANY * STRIP; ++p)
          sum[o + e][p] = fmaf(w[e], u[p / STRIP][p % STRIP], sum[o + e][p]);
    }
  }
}

template <typename S>
__device__ __forceinline__ void leave_pixels(float* image, const float (&sum)[S::EACH][S::MANY * STRIP], int channel,
                                             int group, int part, bool vectors) {
#pragma unroll
  for (int m = 0; m < S::MANY; ++m) {
    const int place = group + m * S::LANES, line = S::own(part) + place / S::STRIPS;
    float* const to = image + channel * S::PLANE + S::row(line, part) * S::SIDE + place % S::STRIPS * STRIP;
#pragma unroll
    for (int o = 0; o < S::EACH; ++o) {
      const float* const p = sum[o] + m * STRIP;
      if (vectors) {
        store(to + o * S::PLANE, Strip{p[0], p[1], p[2], p[3]});
      } else {
#pragma unroll
        for (int j = 0; j < STRIP; ++j) to[o * S::PLANE + j] = p[j];
      }
    }
  }
}

// The means of a block's pixels, and their squared deviations from these: leave(channel, moments). `means` has room
// for one of each channel.
template <typename S, typename Leave>
__device__ __forceinline__ void find_moments(float* means, const float (&sum)[S::EACH][S::MANY * STRIP], int channel,
                                             Leave leave) {
  float own[S::EACH];
#pragma unroll
  for (int o = 0; o < S::EACH; ++o) {
    own[o] = sum[o][0];
#pragma unroll
    for (int p = 1; p < S::MANY * STRIP; ++p) own[o] += sum[o][p];
  }
  planes::fold<S::LANES - 1>(own, [&](int o, float total) { means[channel + o] = total * (1.0f / S::PIXELS); });
  __syncwarp();
#pragma unroll
  for (int o = 0; o < S::EACH; ++o) {
    const float mean = means[channel + o];
    own[o] = 0.0f;
#pragma unroll
    for (int p = 0; p < S::MANY * STRIP; ++p) own[o] = fmaf(sum[o][p] - mean, sum[o][p] - mean, own[o]);
  }
  planes::fold<S::LANES - 1>(own, [&](int o, float total) {
    leave(channel + o, Moments{(float)S::PIXELS, means[channel + o], total});
  });
}

}  // namespace parts

// The work of the block with number `block` of `blocks`. A: a struct with x, filters, points, out and shares.
// S: a Square, or what stands for it at a stride. `shared`: xs (the lines of x), us (what lies between the
// convolutions), ws (the points) and means.
template <typename S, typename A>
__device__ __forceinline__ void sep_conv2d_parts_items(const A& a, int items, unsigned block, unsigned blocks) {
  using namespace parts;
  float* const xs = dynamic_shared<float>();
  float* const us = xs + S::X_PLANES;
  float* const ws = us + S::CHANNELS * S::U_PITCH;
  float* const means = ws + S::CHANNELS * S::CHANNELS;
  const float* const x = static_cast<const float*>(a.x);
  float* const out = static_cast<float*>(a.out);
  const auto image = [](int item) { return (long long)(item / S::PIECES); };
  const auto send = [&](int item) {
    if (item < items) S::send(xs, x + image(item) * S::X_IMAGE, item % S::PIECES);
    planes::depart();
  };
  send(block);
  copy_points<S>(ws, static_cast<const float*>(a.points));
  const int channel = threadIdx.x / S::LANES * S::EACH, group = threadIdx.x % S::LANES;
  for (int item = block; item < items; item += blocks) {
    const int part = item % S::PIECES;
    planes::arrive<0>();
    __syncthreads();
    S::convolve(us, xs, static_cast<const float*>(a.filters), part);
    __syncthreads();
    send(item + blocks);
    float sum[S::EACH][S::MANY * STRIP] = {};
    multiply<S>(sum, us, ws, channel, group);
    leave_pixels<S>(out + image(item) * S::IMAGE, sum, channel, group, part, aligned(out));
    if (a.shares) {
      find_moments<S>(means, sum, channel, [&](int made, const Moments& found) {
        moments::leave(a.shares, (long long)made * items + item, found);
      });
    }
  }
}

template <int SIZE, int DILATION, int CHANNELS, int SIDE, int BAND, int THREADS, int EACH, int MANY>
__device__ __forceinline__ void sep_conv2d_parts(const sep_conv2d_parts_args& a) {
  using S = parts::Square<planes::Shape<SIZE, DILATION, CHANNELS, SIDE, BAND, THREADS>, EACH, MANY>;
  sep_conv2d_parts_items<S>(a, a.items, blockIdx.x, gridDim.x);
}
