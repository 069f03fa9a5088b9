// sep_conv2d of parts of square planes at stride 2: as sep_conv2d_parts, of a part of x twice as wide.
#pragma once
#include "sep_conv2d_parts.cu"
#include "strided_planes.cuh"

using sep_conv2d_strided_parts_args = sep_conv2d_parts_args;

namespace parts {

// At stride 2: how a block gets its part of an image, and makes the depthwise result.
template <typename S_, int EACH, int MANY>
struct Strided : Part<S_, EACH, MANY> {
  using S = S_;
  static __device__ __forceinline__ void send(float* xs, const float* image, int part) {
    strided_planes::send_x<S>(xs, image, part);
  }
  static __device__ __forceinline__ void convolve(float* us, const float* xs, const float* filters, int part) {
    strided_planes::convolve<S, Strided::U_PITCH>(us, xs, strided_planes::Taps<S>(filters), part, 0);
  }
};

}  // namespace parts

template <int SIZE, int DILATION, int CHANNELS, int SIDE, int BAND, int THREADS, int EACH, int MANY>
__device__ __forceinline__ void sep_conv2d_strided_parts(const sep_conv2d_strided_parts_args& a) {
  using S = parts::Strided<strided_planes::Shape<SIZE, DILATION, CHANNELS, SIDE, BAND, THREADS>, EACH, MANY>;
  sep_conv2d_parts_items<S>(a, a.items, blockIdx.x, gridDim.x);
}
