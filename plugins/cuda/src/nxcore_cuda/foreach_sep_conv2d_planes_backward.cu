// foreach_sep_conv2d_planes_backward: several calls of sep_conv2d_planes_backward, of the same shapes, in one launch.
#pragma once
#include "foreach.cuh"
#include "sep_conv2d_planes_backward.cu"

struct foreach_sep_conv2d_planes_backward_args {
  const void* grads[foreach::ROOM];
  const void* xs[foreach::ROOM];
  const void* filters[foreach::ROOM];
  const void* points[foreach::ROOM];
  void* x_grads[foreach::ROOM];
  float* shares[foreach::ROOM];  // each [block][filters, then points]
  int count, items;              // convolutions; images or halves of each
};

namespace foreach {

struct PlanesGradient {
  const void *grad, *x, *filters, *points;
  void* x_grad;
  float* shares;
};

}  // namespace foreach

// Neighbouring blocks have the same part of an image in several convolutions: those that share x meet in the cache.
template <int SIZE, int DILATION, int CHANNELS, int SIDE, int BAND, int THREADS, int OVER, int ACROSS, int SPLITS>
__device__ __forceinline__ void foreach_sep_conv2d_planes_backward(const foreach_sep_conv2d_planes_backward_args& a) {
  using S = planes::Shape<SIZE, DILATION, CHANNELS, SIDE, BAND, THREADS>;
  const int block = blockIdx.x / a.count, i = blockIdx.x - block * a.count;
  const foreach::PlanesGradient own = {a.grads[i], a.xs[i], a.filters[i], a.points[i], a.x_grads[i], a.shares[i]};
  sep_conv2d_planes_backward_items<S, planes::Points<S, OVER, ACROSS, SPLITS>>(own, a.items, block,
                                                                               gridDim.x / a.count);
}
