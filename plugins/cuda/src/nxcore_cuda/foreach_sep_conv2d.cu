// foreach_sep_conv2d: several calls of sep_conv2d in one launch, with the moments of their results on request.
#pragma once
#include "foreach.cuh"
#include "sep_conv2d.cu"

struct foreach_sep_conv2d_args {
  const void* xs[foreach::ROOM];
  const void* filters[foreach::ROOM];
  const void* points[foreach::ROOM];
  void* outs[foreach::ROOM];
  float* shares[foreach::ROOM];  // each [channel][block] of moments, if they are wanted
  foreach::Bands bands;
};

namespace foreach {

struct Convolution {
  const void *x, *filters, *points;
  void* out;
  float* shares;
};

}  // namespace foreach

// WINDOWS: those that items may have, as in Bands.
template <typename T, bool MOMENTS, int... WINDOWS>
__device__ __forceinline__ void foreach_sep_conv2d(const foreach_sep_conv2d_args& a) {
  const foreach::Place at = foreach::place(a.bands);
  const int i = at.item, which = a.bands.which[i], window = a.bands.windows[which];
  const foreach::Convolution own = {a.xs[i], a.filters[i], a.points[i], a.outs[i], a.shares[i]};
  const separable::Band& b = a.bands.of[which];
  (void)((window == WINDOWS && (sep_conv2d_band<T, WINDOWS / 100, WINDOWS / 10 % 10, WINDOWS % 10, MOMENTS>(
                                    own, b, at.block, at.blocks),
                                true)) ||
         ...);
}
