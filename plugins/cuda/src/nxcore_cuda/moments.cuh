// Mean and squared deviations of groups of values, put together by Chan's formula: a sum of squares less the square
// of the sum would cancel.
#pragma once

#include "element.cuh"
#include "softmax.cuh"

namespace moments {

struct Moments {
  float count, mean, squares;
};

// Two groups of values as one. An infinite mean stays infinite: no difference of means goes into the mean.
__device__ __forceinline__ Moments together(const Moments& a, const Moments& b) {
  const float count = a.count + b.count;
  const float mean = count > 0.0f ? (a.count * a.mean + b.count * b.mean) / count : 0.0f;
  const float of_a = a.mean - mean, of_b = b.mean - mean;
  return {count, mean, a.squares + b.squares + a.count * of_a * of_a + b.count * of_b * of_b};
}

// The groups of WIDTH neighbouring lanes as one, in every lane; those of a warp, unless given.
template <int WIDTH = WARP>
__device__ __forceinline__ Moments of_warp(const Moments& lane) {
  const float count = warp_sum<WIDTH>(lane.count);
  const float sum = warp_sum<WIDTH>(lane.count * lane.mean);
  const float mean = count > 0.0f ? sum / count : 0.0f;
  const float off = lane.mean - mean;
  return {count, mean, warp_sum<WIDTH>(lane.squares + lane.count * off * off)};
}

// The groups of a block's threads as one, in every thread.
__device__ __forceinline__ Moments of_block(const Moments& thread) {
  __shared__ Moments warps[WARP];
  const unsigned lane = threadIdx.x % WARP;
  Moments found = of_warp(thread);
  if (lane == 0) warps[threadIdx.x / WARP] = found;
  __syncthreads();
  found = {0.0f, 0.0f, 0.0f};
  if (lane < blockDim.x / WARP) found = warps[lane];
  return of_warp(found);
}

// What a block of another kernel left of a channel, with the count: blocks needn't have the same.
__device__ __forceinline__ void leave(float* shares, long long at, const Moments& found) {
  Vector<float, 4> share;
  share[0] = found.count;
  share[1] = found.mean;
  share[2] = found.squares;
  share[3] = 0.0f;
  store<4>(shares + 4 * at, share);
}

// All that such blocks left of a channel as one, in every thread.
__device__ __forceinline__ Moments of_shares(const float* shares, int channel, int splits) {
  Moments found = {0.0f, 0.0f, 0.0f};
  for (int split = threadIdx.x; split < splits; split += blockDim.x) {
    const Vector<float, 4> share = load<4>(shares + 4 * ((long long)channel * splits + split));
    const Moments next = {share[0], share[1], share[2]};
    found = found.count > 0.0f ? together(found, next) : next;
  }
  return of_block(found);
}

}  // namespace moments
