// group_norm: a group of an image is a line, kept in shared memory; its factors change from channel to channel.
#pragma once

#include "lines.cuh"

struct channels_of {
  const void* weight;  // or null
  const void* bias;    // or null
  int kind;            // of both
  int groups, channels;  // groups of an image, channels of a group
  unsigned pixels;       // entries of a channel
  bool whole;            // whether a vector has entries of one channel alone

  // Calls use(e, weight, bias) for each entry of a line's i-th vector.
  template <int V, typename Use>
  __device__ __forceinline__ void each(long long line, long long i, Use use) const {
    const long long first = line % groups * channels;
    const unsigned at = (unsigned)(i * V);
    long long c = first + at / pixels;
    float w = weight ? read(weight, kind, c) : 1.0f, b = bias ? read(bias, kind, c) : 0.0f;
#pragma unroll
    for (int e = 0; e < V; ++e) {
      if (e > 0 && !whole) {
        c = first + (at + e) / pixels;
        w = weight ? read(weight, kind, c) : 1.0f;
        b = bias ? read(bias, kind, c) : 0.0f;
      }
      use(e, w, b);
    }
  }
};

struct group_norm_args {
  const void* x;
  const void* weight;
  const void* bias;
  void* y;
  float eps;
  int kind, groups, channels;
  long long pixels;
  lines<2> l;
};

template <typename T, int V>
__device__ __forceinline__ void group_norm(const group_norm_args& a) {
  const long long line = own_line(a.l.lanes);
  const Kept<T, V> x(a.x, a.l, line, 0, dynamic_shared<char>());
  const float count = (float)(a.l.length * V);
  float mean = 0.0f, squares = 0.0f;
  each_read(
      a.l, line,
      [&](const Vector<T, V>& v) {
#pragma unroll
        for (int e = 0; e < V; ++e) mean += widen(v[e]);
      },
      x);
  mean = of_line(mean, a.l.lanes, Add()) / count;
  each_own(a.l, line, [&](int k, long long i) {
    const Vector<T, V> v = x.again(k, i);
#pragma unroll
    for (int e = 0; e < V; ++e) squares += (widen(v[e]) - mean) * (widen(v[e]) - mean);
  });
  squares = of_line(squares, a.l.lanes, Add());
  const float scale = 1.0f / sqrtf(squares / count + a.eps);
  T* y = line_of<T>(a.y, a.l, line, 1);
  const channels_of f{a.weight, a.bias, a.kind, a.groups, a.channels, (unsigned)a.pixels, a.pixels % V == 0};
  each_own(a.l, line, [&](int k, long long i) {
    const Vector<T, V> v = x.again(k, i);
    Vector<T, V> made;
    f.template each<V>(line, i,
                       [&](int e, float w, float b) { made[e] = narrow<T>((widen(v[e]) - mean) * scale * w + b); });
    store_entries<V>(y, i, a.l.entry[1], made);
  });
}

struct group_norm_backward_args {
  const void* grad;
  const void* x;
  const void* weight;
  void* out;     // or null
  float* found;  // the mean of each line, then one over each deviation
  float eps;
  int kind, groups, channels;
  long long pixels;
  lines<3> l;
};

template <typename T, int V>
__device__ __forceinline__ void group_norm_backward(const group_norm_backward_args& a) {
  const long long line = own_line(a.l.lanes);
  const Kept<T, V> grad(a.grad, a.l, line, 0, dynamic_shared<char>());
  const Kept<T, V> x(a.x, a.l, line, 1, grad.end());
  const float count = (float)(a.l.length * V);
  float mean = 0.0f, total = 0.0f, squares = 0.0f, products = 0.0f;
  each_read(
      a.l, line,
      [&](const Vector<T, V>&, const Vector<T, V>& v) {
#pragma unroll
        for (int e = 0; e < V; ++e) mean += widen(v[e]);
      },
      grad, x);
  mean = of_line(mean, a.l.lanes, Add()) / count;
  const channels_of f{a.weight, nullptr, a.kind, a.groups, a.channels, (unsigned)a.pixels, a.pixels % V == 0};
  each_own(a.l, line, [&](int k, long long i) {
    const Vector<T, V> g = grad.again(k, i), v = x.again(k, i);
    f.template each<V>(line, i, [&](int e, float w, float) {
      const float z = widen(v[e]) - mean, h = widen(g[e]) * w;
      squares += z * z;
      products += h * z;
      total += h;
    });
  });
  total = of_line(total, a.l.lanes, Add()) / count;
  squares = of_line(squares, a.l.lanes, Add());
  products = of_line(products, a.l.lanes, Add());
  const float scale = 1.0f / sqrtf(squares / count + a.eps), slope = products / count * scale * scale;
  if (line < a.l.count && own_lane(a.l.lanes) == 0) {
    a.found[line] = mean;
    a.found[a.l.count + line] = scale;
  }
  if (!a.out) return;
  T* out = line_of<T>(a.out, a.l, line, 2);
  each_own(a.l, line, [&](int k, long long i) {
    const Vector<T, V> g = grad.again(k, i), v = x.again(k, i);
    Vector<T, V> made;
    f.template each<V>(line, i, [&](int e, float w, float) {
      made[e] = narrow<T>(scale * (widen(g[e]) * w - total - (widen(v[e]) - mean) * slope));
    });
    store_entries<V>(out, i, a.l.entry[2], made);
  });
}

struct group_norm_factors_args {
  const void* grad;
  const void* x;
  const float* found;
  void* weight;  // or null
  void* bias;    // or null
  long long images, lines, pixels;
  int kind, channels;  // channels of a group
};

// A block adds up one channel of all images, in one fixed order.
template <typename T>
__device__ __forceinline__ void group_norm_factors(const group_norm_factors_args& a) {
  const long long groups = a.lines / a.images, channel = blockIdx.x;
  float products = 0.0f, total = 0.0f;
  for (long long j = threadIdx.x; j < a.images * a.pixels; j += blockDim.x) {
    const long long image = j / a.pixels, line = image * groups + channel / a.channels;
    const long long at = (image * groups * a.channels + channel) * a.pixels + j % a.pixels;
    const float g = widen(static_cast<const T*>(a.grad)[at]);
    products += g * ((widen(static_cast<const T*>(a.x)[at]) - a.found[line]) * a.found[a.lines + line]);
    total += g;
  }
  products = of_line(products, blockDim.x, Add());
  total = of_line(total, blockDim.x, Add());
  if (threadIdx.x) return;
  if (a.weight) write(a.weight, a.kind, channel, products);
  if (a.bias) write(a.bias, a.kind, channel, total);
}
