// foreach_sep_conv2d_planes: several calls of sep_conv2d_planes, of images of one shape, in one launch.
#pragma once
#include "foreach.cuh"
#include "sep_conv2d_planes.cu"

struct foreach_sep_conv2d_planes_args {
  const void* xs[foreach::ROOM];
  const void* filters[foreach::ROOM];
  const void* points[foreach::ROOM];
  void* outs[foreach::ROOM];
  float* shares[foreach::ROOM];  // each [channel][block] of moments, where they are wanted
  int windows[foreach::ROOM];    // 10 * size + dilation
  int count, images, relu;       // convolutions; images of each
};

namespace foreach {

struct PlanesOutput {
  const void *x, *filters, *points;
  void* out;
  float* shares;
};

}  // namespace foreach

// Neighbouring blocks have images of one convolution: they run the same code, which the instruction cache has once.
// WINDOWS: those that convolutions may have.
template <int CHANNELS, int SIDE, int ROWS, int SPLIT, int IMAGES, int LOADED, int TURN, int... WINDOWS>
__device__ __forceinline__ void foreach_sep_conv2d_planes(const foreach_sep_conv2d_planes_args& a) {
  using B = planes::Block<CHANNELS, SIDE, ROWS, SPLIT, IMAGES, LOADED, TURN>;
  const unsigned blocks = gridDim.x / a.count, i = blockIdx.x / blocks, block = blockIdx.x - i * blocks;
  const int window = a.windows[i];
  const foreach::PlanesOutput own = {a.xs[i], a.filters[i], a.points[i], a.outs[i], a.shares[i]};
  (void)((window == WINDOWS &&
          (sep_conv2d_planes_images<B, WINDOWS / 10, WINDOWS % 10>(own, a.images, a.relu, block, blocks), true)) ||
         ...);
}
