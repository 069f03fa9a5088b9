// softmax and log_softmax of lines, and their gradients: one pass over memory, the rest over what is kept.
#pragma once

#include "lines.cuh"

constexpr float LOG2E = 1.4426950408889634f;

struct softmaxes_args {
  const void* x;
  void* y;
  lines<2> l;
};

// exp(x): the hardware's, right to two units in the last place; what is subnormal is 0.
__device__ __forceinline__ float power(float x) {
#ifdef NXCORE_EMULATOR
  return exp2f(x * LOG2E);
#else
  float found;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x * LOG2E));
  return found;
#endif
}

// Of a line: its largest entry, and the sum of exponentials of distances from it.
struct Seen {
  float top, total;
};

// Reads a line in one pass; each of its threads knows the result. Every thread calls it.
template <typename T, int V, int TENSORS>
__device__ __forceinline__ Seen seen(const Kept<T, V>& x, const lines<TENSORS>& l, long long line) {
  // Of what this thread has seen: the largest, and the sum of exponentials of distances from it.
  float top = minus_infinity(), total = 0.0f;
  each_read(
      l, line,
      [&](const Vector<T, V>& v) {
        float above = top;
#pragma unroll
        for (int e = 0; e < V; ++e) above = fmaxf(above, widen(v[e]));
        const float base = above == minus_infinity() ? 0.0f : above;  // -inf - -inf is NaN, exp(-inf) is 0
        total *= power(top - base);
#pragma unroll
        for (int e = 0; e < V; ++e) total += power(widen(v[e]) - base);
        top = above;
      },
      x);
  const float all = of_line(top, l.lanes, Larger());
  total *= top == minus_infinity() && total == 0.0f ? 0.0f : power(top - all);
  return {all, of_line(total, l.lanes, Add())};
}

template <typename T, typename O, int V, bool LOG>
__device__ __forceinline__ void softmaxes(const softmaxes_args& a) {
  const long long line = own_line(a.l.lanes);
  const Kept<T, V> x(a.x, a.l, line, 0, dynamic_shared<char>());
  const Seen row = seen(x, a.l, line);
  const float scale = LOG ? logf(row.total) : 1.0f / row.total;
  O* y = line_of<O>(a.y, a.l, line, 1);
  each_own(a.l, line, [&](int k, long long i) {
    const Vector<T, V> v = x.again(k, i);
    Vector<O, V> made;
#pragma unroll
    for (int e = 0; e < V; ++e) {
      const float below = widen(v[e]) - row.top;
      made[e] = narrow<O>(LOG ? below - scale : power(below) * scale);
    }
    store_entries<V>(y, i, a.l.entry[1], made);
  });
}

struct softmaxes_backward_args {
  const void* grad;
  const void* y;
  void* out;
  lines<3> l;
};

template <typename T, typename O, int V, bool LOG>
__device__ __forceinline__ void softmaxes_backward(const softmaxes_backward_args& a) {
  const long long line = own_line(a.l.lanes);
  const Kept<T, V> grad(a.grad, a.l, line, 0, dynamic_shared<char>());
  const Kept<T, V> y(a.y, a.l, line, 1, grad.end());
  float total = 0.0f;
  each_read(
      a.l, line,
      [&](const Vector<T, V>& g, const Vector<T, V>& v) {
#pragma unroll
        for (int e = 0; e < V; ++e) total += LOG ? widen(g[e]) : widen(g[e]) * widen(v[e]);
      },
      grad, y);
  total = of_line(total, a.l.lanes, Add());
  O* out = line_of<O>(a.out, a.l, line, 2);
  each_own(a.l, line, [&](int k, long long i) {
    const Vector<T, V> g = grad.again(k, i), v = y.again(k, i);
    Vector<O, V> made;
#pragma unroll
    for (int e = 0; e < V; ++e) {
      const float p = widen(v[e]), by = widen(g[e]);
      made[e] = narrow<O>(LOG ? by - power(p) * total : p * (by - total));
    }
    store_entries<V>(out, i, a.l.entry[2], made);
  });
}
