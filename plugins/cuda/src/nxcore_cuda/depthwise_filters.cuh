// The gradient of a filter: from every thread's sums to the elements that torch wants.
#pragma once
#include "element.cuh"
#include "reduce.cuh"

namespace depthwise {

// Where a filter's gradient goes, in elements.
struct FilterTarget {
  long long channel;
  int row, column, width;  // width: taps in a row
};

// Sums N values over the lanes of a warp in a fixed order. Of two halves of the values each lane gives one
// away and keeps the other, so that a value costs about one exchange and not five.
template <int N, int STEP = 16>
struct Fold {
  static constexpr int HALF = STEP > 0 ? (N + 1) / 2 : N;
  using Rest = Fold<HALF, STEP / 2>;
  static constexpr int LEFT = Rest::LEFT;  // values that a lane ends up with

  // Leaves the sums of values `first` to `first` + LEFT in `values`; those from `end` on mean nothing.
  __device__ __forceinline__ static void run(float* values, int lane, int& first, int& end) {
    const bool upper = lane & STEP;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const float other = HALF + i < N ? values[HALF + i] : 0.0f;
      const float give = upper ? values[i] : other, keep = upper ? other : values[i];
      values[i] = keep + __shfl_xor_sync(ALL_LANES, give, STEP);
    }
    if (upper) first += HALF;
    else end = min(end, first + HALF);
    Rest::run(values, lane, first, end);
  }
};
template <int N>
struct Fold<N, 0> {
  static constexpr int LEFT = N;
  __device__ __forceinline__ static void run(float*, int, int&, int&) {}
};
template <int STEP>
struct Fold<1, STEP> {
  static constexpr int LEFT = 1;
  __device__ __forceinline__ static void run(float* values, int lane, int& first, int& end) {
#pragma unroll
    for (int step = STEP; step > 0; step /= 2) values[0] += __shfl_xor_sync(ALL_LANES, values[0], step);
  }
};
template <>
struct Fold<1, 0> {
  static constexpr int LEFT = 1;
  __device__ __forceinline__ static void run(float*, int, int&, int&) {}
};

constexpr int MOST_WARPS = 8;  // of a block whose threads fold filters' gradients

// The sum over a block of any whole number of warps, in thread 0, in one fixed order.
__device__ __forceinline__ float sum_of_block(float x) {
  __shared__ float of_warp[32];
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = x;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 1; i < (int)blockDim.x / WARP; ++i) x += of_warp[i];
  return x;
}

// Turns what each thread of a channel's blocks has summed into the channel's gradient. `exact(tap)` sums a tap
// anew over all that the block's thread is to take, without what lies beside the image: there the sums have
// zeros, and a zero times an infinity or NaN is NaN.
template <typename T, int TAPS, bool TURNED, typename Exact>
__device__ __forceinline__ void finish_filter(float (&gradient)[TAPS], int channel, unsigned split, unsigned splits,
                                              void* weight_grad, void* partials, void* tickets,
                                              const FilterTarget& target, Exact exact) {
  constexpr int MOST = TAPS * MOST_WARPS > WARP * MOST_WARPS ? TAPS * MOST_WARPS : WARP * MOST_WARPS;
  __shared__ float shares[MOST];
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  int count = blockDim.x / WARP, first = 0, end = TAPS;
  Fold<TAPS>::run(gradient, lane, first, end);
#pragma unroll
  for (int i = 0; i < Fold<TAPS>::LEFT; ++i)
    if (first + i < end) shares[warp * TAPS + first + i] = gradient[i];
  __syncthreads();
  if (splits > 1) {
    float* mine = static_cast<float*>(partials) + (long long)channel * splits * TAPS;
    for (int tap = threadIdx.x; tap < TAPS; tap += blockDim.x) {
      float sum = shares[tap];
      for (int i = 1; i < count; ++i) sum += shares[i * TAPS + tap];
      mine[split * TAPS + tap] = sum;
    }
    if (!last_to_arrive(static_cast<unsigned*>(tickets) + channel, splits)) return;
    count = max((int)blockDim.x / TAPS, 1);
    for (int i = threadIdx.x; i < count * TAPS; i += blockDim.x) {
      float sum = 0.0f;
#pragma unroll 8
      for (unsigned from = i / TAPS; from < splits; from += count) sum += __ldcg(mine + from * TAPS + i % TAPS);
      shares[i] = sum;
    }
    __syncthreads();
  }
  bool odd = false;
  for (int tap = threadIdx.x; tap < TAPS; tap += blockDim.x) {
    float sum = shares[tap];
    for (int i = 1; i < count; ++i) sum += shares[i * TAPS + tap];
    shares[tap] = sum;
    odd = odd || is_nan(sum);
  }
  if (__syncthreads_or(odd)) {
#pragma unroll 1
    for (int tap = 0; tap < TAPS; ++tap) {
      if (!is_nan(shares[tap])) continue;
      const float sum = sum_of_block(exact(tap));
      if (threadIdx.x == 0) shares[tap] = sum;
      __syncthreads();
    }
  }
  T* to = static_cast<T*>(weight_grad) + channel * target.channel;
  for (int tap = threadIdx.x; tap < TAPS; tap += blockDim.x) {
    const int at = TURNED ? TAPS - 1 - tap : tap;
    to[at / target.width * target.row + at % target.width * target.column] = narrow<T>(shares[tap]);
  }
}

}  // namespace depthwise
