// conv2d: a direct convolution of few channels.
#pragma once

#include "direct.cuh"

using conv2d_args = direct_args;

template <typename T, int ROWS, int COLUMNS, int PIXELS, int FILTERS, int SLICES>
__device__ __forceinline__ void conv2d(const conv2d_args& a) {
  direct<T, ROWS, COLUMNS, PIXELS, FILTERS, SLICES>(a);
}
