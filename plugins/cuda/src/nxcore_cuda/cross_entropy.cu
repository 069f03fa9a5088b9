// cross_entropy of lines of classes, and its gradient: a line is read once and kept; rows are added up in one order.
#pragma once

#include "reduce.cuh"
#include "softmaxes.cu"

namespace losses {

// A line's class: an index that there isn't ends the kernel, as torch's own does.
struct Target {
  long long at;
  bool kept, right;

  __device__ __forceinline__ Target(const long long* from, long long ignored, long long classes) : at(*from) {
    kept = at != ignored;
    right = !kept || (0 <= at && at < classes);
#ifndef NXCORE_EMULATOR
    if (!right) asm volatile("trap;");
#endif
  }
};

// What stands for the loss of a class that there isn't, where the kernel goes on: NaN.
__device__ __forceinline__ float none() { return __uint_as_float(0x7fc00000u); }

template <typename T>
__device__ __forceinline__ float weight_of(const void* weights, long long c) {
  return weights ? widen(static_cast<const T*>(weights)[c]) : 1.0f;
}

}  // namespace losses

struct cross_entropy_args {
  const void* x;
  const long long* target;
  const void* weights;  // or null
  void* losses;
  long long ignored, classes;
  float smoothing;
  int kind;    // of the losses
  lines<3> l;  // x, target, losses
};

template <typename T, int V>
__device__ __forceinline__ void cross_entropy(const cross_entropy_args& a) {
  const long long line = own_line(a.l.lanes);
  const Kept<T, V> x(a.x, a.l, line, 0, dynamic_shared<char>());
  const Seen row = seen(x, a.l, line);
  const float level = logf(row.total);
  float lean = 0.0f;
  if (a.smoothing != 0.0f) {
    each_own(a.l, line, [&](int k, long long i) {
      const Vector<T, V> v = x.again(k, i);
#pragma unroll
      for (int e = 0; e < V; ++e)
        lean += losses::weight_of<T>(a.weights, i * V + e) * (widen(v[e]) - row.top - level);
    });
    lean = of_line(lean, a.l.lanes, Add());
  }
  if (line >= a.l.count || own_lane(a.l.lanes)) return;
  const losses::Target t(line_of<const long long>(a.target, a.l, line, 1), a.ignored, a.classes);
  float loss = t.right ? 0.0f : losses::none();
  if (t.kept && t.right) {
    const float own = losses::weight_of<T>(a.weights, t.at), below = widen(x.line[t.at * x.entry]) - row.top - level;
    loss = -(1.0f - a.smoothing) * own * below;
    if (a.smoothing != 0.0f) loss -= a.smoothing / (float)a.classes * lean;
  }
  write(a.losses, a.kind, line / a.l.inner * a.l.outer[2] + line % a.l.inner * a.l.within[2], loss);
}

struct cross_entropy_total_args {
  const float* losses;  // in row-major order, or null
  const long long* target;
  const void* weights;
  void* out;
  float* parts;  // two of each block
  unsigned* ticket;
  long long ignored, classes;
  int mean;    // whether the losses' sum is divided by that of the weights
  int kind;    // of the result
  lines<1> l;  // target
};

// The sum of all losses, or of the weights of the targets: by blocks, then by the last of these.
template <typename T>
__device__ __forceinline__ void cross_entropy_total(const cross_entropy_total_args& a) {
  float total = 0.0f, weight = 0.0f;
  const long long stride = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < a.l.count; i += stride) {
    if (a.losses) total += a.losses[i];
    const losses::Target t(line_of<const long long>(a.target, a.l, i, 0), a.ignored, a.classes);
    if (t.kept && t.right) weight += losses::weight_of<T>(a.weights, t.at);
  }
  total = of_line(total, blockDim.x, Add());
  weight = of_line(weight, blockDim.x, Add());
  if (threadIdx.x == 0) {
    a.parts[2 * blockIdx.x] = total;
    a.parts[2 * blockIdx.x + 1] = weight;
  }
  if (!last_to_arrive(a.ticket, gridDim.x) || threadIdx.x) return;
  total = weight = 0.0f;
  for (unsigned i = 0; i < gridDim.x; ++i) {
    total += a.parts[2 * i];
    weight += a.parts[2 * i + 1];
  }
  write(a.out, a.kind, 0, !a.losses ? weight : a.mean ? total / weight : total);
}

struct cross_entropy_backward_args {
  const void* x;
  const void* grad;
  const long long* target;
  const void* weights;  // or null
  const float* share;   // the sum of the targets' weights, or null: 1
  void* out;
  long long ignored, classes;
  float smoothing;
  lines<4> l;  // x, target, grad, out
};

template <typename T, int V>
__device__ __forceinline__ void cross_entropy_backward(const cross_entropy_backward_args& a) {
  const long long line = own_line(a.l.lanes);
  const Kept<T, V> x(a.x, a.l, line, 0, dynamic_shared<char>());
  const Seen row = seen(x, a.l, line);
  float every = (float)a.classes;
  if (a.smoothing != 0.0f && a.weights) {
    every = 0.0f;
    for (long long c = own_lane(a.l.lanes); c < a.classes; c += a.l.lanes)
      every += losses::weight_of<T>(a.weights, c);
    every = of_line(every, a.l.lanes, Add());
  }
  if (line >= a.l.count) return;
  const losses::Target t(line_of<const long long>(a.target, a.l, line, 1), a.ignored, a.classes);
  float lead = 0.0f, each = 0.0f;
  if (t.kept) {
    float factor = widen(*line_of<const T>(a.grad, a.l, line, 2));
    if (a.share) factor /= *a.share;
    lead = t.right ? (1.0f - a.smoothing) * losses::weight_of<T>(a.weights, t.at) * factor : losses::none();
    if (a.smoothing != 0.0f) each = a.smoothing / (float)a.classes * factor;
  }
  const float slope = (lead + each * every) / row.total;
  T* out = line_of<T>(a.out, a.l, line, 3);
  each_own(a.l, line, [&](int k, long long i) {
    const Vector<T, V> v = x.again(k, i);
    Vector<T, V> made;
#pragma unroll
    for (int e = 0; e < V; ++e) {
      float by = power(widen(v[e]) - row.top) * slope;
      if (each != 0.0f) by -= each * losses::weight_of<T>(a.weights, i * V + e);
      if (t.kept && i * V + e == t.at) by -= lead;
      made[e] = narrow<T>(by);
    }
    store_entries<V>(out, i, a.l.entry[3], made);
  });
}
