// foreach_batch_norm_backward: batch_norm_backward of several tensors of one shape and layout, whose number is a third
// dimension of the grid; neither weights nor biases.
#pragma once
#include "batch_norm_backward.cu"
#include "foreach.cuh"

struct foreach_batch_norm_backward_args {
  const void* grads[foreach::ROOM];
  const void* xs[foreach::ROOM];
  void* x_grads[foreach::ROOM];
  const float* mean;  // [tensor][channel]
  const float* var;
  float* shares;  // [tensor][channel][split]
  long long x_step;
  long long grad_step;
  long long out_step;
  channels c;
  strides x_strides;
  strides grad_strides;
  strides out_strides;
};

namespace foreach {

struct NormGradient {
  const void *grad, *x;
  const float *mean, *var;
  const void* weight;
  void *x_grad, *weight_grad, *bias_grad;
  float* shares;
  long long x_step, grad_step, out_step;
  int kind;
  const channels& c;
  const strides &x_strides, &grad_strides, &out_strides;
};

__device__ __forceinline__ NormGradient own(const foreach_batch_norm_backward_args& a, int i) {
  const int row = i * gridDim.y;
  float* const shares = a.shares + 2LL * row * a.c.splits;
  return {a.grads[i], a.xs[i],     a.mean + row, a.var + row, nullptr, a.x_grads[i], nullptr,        nullptr,      shares,
          a.x_step,   a.grad_step, a.out_step,   0,           a.c,     a.x_strides,  a.grad_strides, a.out_strides};
}

}  // namespace foreach

template <typename T, int VECTOR, int UNROLL, int LOADS>
__device__ __forceinline__ void foreach_batch_norm_backward_sums(const foreach_batch_norm_backward_args& a) {
  const foreach::NormGradient own = foreach::own(a, blockIdx.z);
  batch_norm_backward_sums<T, VECTOR, UNROLL, LOADS>(own);
}

// Begins with the tensors that the sums read last: the cache still has them.
template <typename T, int VECTOR, int UNROLL, int LOADS>
__device__ __forceinline__ void foreach_batch_norm_backward_apply(const foreach_batch_norm_backward_args& a) {
  const foreach::NormGradient own = foreach::own(a, gridDim.z - 1 - blockIdx.z);
  batch_norm_backward_apply<T, VECTOR, UNROLL, LOADS>(own);
}
