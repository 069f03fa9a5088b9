// scans: out[i] = x[0] + ... + x[i] along lines, or x[i] + ... + x[n - 1]. Each element is read once: threads scan their
// own, warps and blocks what these come to, and each chunk goes on from the last.
#pragma once

#include "reduce.cuh"
#include "terms.cuh"

struct scans_args {
  const void* x;
  void* out;
  unsigned* slots;      // of a line that several blocks share: a ticket, then what each part comes to
  long long count;      // lines
  long long inner;      // lines of the inner dimension
  long long outer[2];   // from one outer number of a line to the next; of x, of out
  long long within[2];  // likewise of an inner number
  long long entry[2];   // from entry to entry
  long long length;     // entries
  int lanes;            // scans_inner: threads of a line; scans_outer: threads across lines
  int parts;            // blocks of a line
};

namespace scans {

// Scans over the lanes of groups of `width` whose numbers differ by `step`: from what a lane has to that of all up to it.
__device__ __forceinline__ float up_to(float x, int step, int width) {
  for (; step < width; step *= 2) {
    const float before = __shfl_up_sync(ALL_LANES, x, step, width);
    if ((int)(threadIdx.x & (width - 1)) >= step) x = before + x;
  }
  return x;
}

// What the parts of a line before this block's come to, in every thread of its first warp. The last block of a line to
// have read them puts 0 back. Blocks start in the order of their numbers: those before are under way.
__device__ __forceinline__ float before(unsigned* slots, int part, float total) {
  if (threadIdx.x == 0) terms::leave(slots + 1 + part, terms::bits_of(total));
  float found = 0.0f;
  for (int i = threadIdx.x; i < part; i += WARP) {
    unsigned bits = terms::peek(slots + 1 + i);
    while (bits == 0xffffffffu) bits = terms::peek(slots + 1 + i);
    found = found + __uint_as_float(bits);
  }
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) {
    found = found + __shfl_xor_sync(ALL_LANES, found, step);
  }
  return found;
}

// A vector of entries of V places, the first of which is number i of the scan: read backwards where BACK.
template <int V, bool BACK, typename T>
__device__ __forceinline__ void take(const T* line, long long i, long long n, long long entry, float (&to)[V]) {
  const long long at = BACK ? n - V - i : i;
  Vector<T, V> found;
  if constexpr (V == 1) {
    found[0] = line[at * entry];
  } else {
    found = load_streaming<V>(line + at);
  }
#pragma unroll
  for (int e = 0; e < V; ++e) to[e] = widen(found[BACK ? V - 1 - e : e]);
}

template <int V, bool BACK, typename T>
__device__ __forceinline__ void put(T* line, long long i, long long n, long long entry, const float (&from)[V]) {
  const long long at = BACK ? n - V - i : i;
  Vector<T, V> made;
#pragma unroll
  for (int e = 0; e < V; ++e) made[BACK ? V - 1 - e : e] = narrow<T>(from[e]);
  if constexpr (V == 1) {
    line[at * entry] = made[0];
  } else {
    store_streaming<V>(line + at, made);
  }
}

__device__ __forceinline__ long long start_of(const scans_args& a, int which, long long line) {
  return line / a.inner * a.outer[which] + line % a.inner * a.within[which];
}

}  // namespace scans

// Neighbours in memory are entries of one line: `lanes` threads (a power of two up to 32, or the block) have N vectors
// of a chunk each. A block of more than a warp has up to 32 / N of them.
template <typename T, typename U, int V, int N, bool BACK>
__device__ __forceinline__ void scans_inner(const scans_args& a) {
  using namespace scans;
  __shared__ float of_warp[2][WARP];
  __shared__ float of_parts;
  const int lane = threadIdx.x & (a.lanes - 1), width = a.lanes < WARP ? a.lanes : WARP, warps = a.lanes / WARP;
  const int part = blockIdx.x % a.parts;
  const long long line = (long long)(blockIdx.x / a.parts) * (blockDim.x / a.lanes) + threadIdx.x / a.lanes;
  const long long chunk = (long long)a.lanes * V * N, last = a.parts > 1 ? (part + 1) * chunk : a.length;
  const long long own = line < a.count ? a.length : 0;
  const T* const x = (const T*)a.x + start_of(a, 0, line);
  U* const out = (U*)a.out + start_of(a, 1, line);
  float carry = 0.0f;
  int turn = 0;
  for (long long first = part * chunk; first < last; first += chunk, turn ^= 1) {
    float value[N][V], upto[N], base[N];
#pragma unroll
    for (int u = 0; u < N; ++u) {
      const long long i = first + ((long long)u * a.lanes + lane) * V;
      if (i < own) {
        take<V, BACK>(x, i, a.length, a.entry[0], value[u]);
      } else {
#pragma unroll
        for (int e = 0; e < V; ++e) value[u][e] = 0.0f;
      }
    }
#pragma unroll
    for (int u = 0; u < N; ++u) {
#pragma unroll
      for (int e = 1; e < V; ++e) value[u][e] = value[u][e - 1] + value[u][e];
      upto[u] = up_to(value[u][V - 1], 1, width);
    }
    float total = carry;
    if (warps > 1) {
      if (threadIdx.x % WARP == WARP - 1) {
#pragma unroll
        for (int u = 0; u < N; ++u) of_warp[turn][u * warps + threadIdx.x / WARP] = upto[u];
      }
      __syncthreads();
      const int mine = threadIdx.x % WARP;
      const float all = up_to(mine < N * warps ? of_warp[turn][mine] : 0.0f, 1, WARP);
      if (a.parts > 1) {
        if (threadIdx.x < WARP) {
          unsigned* const slots = a.slots + blockIdx.x / a.parts * (a.parts + 1);
          const float found = scans::before(slots, part, __shfl_sync(ALL_LANES, all, N * warps - 1));
          if (threadIdx.x == 0) of_parts = found;
        }
        __syncthreads();
        carry = of_parts;
      }
#pragma unroll
      for (int u = 0; u < N; ++u) {
        const int at = u * warps + threadIdx.x / WARP;
        const float before = __shfl_sync(ALL_LANES, all, at > 0 ? at - 1 : 0);
        base[u] = at > 0 ? carry + before : carry;
      }
      total = carry + __shfl_sync(ALL_LANES, all, N * warps - 1);
    } else {
#pragma unroll
      for (int u = 0; u < N; ++u) {
        base[u] = total;
        total = total + __shfl_sync(ALL_LANES, upto[u], width - 1, width);
      }
    }
    carry = total;
#pragma unroll
    for (int u = 0; u < N; ++u) {
      const float before = __shfl_up_sync(ALL_LANES, upto[u], 1, width);
      if ((threadIdx.x & (width - 1)) > 0) base[u] = base[u] + before;
#pragma unroll
      for (int e = 0; e < V; ++e) value[u][e] = base[u] + value[u][e];
      const long long i = first + ((long long)u * a.lanes + lane) * V;
      if (i < own) put<V, BACK>(out, i, a.length, a.entry[1], value[u]);
    }
  }
  if (a.parts > 1) {
    unsigned* const slots = a.slots + blockIdx.x / a.parts * (a.parts + 1);
    if (last_to_arrive(slots, a.parts)) {
      for (int i = threadIdx.x; i < a.parts; i += blockDim.x) slots[1 + i] = 0;
    }
  }
}

// Neighbours in memory belong to different lines: `lanes` threads (a power of two up to 32) lie across them, each with
// V lines; blockDim.x / lanes follow each other along these, with N entries each.
template <typename T, typename U, int V, int N, bool BACK>
__device__ __forceinline__ void scans_outer(const scans_args& a) {
  using namespace scans;
  float* const of_warp = dynamic_shared<float>();  // of two chunks: a number for each warp and line
  const int warps = blockDim.x / WARP, warp = threadIdx.x / WARP, across = threadIdx.x & (a.lanes - 1);
  const int row = threadIdx.x / a.lanes, rows = blockDim.x / a.lanes, wide = a.lanes * V;
  const long long line = ((long long)blockIdx.x * a.lanes + across) * V;
  const long long own = line < a.count ? a.length : 0;
  const T* const x = (const T*)a.x + start_of(a, 0, line);
  U* const out = (U*)a.out + start_of(a, 1, line);
  float carry[V];
#pragma unroll
  for (int e = 0; e < V; ++e) carry[e] = 0.0f;
  int turn = 0;
  for (long long first = 0; first < a.length; first += (long long)rows * N, turn ^= 1) {
    float value[N][V], base[V];
#pragma unroll
    for (int u = 0; u < N; ++u) {
      const long long i = first + (long long)row * N + u;
      if (i < own) {
        take<V, false>(x + (BACK ? a.length - 1 - i : i) * a.entry[0], 0, 0, 0, value[u]);
      } else {
#pragma unroll
        for (int e = 0; e < V; ++e) value[u][e] = 0.0f;
      }
    }
#pragma unroll
    for (int e = 0; e < V; ++e) {
#pragma unroll
      for (int u = 1; u < N; ++u) value[u][e] = value[u - 1][e] + value[u][e];
      const float upto = up_to(value[N - 1][e], a.lanes, WARP);
      const float before = __shfl_up_sync(ALL_LANES, upto, a.lanes);
      base[e] = (int)(threadIdx.x % WARP) < a.lanes ? 0.0f : before;
      if ((int)(threadIdx.x % WARP) >= WARP - a.lanes) of_warp[(turn * warps + warp) * wide + across * V + e] = upto;
    }
    __syncthreads();
    float go[V];
#pragma unroll
    for (int e = 0; e < V; ++e) go[e] = carry[e];
    for (int w = 0; w < warps; ++w) {
      const Vector<float, V> found = load<V>(of_warp + (turn * warps + w) * wide + across * V);
#pragma unroll
      for (int e = 0; e < V; ++e) {
        if (w == warp) base[e] = go[e] + base[e];
        go[e] = go[e] + found[e];
      }
    }
#pragma unroll
    for (int e = 0; e < V; ++e) carry[e] = go[e];
#pragma unroll
    for (int u = 0; u < N; ++u) {
      const long long i = first + (long long)row * N + u;
#pragma unroll
      for (int e = 0; e < V; ++e) value[u][e] = base[e] + value[u][e];
      if (i < own) put<V, false>(out + (BACK ? a.length - 1 - i : i) * a.entry[1], 0, 0, 0, value[u]);
    }
  }
}
