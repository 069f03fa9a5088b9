// From the number of an element to its place in memory, and the other way to walk through a tensor.
#pragma once

constexpr int MAX_RANK = 4;

// Sizes of up to MAX_RANK dimensions, innermost first. The outermost one's is never read.
struct dims {
  long long sizes[MAX_RANK];
  unsigned magics[MAX_RANK];  // n / size = (n * magic / 2^32 + n) >> shift: Granlund and Montgomery 1994
  unsigned shifts[MAX_RANK];
  int rank;
  int wide;  // there are 2^31 elements or more
};

// A tensor's strides in such dimensions, in elements.
struct strides {
  long long of[MAX_RANK];
};

namespace strided {

template <int OPERANDS>
__device__ __forceinline__ void step(long long coordinate, int k, const strides* s, long long (&at)[OPERANDS]) {
#pragma unroll
  for (int o = 0; o < OPERANDS; ++o) at[o] += coordinate * s[o].of[k];
}

template <int OPERANDS>
__device__ __forceinline__ void locate(unsigned rest, const dims& d, const strides* s, long long (&at)[OPERANDS]) {
#pragma unroll
  for (int k = 0; k < MAX_RANK - 1; ++k) {
    if (k + 1 >= d.rank) return step(rest, k, s, at);
    const unsigned high = (unsigned)((unsigned long long)rest * d.magics[k] >> 32);
    const unsigned quotient = (high + rest) >> d.shifts[k];
    step(rest - quotient * (unsigned)d.sizes[k], k, s, at);
    rest = quotient;
  }
  step(rest, MAX_RANK - 1, s, at);
}

template <int OPERANDS>
__device__ __forceinline__ void locate(unsigned long long rest, const dims& d, const strides* s,
                                       long long (&at)[OPERANDS]) {
  int k = 0;
#pragma unroll 1
  for (; k + 1 < d.rank; ++k) {
    const unsigned long long quotient = rest / (unsigned long long)d.sizes[k];
    step(rest - quotient * d.sizes[k], k, s, at);
    rest = quotient;
  }
  step(rest, k, s, at);
}

}  // namespace strided

// Where element `index` (row-major) lies in each of OPERANDS tensors, in elements.
template <int OPERANDS>
__device__ __forceinline__ void locate(long long index, const dims& d, const strides* s,
                                       long long (&at)[OPERANDS]) {
#pragma unroll
  for (int o = 0; o < OPERANDS; ++o) at[o] = 0;
  if (d.wide) {
    strided::locate((unsigned long long)index, d, s, at);
  } else {
    strided::locate((unsigned)index, d, s, at);
  }
}

__device__ __forceinline__ long long locate(long long index, const dims& d, const strides& s) {
  long long at[1];
  locate(index, d, &s, at);
  return at[0];
}
