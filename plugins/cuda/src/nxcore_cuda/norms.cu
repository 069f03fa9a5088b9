// rms_norm and layer_norm of lines, and their gradients: one pass over memory, the rest over what is kept.
#pragma once

#include "lines.cuh"
#include "reduce.cuh"

template <int V>
__device__ __forceinline__ Vector<float, V> factor(const void* values, int kind, long long i, float other) {
  Vector<float, V> found;
#pragma unroll
  for (int e = 0; e < V; ++e) found[e] = values ? read(values, kind, i * V + e) : other;
  return found;
}

struct norms_args {
  const void* x;
  const void* weight;  // or null
  const void* bias;    // or null
  void* y;
  float eps;
  int kind;  // of the factors
  lines<2> l;
};

template <typename T, int V, bool CENTRED>
__device__ __forceinline__ void norms(const norms_args& a) {
  const long long line = own_line(a.l.lanes);
  const Kept<T, V> x(a.x, a.l, line, 0, dynamic_shared<char>());
  const float count = (float)(a.l.length * V);
  float mean = 0.0f, squares = 0.0f;
  each_read(
      a.l, line,
      [&](const Vector<T, V>& v) {
#pragma unroll
        for (int e = 0; e < V; ++e) {
          if constexpr (CENTRED) {
            mean += widen(v[e]);
          } else {
            squares += widen(v[e]) * widen(v[e]);
          }
        }
      },
      x);
  if constexpr (CENTRED) {
    mean = of_line(mean, a.l.lanes, Add()) / count;
    each_own(a.l, line, [&](int k, long long i) {
      const Vector<T, V> v = x.again(k, i);
#pragma unroll
      for (int e = 0; e < V; ++e) squares += (widen(v[e]) - mean) * (widen(v[e]) - mean);
    });
  }
  squares = of_line(squares, a.l.lanes, Add());
  const float scale = 1.0f / sqrtf(squares / count + a.eps);
  T* y = line_of<T>(a.y, a.l, line, 1);
  each_own(a.l, line, [&](int k, long long i) {
    const Vector<T, V> v = x.again(k, i);
    const Vector<float, V> w = factor<V>(a.weight, a.kind, i, 1.0f);
    Vector<T, V> made;
    if constexpr (CENTRED) {
      const Vector<float, V> b = factor<V>(a.bias, a.kind, i, 0.0f);
#pragma unroll
      for (int e = 0; e < V; ++e) made[e] = narrow<T>((widen(v[e]) - mean) * scale * w[e] + b[e]);
    } else {
#pragma unroll
      for (int e = 0; e < V; ++e) made[e] = narrow<T>(widen(v[e]) * scale * w[e]);
    }
    store_entries<V>(y, i, a.l.entry[1], made);
  });
}

struct norms_backward_args {
  const void* grad;
  const void* x;
  const void* weight;  // or null
  void* out;           // or null
  float* parts;        // or null: sums for each group of threads that shares a line
  float eps;
  int kind;
  int weighs, shifts;  // whether sums of the weight's gradient are wanted, and behind them of the bias's
  lines<3> l;
};

// Blocks step through the lines. Each thread has the same columns in all of them, and adds these up by itself.
template <typename T, int V, bool CENTRED>
__device__ __forceinline__ void norms_backward(const norms_backward_args& a) {
  const int lanes = a.l.lanes, groups = blockDim.x / lanes;
  const int factors = a.weighs + a.shifts;
  const long long columns = a.l.length * V;
  float* own = a.parts ? a.parts + ((long long)blockIdx.x * groups + threadIdx.x / lanes) * columns * factors : nullptr;
  Vector<float, V>* sums = nullptr;  // of the vectors that are kept, in shared memory behind them
  for (long long first = (long long)blockIdx.x * groups; first < a.l.count; first += (long long)gridDim.x * groups) {
    const long long line = first + threadIdx.x / lanes;
    const bool begins = first == (long long)blockIdx.x * groups;
    const Kept<T, V> grad(a.grad, a.l, line, 0, dynamic_shared<char>());
    const Kept<T, V> x(a.x, a.l, line, 1, grad.end());
    sums = static_cast<Vector<float, V>*>(x.end());
    const float count = (float)columns;
    float mean = 0.0f, total = 0.0f, squares = 0.0f, products = 0.0f;
    const auto add = [&](const Vector<T, V>& g, const Vector<T, V>& v, long long i) {
      const Vector<float, V> w = factor<V>(a.weight, a.kind, i, 1.0f);
#pragma unroll
      for (int e = 0; e < V; ++e) {
        const float z = CENTRED ? widen(v[e]) - mean : widen(v[e]);
        squares += z * z;
        products += widen(g[e]) * w[e] * z;
        if constexpr (CENTRED) total += widen(g[e]) * w[e];
      }
    };
    long long at = own_lane(lanes);
    each_read(
        a.l, line,
        [&](const Vector<T, V>& g, const Vector<T, V>& v) {
          if constexpr (CENTRED) {
#pragma unroll
            for (int e = 0; e < V; ++e) mean += widen(v[e]);
          } else {
            add(g, v, at);
          }
          at += lanes;
        },
        grad, x);
    if constexpr (CENTRED) {
      mean = of_line(mean, lanes, Add()) / count;
      each_own(a.l, line, [&](int k, long long i) { add(grad.again(k, i), x.again(k, i), i); });
      total = of_line(total, lanes, Add()) / count;
    }
    squares = of_line(squares, lanes, Add());
    products = of_line(products, lanes, Add());
    const float scale = 1.0f / sqrtf(squares / count + a.eps);
    const float slope = products / count * scale * scale;
    T* out = a.out ? line_of<T>(a.out, a.l, line, 2) : nullptr;
    each_own(a.l, line, [&](int k, long long i) {
      const Vector<T, V> g = grad.again(k, i), v = x.again(k, i);
      if (out) {
        const Vector<float, V> w = factor<V>(a.weight, a.kind, i, 1.0f);
        Vector<T, V> made;
#pragma unroll
        for (int e = 0; e < V; ++e) {
          const float h = CENTRED ? widen(g[e]) * w[e] - total : widen(g[e]) * w[e];
          made[e] = narrow<T>(scale * (h - (CENTRED ? widen(v[e]) - mean : widen(v[e])) * slope));
        }
        store_entries<V>(out, i, a.l.entry[2], made);
      }
      for (int f = 0; own && f < factors; ++f) {
        Vector<float, V>& kept = sums[((long long)f * a.l.held + k) * blockDim.x + threadIdx.x];
        float* beside = own + f * columns + i * V;
        const bool shared = k < a.l.held, scaled = f < a.weighs;
        Vector<float, V> sum;
#pragma unroll
        for (int e = 0; e < V; ++e) {
          const float z = CENTRED ? widen(v[e]) - mean : widen(v[e]);
          const float term = scaled ? widen(g[e]) * z * scale : widen(g[e]);
          sum[e] = (begins ? 0.0f : shared ? kept[e] : beside[e]) + term;
        }
        if (shared) {
          kept = sum;
        } else {
#pragma unroll
          for (int e = 0; e < V; ++e) beside[e] = sum[e];
        }
      }
    });
  }
  if (!own) return;
  const bool had = (long long)blockIdx.x * groups + threadIdx.x / lanes < a.l.count;
  for (int f = 0; f < factors; ++f) {
    int k = 0;
    for (long long i = own_lane(lanes); i < a.l.length; i += lanes, ++k) {
      if (had && k >= a.l.held) continue;
#pragma unroll
      for (int e = 0; e < V; ++e)
        own[f * columns + i * V + e] =
            had ? sums[((long long)f * a.l.held + k) * blockDim.x + threadIdx.x][e] : 0.0f;
    }
  }
}

struct norms_fold_args {
  const float* parts;
  void* out;
  void* more;  // of the columns past the first ``length``
  long long rows, columns, length;
  int kind;
};

// The sums of the columns of the parts, in one fixed order: 32 columns a block, a warp for some of the rows.
__device__ __forceinline__ void norms_fold(const norms_fold_args& a) {
  const long long column = (long long)blockIdx.x * WARP + threadIdx.x % WARP;
  float total = 0.0f;
  if (column < a.columns) {
#pragma unroll 8
    for (long long row = threadIdx.x / WARP; row < a.rows; row += blockDim.x / WARP)
      total += a.parts[row * a.columns + column];
  }
  float one[1] = {total};
  sum_columns(one, WARP, dynamic_shared<float>(), [&](int place, float sum) {
    const long long at = (long long)blockIdx.x * WARP + place;
    if (at < a.length) {
      write(a.out, a.kind, at, sum);
    } else if (at < a.columns) {
      write(a.more, a.kind, at - a.length, sum);
    }
  });
}
