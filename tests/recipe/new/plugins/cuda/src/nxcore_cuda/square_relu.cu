// square_relu: out = max(x, 0)^2, or its gradient 2 max(x, 0) grad; NaN stays NaN.
#pragma once

#include "element.cuh"

struct square_relu_args {
  const void* grad;
  const void* x;
  void* out;
  long long n;
};

template <typename T, bool BACK>
__device__ __forceinline__ void square_relu(const square_relu_args& a) {
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += step) {
    const float seen = widen(((const T*)a.x)[i]);
    const float value = seen < 0 ? 0.0f : seen;
    const float by = BACK ? 2.0f * widen(((const T*)a.grad)[i]) : value;
    ((T*)a.out)[i] = narrow<T>(value * by);
  }
}
