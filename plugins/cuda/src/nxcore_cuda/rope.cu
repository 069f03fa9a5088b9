// rope: a thread has a vector of first and one of second entries of pairs, in the same place of several rows that the
// same angles turn.
#pragma once

#include "element.cuh"
#include "strided.cuh"

struct rope_args {
  const void* x;
  const void* cos;
  const void* sin;
  void* out;
  long long count;     // threads
  long long repeats;   // rows that the same angles turn
  long long again[2];  // elements of x and of out from one of them to the next
  long long entry[3];  // from entry to entry of x, cos and sin
  long long turning;   // places of a row that turn; behind them vectors are copied
  dims sizes;
  strides at[6];  // x, cos, sin, out, the place in a row, the first of a thread's rows
  int rows;       // of a thread
  int neighbours;  // are a pair
  int each;        // angles are those of entries, not of pairs
  int back;        // turn back
};

namespace rope_parts {

constexpr int ROWS = 4;  // that a thread waits for at once; as in rope.py

// The first and the second entries of a place of a row.
template <typename T, int V>
struct Place {
  Vector<T, V> half[2];
  __device__ __forceinline__ float operator[](int i) const { return widen(half[i / V][i % V]); }
};

// Angles of first and second entries: where they are given for pairs, both are the same.
template <typename C, int V>
__device__ __forceinline__ void angles(const C* from, long long place, long long first, long long second,
                                       const rope_args& a, float (&one)[V], float (&two)[V]) {
  Place<C, V> found;
  found.half[0] = load<V>(from + (a.each ? first : place * V));
  if (a.each) found.half[1] = load<V>(from + second);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    one[k] = a.each && a.neighbours ? found[2 * k] : found[k];
    two[k] = !a.each ? found[k] : a.neighbours ? found[2 * k + 1] : found[V + k];
  }
}

}  // namespace rope_parts

template <typename T, typename C, int V>
__device__ __forceinline__ void rope(const rope_args& a) {
  using namespace rope_parts;
  const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= a.count) return;
  long long at[6];
  locate(index, a.sizes, a.at, at);
  const T* const x = (const T*)a.x + at[0];
  T* const out = (T*)a.out + at[3];
  const long long place = at[4], left = a.repeats - at[5];
  const int rows = left < a.rows ? (int)left : a.rows;
  if (place >= a.turning) {
    const long long entry = (a.turning + place) * V;
    for (int r = 0; r < rows; ++r) {
      store_streaming<V>(out + r * a.again[1] + entry, load_streaming<V>(x + r * a.again[0] + entry * a.entry[0]));
    }
    return;
  }
  const long long first = a.neighbours ? 2 * place * V : place * V;
  const long long second = a.neighbours ? first + V : first + a.turning * V;
  Place<T, V> found[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (r < rows) {
      found[r].half[0] = load_streaming<V>(x + r * a.again[0] + first * a.entry[0]);
      found[r].half[1] = load_streaming<V>(x + r * a.again[0] + second * a.entry[0]);
    }
  }
  float cos[2][V], sin[2][V];
  const C* const cosines = (const C*)a.cos + at[1];
  const C* const sines = (const C*)a.sin + at[2];
  angles<C, V>(cosines, place * a.entry[1], first * a.entry[1], second * a.entry[1], a, cos[0], cos[1]);
  angles<C, V>(sines, place * a.entry[2], first * a.entry[2], second * a.entry[2], a, sin[0], sin[1]);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (r < rows) {
      float one[V], two[V];
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const float x0 = a.neighbours ? found[r][2 * k] : found[r][k];
        const float x1 = a.neighbours ? found[r][2 * k + 1] : found[r][V + k];
        one[k] = x0 * cos[0][k] - x1 * (a.back ? -sin[1][k] : sin[0][k]);
        two[k] = x1 * cos[1][k] + x0 * (a.back ? -sin[0][k] : sin[1][k]);
      }
      Vector<T, V> made[2];
#pragma unroll
      for (int j = 0; j < 2 * V; ++j) {
        const float beside = j % 2 ? two[j / 2] : one[j / 2], apart = j < V ? one[j % V] : two[j % V];
        made[j / V][j % V] = narrow<T>(a.neighbours ? beside : apart);
      }
      store_streaming<V>(out + r * a.again[1] + first, made[0]);
      store_streaming<V>(out + r * a.again[1] + second, made[1]);
    }
  }
}
