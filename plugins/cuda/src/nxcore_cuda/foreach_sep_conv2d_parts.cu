// foreach_sep_conv2d_parts: several calls of sep_conv2d_parts, of the same shapes, in one launch.
#pragma once
#include "foreach.cuh"
#include "sep_conv2d_parts.cu"

struct foreach_sep_conv2d_parts_args {
  const void* xs[foreach::ROOM];
  const void* filters[foreach::ROOM];
  const void* points[foreach::ROOM];
  void* outs[foreach::ROOM];
  float* shares[foreach::ROOM];  // each [channel][item] of moments, where they are wanted
  int count, items;              // convolutions; images or parts of each
};

// Neighbouring blocks have the same part of an image in several convolutions: those that share x meet in the cache.
template <typename S>
__device__ __forceinline__ void foreach_sep_conv2d_parts_items(const foreach_sep_conv2d_parts_args& a) {
  const int block = blockIdx.x / a.count, i = blockIdx.x - block * a.count;
  const sep_conv2d_parts_args own = {a.xs[i], a.filters[i], a.points[i], a.outs[i], a.shares[i], a.items};
  sep_conv2d_parts_items<S>(own, a.items, block, gridDim.x / a.count);
}

template <int SIZE, int DILATION, int CHANNELS, int SIDE, int BAND, int THREADS, int EACH, int MANY>
__device__ __forceinline__ void foreach_sep_conv2d_parts(const foreach_sep_conv2d_parts_args& a) {
  using S = parts::Square<planes::Shape<SIZE, DILATION, CHANNELS, SIDE, BAND, THREADS>, EACH, MANY>;
  foreach_sep_conv2d_parts_items<S>(a);
}
