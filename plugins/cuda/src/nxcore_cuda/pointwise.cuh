// Expressions: functions of float that CUDA has under another name, or with another rule for NaN.
#pragma once

#include "element.cuh"
#include "strided.cuh"

namespace pointwise {

__device__ __forceinline__ float minimum(float a, float b) { return a < b || a != a ? a : b; }
__device__ __forceinline__ float maximum(float a, float b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f; }
__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }
__device__ __forceinline__ float nan() { return __uint_as_float(0x7fffffffu); }

// A vector of a tensor, or one element all over.
template <int VECTOR, bool REPEATED, typename T>
__device__ __forceinline__ Vector<T, VECTOR> fetch(const T* from) {
  if constexpr (REPEATED) {
    Vector<T, VECTOR> values;
    const T one = *from;
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) values[e] = one;
    return values;
  } else {
    return load<VECTOR>(from);
  }
}

}  // namespace pointwise
