// foreach_sep_conv2d_strided_planes: several calls of sep_conv2d_strided_planes, of the same shapes, in one launch.
#pragma once
#include "foreach.cuh"
#include "sep_conv2d_strided_planes.cu"

struct foreach_sep_conv2d_strided_planes_args {
  const void* xs[foreach::ROOM];
  const void* filters[foreach::ROOM];
  const void* points[foreach::ROOM];
  void* outs[foreach::ROOM];
  float* shares[foreach::ROOM];  // each [channel][block] of moments, where they are wanted
  int count;                     // convolutions
};

// Neighbouring blocks have the same part of an image in several convolutions: those that share x meet in the cache.
template <int SIZE, int DILATION, int CHANNELS, int SIDE, int BAND, int THREADS>
__device__ __forceinline__ void foreach_sep_conv2d_strided_planes(const foreach_sep_conv2d_strided_planes_args& a) {
  using S = strided_planes::Shape<SIZE, DILATION, CHANNELS, SIDE, BAND, THREADS>;
  const int block = blockIdx.x / a.count, i = blockIdx.x - block * a.count;
  const sep_conv2d_strided_planes_args own = {a.xs[i], a.filters[i], a.points[i], a.outs[i], a.shares[i]};
  sep_conv2d_strided_planes_item<S>(own, block, gridDim.x / a.count);
}
