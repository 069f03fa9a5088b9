// foreach_batch_norm: batch_norm of several tensors of one shape and layout, whose number is a third dimension of the
// grid; neither weights nor biases.
#pragma once
#include "batch_norm.cu"
#include "foreach.cuh"

struct foreach_batch_norm_args {
  const void* xs[foreach::ROOM];
  void* ys[foreach::ROOM];
  float* shares[foreach::ROOM];  // each [channel][block] of moments
  float* mean;                   // [tensor][channel]
  float* var;
  long long x_step;  // from one channel to the next
  long long y_step;
  int splits[foreach::ROOM];  // blocks that left moments
  channels c;
  strides x_strides;
  strides y_strides;
};

namespace foreach {

// The arguments of one tensor; what all tensors share stays where it is.
struct Norm {
  const void* x;
  const void *weight, *bias;
  void* y;
  float *mean, *var;
  long long x_step, y_step;
  int kind;
  const channels& c;
  const strides &x_strides, &y_strides;
};

}  // namespace foreach

// batch_norm_finish of each tensor, by moments that other kernels left.
template <typename T, int VECTOR, int UNROLL, int LOADS>
__device__ __forceinline__ void foreach_batch_norm_finish(const foreach_batch_norm_args& a) {
  using namespace batch_norm_parts;
  const int i = blockIdx.z, row = i * gridDim.y;
  const foreach::Norm own = {a.xs[i],  nullptr,  nullptr, a.ys[i], a.mean + row, a.var + row,
                             a.x_step, a.y_step, 0,       a.c,     a.x_strides,  a.y_strides};
  normalise<T, VECTOR, UNROLL, LOADS>(own, Given{a.shares[i], a.splits[i]});
}
