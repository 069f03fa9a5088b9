// foreach_sep_conv2d_strided_parts: several calls of sep_conv2d_strided_parts, of the same shapes, in one launch.
#pragma once
#include "foreach_sep_conv2d_parts.cu"
#include "sep_conv2d_strided_parts.cu"

using foreach_sep_conv2d_strided_parts_args = foreach_sep_conv2d_parts_args;

template <int SIZE, int DILATION, int CHANNELS, int SIDE, int BAND, int THREADS, int EACH, int MANY>
__device__ __forceinline__ void foreach_sep_conv2d_strided_parts(const foreach_sep_conv2d_strided_parts_args& a) {
  using S = parts::Strided<strided_planes::Shape<SIZE, DILATION, CHANNELS, SIDE, BAND, THREADS>, EACH, MANY>;
  foreach_sep_conv2d_parts_items<S>(a);
}
