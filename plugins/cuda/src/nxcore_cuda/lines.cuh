// Lines: a few threads, or a block, read each once, keep it in shared memory, reduce it and write what they made of it.
#pragma once

#include "element.cuh"
#include "softmax.cuh"

template <int TENSORS>
struct lines {
  long long count;
  long long inner;            // lines of the inner dimension
  long long outer[TENSORS];   // from one outer number of a line to the next
  long long within[TENSORS];  // likewise of an inner number
  long long entry[TENSORS];   // from entry to entry
  long long length;           // entries, or vectors of them
  int lanes;                  // threads of a line, a power of two: a part of a warp, or the block
  int held;                   // of a thread's vectors, those that stay in shared memory
};

__device__ __forceinline__ int own_lane(int lanes) { return threadIdx.x & (lanes - 1); }

// The line of this thread, which may lie past the last one: whole warps go on all the same.
__device__ __forceinline__ long long own_line(int lanes) {
  return (long long)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
}

// Where a line of a tensor begins.
template <typename T, int TENSORS>
__device__ __forceinline__ T* line_of(const void* data, const lines<TENSORS>& l, long long line, int which) {
  const long long at = line / l.inner * l.outer[which] + line % l.inner * l.within[which];
  return const_cast<T*>(static_cast<const T*>(data)) + at;
}

// How many vectors a line has: none past the last one.
template <int TENSORS>
__device__ __forceinline__ long long length_of(const lines<TENSORS>& l, long long line) {
  return line < l.count ? l.length : 0;
}

template <int V, typename T>
__device__ __forceinline__ Vector<T, V> load_entries(const T* line, long long i, long long entry) {
  if constexpr (V == 1) {
    Vector<T, 1> one;
    one[0] = line[i * entry];
    return one;
  } else {
    return load<V>(line + i * V);
  }
}

template <int V, typename T>
__device__ __forceinline__ void store_entries(T* line, long long i, long long entry, const Vector<T, V>& values) {
  if constexpr (V == 1) {
    line[i * entry] = values[0];
  } else {
    store_streaming<V>(line + i * V, values);
  }
}

// What a thread has read of one line: in shared memory, as far as there is room, else in the caches.
template <typename T, int V>
struct Kept {
  const T* line;
  long long entry;
  Vector<T, V>* shared;  // of thread 0; the vectors of a thread are a block apart
  int held;

  template <int TENSORS>
  __device__ __forceinline__ Kept(const void* data, const lines<TENSORS>& l, long long line_number, int which,
                                   void* room)
      : line(line_of<const T>(data, l, line_number, which)),
        entry(l.entry[which]),
        shared(static_cast<Vector<T, V>*>(room)),
        held(l.held) {}

  // The room behind it.
  __device__ __forceinline__ void* end() const { return shared + (long long)held * blockDim.x; }

  __device__ __forceinline__ Vector<T, V> read(long long i) const { return load_entries<V>(line, i, entry); }
  __device__ __forceinline__ void keep(int k, const Vector<T, V>& values) const {
    if (k < held) shared[(long long)k * blockDim.x + threadIdx.x] = values;
  }
  // Its k-th vector, the line's i-th, once more.
  __device__ __forceinline__ Vector<T, V> again(int k, long long i) const {
    return k < held ? shared[(long long)k * blockDim.x + threadIdx.x] : read(i);
  }
};

constexpr int IN_FLIGHT = 4;  // vectors that a thread waits for at once

// Calls use(k, i, vector...) for each of this thread's vectors, read from memory and kept.
template <int TENSORS, typename Use, typename A>
__device__ __forceinline__ void each_read(const lines<TENSORS>& l, long long line, Use use, const A& a) {
  const long long n = length_of(l, line);
  int k = 0;
  for (long long i = own_lane(l.lanes); i < n; i += (long long)IN_FLIGHT * l.lanes, k += IN_FLIGHT) {
    decltype(a.read(0)) found[IN_FLIGHT];
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; ++u)
      if (i + (long long)u * l.lanes < n) found[u] = a.read(i + (long long)u * l.lanes);
#pragma unroll
    for (int u = 0; u < IN_FLIGHT; ++u)
      if (i + (long long)u * l.lanes < n) {
        a.keep(k + u, found[u]);
        use(found[u]);
      }
  }
}

template <int TENSORS, typename Use, typename A, typename B>
__device__ __forceinline__ void each_read(const lines<TENSORS>& l, long long line, Use use, const A& a, const B& b) {
  const long long n = length_of(l, line);
  int k = 0;
  constexpr int STEPS = IN_FLIGHT / 2;
  for (long long i = own_lane(l.lanes); i < n; i += (long long)STEPS * l.lanes, k += STEPS) {
    decltype(a.read(0)) left[STEPS];
    decltype(b.read(0)) right[STEPS];
#pragma unroll
    for (int u = 0; u < STEPS; ++u)
      if (i + (long long)u * l.lanes < n) {
        left[u] = a.read(i + (long long)u * l.lanes);
        right[u] = b.read(i + (long long)u * l.lanes);
      }
#pragma unroll
    for (int u = 0; u < STEPS; ++u)
      if (i + (long long)u * l.lanes < n) {
        a.keep(k + u, left[u]);
        b.keep(k + u, right[u]);
        use(left[u], right[u]);
      }
  }
}

// Calls use(k, i) for each of this thread's vectors: its k-th is the line's i-th.
template <int TENSORS, typename Use>
__device__ __forceinline__ void each_own(const lines<TENSORS>& l, long long line, Use use) {
  const long long n = length_of(l, line);
  int k = 0;
  for (long long i = own_lane(l.lanes); i < n; i += l.lanes, ++k) use(k, i);
}

struct Add {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
struct Larger {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// All values of a line's threads as one, in every one of them, in one fixed order. Every thread calls it.
template <typename Join>
__device__ __forceinline__ float of_line(float x, int lanes, Join join) {
  __shared__ float of_warp[WARP];
  for (int step = (lanes < WARP ? lanes : WARP) / 2; step > 0; step /= 2)
    x = join(x, __shfl_xor_sync(ALL_LANES, x, step));
  if (lanes > WARP) {
    __syncthreads();
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = x;
    __syncthreads();
    x = of_warp[0];
    for (int i = 1; i < (int)blockDim.x / WARP; ++i) x = join(x, of_warp[i]);
  }
  return x;
}
