// pointwise_conv2d: products of channels, pixel by pixel, after an optional ReLU.
#pragma once

#include "points.cuh"

template <typename T, int STRIDE, int PIXELS, int MADE, int SLICES>
__device__ __forceinline__ void pointwise_conv2d(const points_args<T>& a) {
  points_product<T, false, STRIDE, PIXELS, MADE, SLICES>(a);
}
