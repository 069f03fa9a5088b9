// sep_conv2d of square planes at stride 2: a block has all channels of an image or of half of one, makes the depthwise
// result in shared memory, and each thread then four pixels of four outputs' channels.
#pragma once
#include "moments.cuh"
#include "strided_planes.cuh"

struct sep_conv2d_strided_planes_args {
  const void* x;
  const void* filters;
  const void* points;
  void* out;
  float* shares;  // [channel][block] of moments, if they are wanted
};

namespace strided_planes {

using moments::Moments;

// The 1x1 filters, turned: the outputs' channels of an inner channel are neighbours.
template <typename S>
__device__ __forceinline__ void copy_points(float* ws, const float* points) {
  const bool vectors = aligned(points);
#pragma unroll
  for (int i = threadIdx.x; i < S::CHANNELS * S::CHANNELS / STRIP; i += S::THREADS) {
    const int made = i % S::CHANNELS, inner = i / S::CHANNELS * STRIP;
    const float* const from = points + made * S::CHANNELS + inner;
    const Strip four = vectors ? load<STRIP>(from) : Strip{from[0], from[1], from[2], from[3]};
#pragma unroll
    for (int e = 0; e < STRIP; ++e) ws[(inner + e) * S::CHANNELS + made] = four[e];
  }
}

// Four outputs' channels from `channel` on, of four pixels of us from `group` on.
template <typename S>
__device__ __forceinline__ void multiply(float (&sum)[STRIP][STRIP], const float* us, const float* ws, int channel,
                                         int group) {
#pragma unroll 8
  for (int inner = 0; inner < S::CHANNELS; ++inner) {
    const Strip u = load<STRIP>(us + inner * S::PITCH + group * STRIP);
    const Strip w = load<STRIP>(ws + inner * S::CHANNELS + channel);
#pragma unroll
    for (int e = 0; e < STRIP; ++e)
#pragma unroll
      for (int j = 0; j < STRIP; ++j) sum[e][j] = fmaf(w[e], u[j], sum[e][j]);
  }
}

// The means of a warp's pixels, and their squared deviations from these. Every other lane has the same channels.
template <int PIXELS>
__device__ __forceinline__ void find_moments(float* means, float* squares, const float (&sum)[STRIP][STRIP]) {
  constexpr unsigned OTHERS = WARP - 2;
  float own[STRIP];
#pragma unroll
  for (int e = 0; e < STRIP; ++e) own[e] = (sum[e][0] + sum[e][1]) + (sum[e][2] + sum[e][3]);
  planes::fold<OTHERS>(own, [&](int e, float total) { means[e] = total * (1.0f / PIXELS); });
  __syncwarp();
#pragma unroll
  for (int e = 0; e < STRIP; ++e) {
    const float mean = means[e];
    own[e] = 0.0f;
#pragma unroll
    for (int j = 0; j < STRIP; ++j) own[e] = fmaf(sum[e][j] - mean, sum[e][j] - mean, own[e]);
  }
  planes::fold<OTHERS>(own, [&](int e, float total) { squares[e] = total; });
}

}  // namespace strided_planes

// The work of the block with number `block` of `blocks`. A: a struct with x, filters, points, out and shares.
// `shared`: xs (the lines of x, then moments), us (what lies between the convolutions) and ws (the points).
template <typename S, typename A>
__device__ __forceinline__ void sep_conv2d_strided_planes_item(const A& a, unsigned block, unsigned blocks) {
  using namespace strided_planes;
  constexpr int PIXELS = WARP / 2 * STRIP, PARTS = S::BAND * S::SIDE / PIXELS;  // of a warp; warps of a channel
  static_assert(S::GROUPS * S::CHANNELS / STRIP == S::THREADS, "a thread has four pixels of four channels");
  float* const xs = dynamic_shared<float>();
  float* const us = xs + S::X_PLANES;
  float* const ws = us + S::PLANES;
  float* const means = xs;
  float* const squares = means + PARTS * S::CHANNELS;
  const int half = block % S::PIECES;
  const long long image = block / S::PIECES;
  send_x<S>(xs, static_cast<const float*>(a.x) + image * S::X_IMAGE, half);
  depart();
  copy_points<S>(ws, static_cast<const float*>(a.points));
  const Taps<S> taps(static_cast<const float*>(a.filters));
  planes::arrive<0>();
  __syncthreads();
  convolve<S>(us, xs, taps, half, S::own(half));
  __syncthreads();

  const int group = threadIdx.x / 2 % S::GROUPS;
  const int channel = (threadIdx.x / (2 * S::GROUPS) * 2 + threadIdx.x % 2) * STRIP;
  float sum[STRIP][STRIP] = {};
  multiply<S>(sum, us + S::own(half) * S::SIDE, ws, channel, group);
  float* const out = static_cast<float*>(a.out);
  float* const to = out + image * S::IMAGE + channel * S::PLANE + half * S::BAND * S::SIDE + group * STRIP;
  const bool vectors = aligned(out);
#pragma unroll
  for (int e = 0; e < STRIP; ++e) {
    if (vectors) {
      store(to + e * S::PLANE, Strip{sum[e][0], sum[e][1], sum[e][2], sum[e][3]});
    } else {
#pragma unroll
      for (int j = 0; j < STRIP; ++j) to[e * S::PLANE + j] = sum[e][j];
    }
  }
  if (!a.shares) return;
  const int begin = threadIdx.x / WARP % PARTS * S::CHANNELS + channel;
  find_moments<PIXELS>(means + begin, squares + begin, sum);
  __syncthreads();
  for (int i = threadIdx.x; i < S::CHANNELS; i += S::THREADS) {
    Moments all = {(float)PIXELS, means[i], squares[i]};
#pragma unroll
    for (int part = 1; part < PARTS; ++part) {
      const int at = part * S::CHANNELS + i;
      all = moments::together(all, {(float)PIXELS, means[at], squares[at]});
    }
    moments::leave(a.shares, (long long)i * blocks + block, all);
  }
}

template <int SIZE, int DILATION, int CHANNELS, int SIDE, int BAND, int THREADS>
__device__ __forceinline__ void sep_conv2d_strided_planes(const sep_conv2d_strided_planes_args& a) {
  using S = strided_planes::Shape<SIZE, DILATION, CHANNELS, SIDE, BAND, THREADS>;
  sep_conv2d_strided_planes_item<S>(a, blockIdx.x, gridDim.x);
}
