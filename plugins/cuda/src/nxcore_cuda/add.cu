// add: out = x + alpha * y, in float32, rounded to RESULT and then to OUT.
#pragma once

#include "element.cuh"
#include "strided.cuh"

struct add_args {
  const void* x;
  const void* y;
  void* out;
  long long n;
  float alpha;
};

namespace add_parts {

template <typename RESULT, typename OUT>
__device__ __forceinline__ OUT total(float x, float y, float alpha) {
  return narrow<OUT>(widen(narrow<RESULT>(fmaf(alpha, y, x))));
}

// A vector of an operand, or one number all over.
template <int VECTOR, typename T>
__device__ __forceinline__ void fetch(const T* from, bool repeated, Vector<T, VECTOR>& values) {
  if (repeated) {
    const T one = *from;
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) values[e] = one;
  } else {
    values = load<VECTOR>(from);
  }
}

}  // namespace add_parts

// Operands and out that all lie in memory alike. Out may be one of them, so loads are ordinary ones.
template <typename X, typename Y, typename RESULT, typename OUT, int VECTOR, int ITEMS>
__device__ __forceinline__ void add(const add_args& a) {
  const X* const from_x = static_cast<const X*>(a.x);
  const Y* const from_y = static_cast<const Y*>(a.y);
  OUT* const to = static_cast<OUT*>(a.out);
  const long long step = (long long)blockDim.x * VECTOR;
  const long long first = blockIdx.x * step * ITEMS + threadIdx.x * VECTOR;
  if (first + (ITEMS - 1) * step + VECTOR <= a.n) {
    Vector<X, VECTOR> x[ITEMS];
    Vector<Y, VECTOR> y[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      x[item] = load<VECTOR>(from_x + first + item * step);
      y[item] = load<VECTOR>(from_y + first + item * step);
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item) {
      Vector<OUT, VECTOR> sums;
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) {
        sums[e] = add_parts::total<RESULT, OUT>(widen(x[item][e]), widen(y[item][e]), a.alpha);
      }
      store_streaming(to + first + item * step, sums);
    }
    return;
  }
  for (int item = 0; item < ITEMS; ++item) {
    const long long start = first + item * step;
    for (long long at = start; at < start + VECTOR && at < a.n; ++at) {
      to[at] = add_parts::total<RESULT, OUT>(widen(from_x[at]), widen(from_y[at]), a.alpha);
    }
  }
}

struct add_strided_args {
  const void* x;  // null: the number x_value
  const void* y;  // null: the number 1
  void* out;
  long long n;  // vectors
  dims sizes;
  strides place[3];  // of x, y and out
  int x_repeated;    // its innermost stride is 0
  int y_repeated;
  float x_value;
  float alpha;
};

// Operands that are repeated, or lie in memory differently.
template <typename X, typename Y, typename RESULT, typename OUT, int VECTOR, int ITEMS>
__device__ __forceinline__ void add_strided(const add_strided_args& a) {
  const long long first = (long long)blockIdx.x * blockDim.x * ITEMS + threadIdx.x;
  Vector<X, VECTOR> x[ITEMS];
  Vector<Y, VECTOR> y[ITEMS];
  long long places[ITEMS];
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const long long index = first + item * blockDim.x;
    if (index < a.n) {
      long long at[3];
      locate(index, a.sizes, a.place, at);
      if (a.x) add_parts::fetch(static_cast<const X*>(a.x) + at[0], a.x_repeated, x[item]);
      if (a.y) add_parts::fetch(static_cast<const Y*>(a.y) + at[1], a.y_repeated, y[item]);
      places[item] = at[2];
    }
  }
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    if (first + item * blockDim.x < a.n) {
      Vector<OUT, VECTOR> sums;
#pragma unroll
      for (int e = 0; e < VECTOR; ++e) {
        const float left = a.x ? widen(x[item][e]) : a.x_value;
        const float right = a.y ? widen(y[item][e]) : 1.0f;
        sums[e] = add_parts::total<RESULT, OUT>(left, right, a.alpha);
      }
      store_streaming(static_cast<OUT*>(a.out) + places[item], sums);
    }
  }
}
