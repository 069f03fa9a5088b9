// global_max_pool2d_backward: each element of the image's gradient looks whether it is the one, and is written once.
#pragma once

#include "element.cuh"
#include "strided.cuh"

struct global_max_pool2d_backward_args {
  const void* grad;
  const int* offsets;
  void* out;
  long long n;         // elements; or channels of all images, or vectors of them
  long long pixels;    // of one channel
  long long channels;  // from pixel to pixel, where channels lie closest
  long long grad_step;  // from channel to channel
  long long offset_step;
  long long span;  // pixels of one block
  dims sizes;      // of what n counts
  strides steps[3];  // in grad, in offsets; and those that give the pixel, or the place in out
  int lanes;         // threads that share a column
};

// Pixels lie closest: a thread writes VECTOR neighbours, which may begin another channel.
template <typename T, int VECTOR>
__device__ __forceinline__ void global_max_planes(const global_max_pool2d_backward_args& a) {
  const T* const grad = static_cast<const T*>(a.grad);
  T* const out = static_cast<T*>(a.out);
  const long long start = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
  if (start >= a.n) return;
  long long at[3];
  locate(start, a.sizes, a.steps, at);
  T share = grad[at[0]];
  int place = a.offsets[at[1]], pixel = (int)at[2];
  Vector<T, VECTOR> values;
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) {
    if (pixel == a.pixels && start + e < a.n) {
      locate(start + e, a.sizes, a.steps, at);
      share = grad[at[0]];
      place = a.offsets[at[1]];
      pixel = 0;
    }
    values[e] = pixel == place ? share : T{};
    ++pixel;
  }
  if (start + VECTOR <= a.n) {
    store<VECTOR>(out + start, values);
    return;
  }
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) {
    if (start + e < a.n) out[start + e] = values[e];
  }
}

// Channels lie closest: a thread keeps what a vector of them won, and goes from pixel to pixel.
template <typename T, int VECTOR>
__device__ __forceinline__ void global_max_pixels(const global_max_pool2d_backward_args& a) {
  const int columns = blockDim.x / a.lanes;
  const long long column = (long long)blockIdx.x * columns + (threadIdx.x & (columns - 1));
  if (column >= a.n) return;
  long long at[3];
  locate(column, a.sizes, a.steps, at);
  T* const out = static_cast<T*>(a.out) + at[2];
  T shares[VECTOR];
  int places[VECTOR];
#pragma unroll
  for (int e = 0; e < VECTOR; ++e) {
    shares[e] = static_cast<const T*>(a.grad)[at[0] + e * a.grad_step];
    places[e] = a.offsets[at[1] + e * a.offset_step];
  }
  const long long first = blockIdx.y * a.span, last = first + a.span < a.pixels ? first + a.span : a.pixels;
#pragma unroll 4
  for (long long pixel = first + threadIdx.x / columns; pixel < last; pixel += a.lanes) {
    Vector<T, VECTOR> values;
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) values[e] = pixel == places[e] ? shares[e] : T{};
    store<VECTOR>(out + pixel * a.channels, values);
  }
}
