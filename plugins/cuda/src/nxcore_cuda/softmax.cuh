// The softmax of a few logits, which every warp or block computes for itself; or weights as they are given.
#pragma once

#include "element.cuh"

// Numbers of one of three types, told apart at run time: there are few of them.
enum { FLOAT32, FLOAT16, BFLOAT16 };

// Added to one of them where the numbers are the weights, and no logits.
constexpr int GIVEN = 4;

__device__ __forceinline__ unsigned read_bits(const void* from, int kind, long long at) {
  return (kind & ~GIVEN) == FLOAT32 ? static_cast<const unsigned*>(from)[at]
                                    : static_cast<const unsigned short*>(from)[at];
}

__device__ __forceinline__ float from_bits(unsigned bits, int kind) {
  kind &= ~GIVEN;
  if (kind == FLOAT16) return widen(float16{(unsigned short)bits});
  if (kind == BFLOAT16) return widen(bfloat16{(unsigned short)bits});
  return __uint_as_float(bits);
}

__device__ __forceinline__ float read(const void* from, int kind, long long at) {
  return from_bits(read_bits(from, kind, at), kind);
}

__device__ __forceinline__ void write(void* to, int kind, long long at, float value) {
  kind &= ~GIVEN;
  if (kind == FLOAT16) {
    static_cast<float16*>(to)[at] = narrow<float16>(value);
  } else if (kind == BFLOAT16) {
    static_cast<bfloat16*>(to)[at] = narrow<bfloat16>(value);
  } else {
    static_cast<float*>(to)[at] = value;
  }
}

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// The least power of two that isn't below n.
__device__ constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }

template <int WIDTH>
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = WIDTH / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
  return x;
}

// This thread's logit, still as bits: to be asked for before the loads that are to wait for nothing.
template <int COUNT>
__device__ __forceinline__ unsigned own_logit(const void* logits, int kind, long long step) {
  const int lane = threadIdx.x % power_of_two(COUNT);
  return read_bits(logits, kind, (lane < COUNT ? lane : 0) * step);
}

// Fills `weights` in every thread of a warp; whole warps call it. A NaN among the logits makes all NaN:
// fmaxf may drop it, its exponential doesn't.
template <int COUNT>
__device__ __forceinline__ void softmax(unsigned own, int kind, float (&weights)[COUNT]) {
  constexpr int LANES = power_of_two(COUNT);
  static_assert(LANES <= WARP, "one logit a lane");
  const float logit = from_bits(own, kind);  // lanes past the last hold the first one's, which moves no maximum
  const float top = warp_max<LANES>(logit);
  const float power = (int)(threadIdx.x % LANES) < COUNT ? expf(logit - top) : 0.0f;
  const float weight = kind & GIVEN ? logit : power / warp_sum<LANES>(power);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) weights[i] = __shfl_sync(ALL_LANES, weight, i);
}

// Fills `weights` in shared memory. Every thread calls it; it ends with a barrier.
__device__ __forceinline__ void softmax(const void* logits, int kind, long long step, int count, float* weights) {
  if (kind & GIVEN) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) weights[i] = read(logits, kind, i * step);
  } else if (threadIdx.x < WARP) {
    float top = minus_infinity(), total = 0.0f;
    for (int i = threadIdx.x; i < count; i += WARP) top = fmaxf(top, read(logits, kind, i * step));
    top = warp_max<WARP>(top);
    for (int i = threadIdx.x; i < count; i += WARP) {
      const float power = expf(read(logits, kind, i * step) - top);
      weights[i] = power;
      total += power;
    }
    total = warp_sum(total);
    for (int i = threadIdx.x; i < count; i += WARP) weights[i] /= total;
  }
  __syncthreads();
}
