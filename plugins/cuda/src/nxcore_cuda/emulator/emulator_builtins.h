// CUDA's built-in functions for emulator.h: those that the kernels here may use.
#pragma once

#include <limits.h>

#include <type_traits>

// ------------------------------------------------------------------------------------------ warps and blocks

// As on a GPU, threads that have returned count as arrived.
inline void __syncthreads() { nxcore_emulator::wait_for(nxcore_emulator::SYNCTHREADS, 0); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  nxcore_emulator::wait_for(nxcore_emulator::SYNCWARP, mask);
}

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  int self = nxcore_emulator::current % 32;
  return nxcore_emulator::shuffle(mask, value, self / width * width + (lane & (width - 1)), true);
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  int self = nxcore_emulator::current % 32, source = self ^ lanes;
  return nxcore_emulator::shuffle(mask, value, source, source < self / width * width + width && source < 32);
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  int self = nxcore_emulator::current % 32, source = self + int(lanes);
  return nxcore_emulator::shuffle(mask, value, source, source < self / width * width + width);
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  int self = nxcore_emulator::current % 32, source = self - int(lanes);
  return nxcore_emulator::shuffle(mask, value, source, source >= self / width * width);
}

inline unsigned __ballot_sync(unsigned mask, int vote) { return nxcore_emulator::ballot(mask, vote); }
inline int __any_sync(unsigned mask, int vote) { return nxcore_emulator::ballot(mask, vote) != 0; }
inline int __all_sync(unsigned mask, int vote) { return nxcore_emulator::ballot(mask, !vote) == 0; }

inline int __syncthreads_or(int vote) {
  static int found;
  __syncthreads();
  found = 0;
  __syncthreads();
  found |= vote != 0;
  __syncthreads();
  return found;
}
inline int __syncthreads_and(int vote) { return !__syncthreads_or(!vote); }
inline int __syncthreads_count(int vote) {
  static int found;
  __syncthreads();
  found = 0;
  __syncthreads();
  found += vote != 0;
  __syncthreads();
  return found;
}

// --------------------------------------------------------------------------------------------------- memory

// Fibers take turns, so plain memory accesses are atomic and in order.
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

template <typename T>
inline T __ldg(const T* p) {
  return *p;
}
template <typename T>
inline T __ldcs(const T* p) {
  return *p;
}
template <typename T>
inline T __ldcg(const T* p) {
  return *p;
}
template <typename T>
inline void __stcs(T* p, T value) {
  *p = value;
}
template <typename T>
inline void __stcg(T* p, T value) {
  *p = value;
}

#define NXCORE_ATOMIC(NAME, NEW)                                  \
  template <typename T>                                           \
  inline T NAME(T* p, typename std::common_type<T>::type value) { \
    T old = *p;                                                   \
    *p = NEW;                                                     \
    return old;                                                   \
  }
NXCORE_ATOMIC(atomicAdd, old + value)
NXCORE_ATOMIC(atomicSub, old - value)
NXCORE_ATOMIC(atomicExch, value)
NXCORE_ATOMIC(atomicMin, old < value ? old : value)
NXCORE_ATOMIC(atomicMax, old < value ? value : old)
NXCORE_ATOMIC(atomicAnd, old & value)
NXCORE_ATOMIC(atomicOr, old | value)
NXCORE_ATOMIC(atomicXor, old ^ value)
#undef NXCORE_ATOMIC
inline unsigned atomicInc(unsigned* p, unsigned last) {
  unsigned old = *p;
  *p = old >= last ? 0 : old + 1;
  return old;
}
inline unsigned atomicDec(unsigned* p, unsigned last) {
  unsigned old = *p;
  *p = old == 0 || old > last ? last : old - 1;
  return old;
}
template <typename T>
inline T atomicCAS(T* p, typename std::common_type<T>::type expected, typename std::common_type<T>::type value) {
  T old = *p;
  if (old == expected) *p = value;
  return old;
}

// -------------------------------------------------------------------------------------------------- numbers

namespace nxcore_emulator {
template <typename To, typename From>
inline To as(From from) {
  static_assert(sizeof(To) == sizeof(From), "a cast of bits keeps their number");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
}  // namespace nxcore_emulator

inline unsigned __float_as_uint(float x) { return nxcore_emulator::as<unsigned>(x); }
inline int __float_as_int(float x) { return nxcore_emulator::as<int>(x); }
inline float __uint_as_float(unsigned x) { return nxcore_emulator::as<float>(x); }
inline float __int_as_float(int x) { return nxcore_emulator::as<float>(x); }

inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frsqrt_rn(float a) { return 1.0f / sqrtf(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float a) { return a > 0 ? (a < 1 ? a : 1.0f) : 0.0f; }
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
inline int __mulhi(int a, int b) { return (long long)a * b >> 32; }
#ifdef __SIZEOF_INT128__
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned __int128)a * b >> 64;
}
#endif

// Numbers of two types compare as CUDA has them: in the wider, and unsigned if either of one width is.
template <typename A, typename B>
inline typename std::common_type<A, B>::type min(A a, B b) {
  using T = typename std::common_type<A, B>::type;
  if constexpr (std::is_floating_point<T>::value) return fmin(T(a), T(b));
  else return T(a) < T(b) ? T(a) : T(b);
}
template <typename A, typename B>
inline typename std::common_type<A, B>::type max(A a, B b) {
  using T = typename std::common_type<A, B>::type;
  if constexpr (std::is_floating_point<T>::value) return fmax(T(a), T(b));
  else return T(a) < T(b) ? T(b) : T(a);
}

// ---------------------------------------------------------------------------------------------- CUDA's vectors

#define NXCORE_VECTORS(TYPE, NAME)                                                                     \
  struct alignas(2 * sizeof(TYPE)) NAME##2 {                                                           \
    TYPE x, y;                                                                                         \
  };                                                                                                   \
  struct alignas(4 * sizeof(TYPE) > 16 ? 16 : 4 * sizeof(TYPE)) NAME##4 {                              \
    TYPE x, y, z, w;                                                                                   \
  };                                                                                                   \
  inline NAME##2 make_##NAME##2(TYPE x, TYPE y) { return {x, y}; }                                     \
  inline NAME##4 make_##NAME##4(TYPE x, TYPE y, TYPE z, TYPE w) { return {x, y, z, w}; }
NXCORE_VECTORS(float, float)
NXCORE_VECTORS(int, int)
NXCORE_VECTORS(unsigned, uint)
NXCORE_VECTORS(short, short)
NXCORE_VECTORS(unsigned short, ushort)
NXCORE_VECTORS(long long, longlong)
#undef NXCORE_VECTORS
