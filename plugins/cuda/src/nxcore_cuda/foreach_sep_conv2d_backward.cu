// foreach_sep_conv2d_backward: several calls of sep_conv2d_backward in one launch. Each block leaves its shares of the
// weights' gradients, and a second launch adds up those of all items.
#pragma once
#include "foreach.cuh"
#include "sep_conv2d_backward.cu"

struct foreach_sep_conv2d_backward_args {
  const void* grads[foreach::ROOM];
  const void* xs[foreach::ROOM];
  const void* filters[foreach::ROOM];
  const void* points[foreach::ROOM];
  void* x_grads[foreach::ROOM];
  float* shares[foreach::ROOM];  // each [blocks of a chunk][filters, then points]
  foreach::Bands bands;
};

namespace foreach {

struct Gradient {
  const void *grad, *x, *filters, *points;
  void* x_grad;
  float* shares;
};

}  // namespace foreach

// WINDOWS: those that items may have, as in Bands. Blocks of the same rows of an image are neighbours, one for each
// chunk of its channels.
template <typename T, int... WINDOWS>
__device__ __forceinline__ void foreach_sep_conv2d_backward(const foreach_sep_conv2d_backward_args& a) {
  const foreach::Place at = foreach::place(a.bands);
  const int i = at.item, which = a.bands.which[i], window = a.bands.windows[which];
  const foreach::Gradient own = {a.grads[i], a.xs[i], a.filters[i], a.points[i], a.x_grads[i], a.shares[i]};
  const separable::Band& b = a.bands.of[which];
  const unsigned chunks = (b.channels + b.chunk - 1) / b.chunk, block = at.block / chunks;
  const unsigned chunk = at.block - block * chunks, blocks = at.blocks / chunks;
  (void)((window == WINDOWS && (sep_conv2d_backward_bands<T, WINDOWS / 100, WINDOWS / 10 % 10, WINDOWS % 10>(
                                    own, b, block, blocks, chunk),
                                true)) ||
         ...);
}

struct foreach_sep_conv2d_totals_args {
  const float* shares[foreach::ROOM];
  void* filters_grads[foreach::ROOM];  // row-major, and so are the points'
  void* points_grads[foreach::ROOM];
  int rows[foreach::ROOM], columns[foreach::ROOM], sizes[foreach::ROOM], channels[foreach::ROOM];
  int begins[foreach::ROOM], ends[foreach::ROOM];  // the columns asked for
  int firsts[foreach::ROOM];                       // block of each item, in ascending order
  int count;
};

// sep_conv2d_totals of each item. `shared`: blockDim.x floats.
template <typename T>
__device__ __forceinline__ void foreach_sep_conv2d_totals(const foreach_sep_conv2d_totals_args& a) {
  constexpr int COLUMNS = 16;  // of a block there
  int i = a.count - 1;
  while (a.firsts[i] > (int)blockIdx.x) --i;
  const int size = a.sizes[i], taps = size * size, channels = a.channels[i];
  sep_conv2d_totals<T>({a.shares[i], a.filters_grads[i], a.points_grads[i], taps, size, 1, channels, 1, a.rows[i],
                        a.columns[i], taps, size, channels, a.begins[i] - COLUMNS * a.firsts[i], a.ends[i]});
}
