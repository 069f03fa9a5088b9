// embedding: a thread copies a vector of a row that an index names.
#pragma once

#include "element.cuh"

struct embedding_args {
  const void* index;
  const void* weight;
  void* out;
  long long rows, count, columns;  // of the weight; indices; vectors of a row
};

template <typename T, int V, typename I>
__device__ __forceinline__ void embedding(const embedding_args& a) {
  const long long all = a.count * a.columns, stride = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += stride) {
    const long long row = static_cast<const I*>(a.index)[i / a.columns];
    const bool right = 0 <= row && row < a.rows;
#ifndef NXCORE_EMULATOR
    if (!right) asm volatile("trap;");  // an index that there isn't ends the kernel, as torch's own does
#endif
    if (!right) continue;
    const T* const from = static_cast<const T*>(a.weight) + (row * a.columns + i % a.columns) * V;
    store_streaming<V>(static_cast<T*>(a.out) + i * V, load<V>(from));
  }
}
