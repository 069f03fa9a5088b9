// foreach_sep_conv2d_strided_planes_backward: several calls of sep_conv2d_strided_planes_backward, of the same shapes,
// in one launch.
#pragma once
#include "foreach_sep_conv2d_planes_backward.cu"
#include "sep_conv2d_strided_planes_backward.cu"

using foreach_sep_conv2d_strided_planes_backward_args = foreach_sep_conv2d_planes_backward_args;

// Neighbouring blocks have the same part of an image in several convolutions: those that share x meet in the cache.
template <int SIZE, int DILATION, int CHANNELS, int SIDE, int BAND, int THREADS, int OVER, int ACROSS, int SPLITS,
          int LEFT>
__device__ __forceinline__ void foreach_sep_conv2d_strided_planes_backward(
    const foreach_sep_conv2d_strided_planes_backward_args& a) {
  using S = strided_planes::Shape<SIZE, DILATION, CHANNELS, SIDE, BAND, THREADS>;
  const int block = blockIdx.x / a.count, i = blockIdx.x - block * a.count;
  const foreach::PlanesGradient own = {a.grads[i], a.xs[i], a.filters[i], a.points[i], a.x_grads[i], a.shares[i]};
  sep_conv2d_strided_planes_backward_items<S, planes::Points<S, OVER, ACROSS, SPLITS>, LEFT>(own, a.items, block,
                                                                                             gridDim.x / a.count);
}
