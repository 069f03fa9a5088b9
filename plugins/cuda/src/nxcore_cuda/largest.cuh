// The larger of two elements, and where it lies: for max_pool2d.
//
// A tap replaces the one before where it is larger, or NaN: the first of equals counts, and the last NaN. What is
// here finds the first of the largest where no NaN is, and says afterwards that there was one, or an infinity.
#pragma once

#include "element.cuh"

namespace largest {

__device__ __forceinline__ bool replaces(float b, float a) { return b > a || is_nan(b); }

// Of zeros of two signs this is +0 on the device.
__device__ __forceinline__ float larger(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float found;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
  return found;
#else
  return replaces(b, a) ? b : a;
#endif
}

// --------------------------------------------------------------------- elements of 16 bits, two in a register

constexpr unsigned BOTH = 0x00010001u;

template <typename T>
constexpr unsigned INFINITE = 0;
template <>
constexpr unsigned INFINITE<float16> = 0x7c00u * BOTH;
template <>
constexpr unsigned INFINITE<bfloat16> = 0x7f80u * BOTH;

template <typename T>
constexpr unsigned ONE = 0;
template <>
constexpr unsigned ONE<float16> = 0x3c00u * BOTH;
template <>
constexpr unsigned ONE<bfloat16> = 0x3f80u * BOTH;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// a * b + c.
template <typename T>
__device__ __forceinline__ unsigned multiply_add(unsigned a, unsigned b, unsigned c) {
  if constexpr (INFINITE<T> == INFINITE<float16>) {
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(c) : "r"(a), "r"(b));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(c) : "r"(a), "r"(b));
  }
  return c;
}
#endif

template <typename T>
union Pair {
  T of[2];
  unsigned word;
};
template <typename T>
__device__ __forceinline__ unsigned pair_of(T x, T y) {
  Pair<T> pair;
  pair.of[0] = x, pair.of[1] = y;
  return pair.word;
}

__device__ __forceinline__ unsigned upper_halves(unsigned a, unsigned b) {
#ifdef __CUDA_ARCH__
  unsigned found;
  asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(found) : "r"(a), "r"(b));
  return found;
#else
  return a >> 16 | (b & 0xffff0000u);
#endif
}

// All bits of the halves that are negative.
__device__ __forceinline__ unsigned signs(unsigned pair) {
#ifdef __CUDA_ARCH__
  unsigned found;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(found) : "r"(pair));
  return found;
#else
  return (pair >> 15 & BOTH) * 0xffffu;
#endif
}

// From elements to integers that compare as they do, and back.
__device__ __forceinline__ unsigned flip(unsigned pair) { return pair ^ (signs(pair) & 0x7fffu * BOTH); }

// Zeros of both signs are +0 then, and every NaN is the largest of all.
template <typename T>
__device__ __forceinline__ unsigned ordered(unsigned pair) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return flip(multiply_add<T>(pair, ONE<T>, 0));
#else
  unsigned found = 0;
#pragma unroll
  for (int half = 0; half < 32; half += 16) {
    const unsigned bits = pair >> half & 0xffffu, size = bits & 0x7fffu;
    found |= (size > (INFINITE<T> & 0xffffu) ? 0x7fffu : size ? bits : 0u) << half;
  }
  return flip(found);
#endif
}

// Has bits other than signs from the first infinity or NaN on: `seen` after a pair, of what it was before.
template <typename T>
__device__ __forceinline__ unsigned watched(unsigned pair, unsigned seen) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return multiply_add<T>(pair, 0, seen);
#else
  const unsigned low = (pair & INFINITE<T> & 0xffffu), high = pair & INFINITE<T> & 0xffff0000u;
  return seen | (low == (INFINITE<T> & 0xffffu) || high == (INFINITE<T> & 0xffff0000u));
#endif
}

// ---------------------------------------------------------------------------------------- elements and places
// An Item is an element and its place, told by its distance from the last: what comes first is more. They are made
// and taken apart two at a time; the larger of two is found of one that comes before the other.

template <typename T>
struct Order {
  using Item = int;  // the element, and below it the place, of 16 bits
  unsigned seen = 0;

  __device__ __forceinline__ static void put(T x, T y, int x_at, int y_at, Item& a, Item& b) {
    const unsigned pair = ordered<T>(pair_of(x, y));
    a = (int)(pair << 16 | (unsigned)x_at);
    b = (int)((pair & 0xffff0000u) | (unsigned)y_at);
  }
  __device__ __forceinline__ static Item combine(Item a, Item b) { return max(a, b); }
  __device__ __forceinline__ static void get(Item a, Item b, T& x, T& y, int& x_at, int& y_at) {
    Pair<T> pair;
    pair.word = flip(upper_halves((unsigned)a, (unsigned)b));
    x = pair.of[0], y = pair.of[1];
    x_at = a & 0xffff;
    y_at = b & 0xffff;
  }
  __device__ __forceinline__ void watch(T x, T y) { seen = watched<T>(pair_of(x, y), seen); }
  // Takes over what another watched, if it counts. No choice: the compiler would branch around the other's work.
  __device__ __forceinline__ void join(bool counts, const Order& other) {
    seen |= other.seen & (counts ? 0x7fffu * BOTH : 0u);
  }
  // Whether it watched a NaN or an infinity.
  __device__ __forceinline__ bool doubtful() const { return seen != 0; }
};

struct Best {
  float value;
  int at;
};

template <>
struct Order<float> {
  using Item = Best;
  float seen = 0.0f;

  __device__ __forceinline__ static void put(float x, float y, int x_at, int y_at, Item& a, Item& b) {
    a = {x, x_at};
    b = {y, y_at};
  }
  __device__ __forceinline__ static Item combine(const Item& a, const Item& b) {
    return {larger(a.value, b.value), b.value > a.value ? b.at : a.at};
  }
  __device__ __forceinline__ static void get(const Item& a, const Item& b, float& x, float& y, int& x_at,
                                             int& y_at) {
    x = a.value, y = b.value;
    x_at = a.at, y_at = b.at;
  }
  __device__ __forceinline__ void watch(float x, float y) {
    seen = __fmaf_rn(x, 0.0f, __fmaf_rn(y, 0.0f, seen));
  }
  __device__ __forceinline__ void join(bool counts, const Order& other) { seen = counts ? seen + other.seen : seen; }
  __device__ __forceinline__ bool doubtful() const { return is_nan(seen); }
};

}  // namespace largest
