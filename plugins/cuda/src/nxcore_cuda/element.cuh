// Elements and vectors of them, warps and blocks: what every kernel here is written with.
#pragma once

// ---------------------------------------------------------------------------------------------- elements

struct float16 {
  unsigned short bits;
};
struct bfloat16 {
  unsigned short bits;
};

__device__ __forceinline__ bool is_nan(float x) { return x != x; }

__device__ __forceinline__ float widen(float x) { return x; }

__device__ __forceinline__ float widen(bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }

#ifdef NXCORE_EMULATOR
__device__ inline float widen(float16 x) { return nxcore_emulator::from_half(x.bits); }
#else
__device__ __forceinline__ float widen(float16 x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}
#endif

// Rounds to nearest even; NaN stays NaN.
template <typename T>
__device__ __forceinline__ T narrow(float x);

template <>
__device__ __forceinline__ float narrow<float>(float x) {
  return x;
}

template <>
__device__ __forceinline__ float16 narrow<float16>(float x) {
  float16 out;
#ifdef NXCORE_EMULATOR
  out.bits = nxcore_emulator::to_half(x);
#else
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
#endif
  return out;
}

template <>
__device__ __forceinline__ bfloat16 narrow<bfloat16>(float x) {
  bfloat16 out;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
#else
  unsigned bits = __float_as_uint(x);
  out.bits = is_nan(x) ? (unsigned short)0x7fff : (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
  return out;
}

// ----------------------------------------------------------------------------------------------- vectors

// N elements that are loaded and stored at once: N a power of two, aligned to their size, up to 16 bytes.
template <typename T, int N>
struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) Vector {
  static_assert(N > 0 && (N & (N - 1)) == 0, "a vector has a power of two elements");
  T v[N];
  __device__ __forceinline__ T& operator[](int i) { return v[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return v[i]; }
};

namespace element {

#ifndef NXCORE_EMULATOR
__device__ __forceinline__ void load_streaming(const void* from, unsigned short (&to)[1]) {
  asm volatile("ld.global.cs.u16 %0, [%1];" : "=h"(to[0]) : "l"(from) : "memory");
}
__device__ __forceinline__ void load_streaming(const void* from, unsigned (&to)[1]) {
  asm volatile("ld.global.cs.u32 %0, [%1];" : "=r"(to[0]) : "l"(from) : "memory");
}
__device__ __forceinline__ void load_streaming(const void* from, unsigned (&to)[2]) {
  asm volatile("ld.global.cs.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from) : "memory");
}
__device__ __forceinline__ void load_streaming(const void* from, unsigned (&to)[4]) {
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "l"(from)
               : "memory");
}

__device__ __forceinline__ void store_streaming(void* to, const unsigned short (&from)[1]) {
  asm volatile("st.global.cs.u16 [%0], %1;" ::"l"(to), "h"(from[0]) : "memory");
}
__device__ __forceinline__ void store_streaming(void* to, const unsigned (&from)[1]) {
  asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(to), "r"(from[0]) : "memory");
}
__device__ __forceinline__ void store_streaming(void* to, const unsigned (&from)[2]) {
  asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(from[0]), "r"(from[1]) : "memory");
}
__device__ __forceinline__ void store_streaming(void* to, const unsigned (&from)[4]) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(from[0]), "r"(from[1]),
               "r"(from[2]), "r"(from[3])
               : "memory");
}
#endif

// The words that PTX moves a piece of so many bytes in.
template <int BYTES>
struct Words {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "a piece has 2, 4, 8 or 16 bytes");
  unsigned word[BYTES / 4];
};
template <>
struct Words<2> {
  unsigned short word[1];
};

template <typename T, int N>
union Piece {
  Vector<T, N> vector;
  Words<sizeof(T) * N> words;
  __device__ __forceinline__ Piece() {}
};

template <typename T, int N>
__device__ __forceinline__ void check_alignment(const T* pointer) {
#ifdef NXCORE_EMULATOR
  nxcore_emulator::aligned(pointer, alignof(Vector<T, N>));
#else
  (void)pointer;
#endif
}

// Elements of a 16-byte piece, or N where that is fewer.
template <typename T, int N>
constexpr int piece = sizeof(T) * N > 16 ? 16 / sizeof(T) : N;

}  // namespace element

// Loads and stores of N elements at once. The streaming forms are for memory that nobody reads soon again.
template <int N, typename T>
__device__ __forceinline__ Vector<T, N> load(const T* from) {
  element::check_alignment<T, N>(from);
  return *reinterpret_cast<const Vector<T, N>*>(from);
}

template <int N, typename T>
__device__ __forceinline__ void store(T* to, const Vector<T, N>& values) {
  element::check_alignment<T, N>(to);
  *reinterpret_cast<Vector<T, N>*>(to) = values;
}

template <int N, typename T>
__device__ __forceinline__ Vector<T, N> load_streaming(const T* from) {
#ifdef NXCORE_EMULATOR
  return load<N>(from);
#else
  constexpr int P = element::piece<T, N>;
  Vector<T, N> values;
#pragma unroll
  for (int start = 0; start < N; start += P) {
    element::Piece<T, P> piece;
    element::load_streaming(from + start, piece.words.word);
#pragma unroll
    for (int i = 0; i < P; ++i) values.v[start + i] = piece.vector.v[i];
  }
  return values;
#endif
}

template <int N, typename T>
__device__ __forceinline__ void store_streaming(T* to, const Vector<T, N>& values) {
#ifdef NXCORE_EMULATOR
  store<N>(to, values);
#else
  constexpr int P = element::piece<T, N>;
#pragma unroll
  for (int start = 0; start < N; start += P) {
    element::Piece<T, P> piece;
#pragma unroll
    for (int i = 0; i < P; ++i) piece.vector.v[i] = values.v[start + i];
    element::store_streaming(to + start, piece.words.word);
  }
#endif
}

// --------------------------------------------------------------------------------------- warps and blocks

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// Shared memory whose size the launch gives (its `shared`); 16-byte aligned. One for the whole block.
template <typename T>
__device__ __forceinline__ T* dynamic_shared() {
#ifdef NXCORE_EMULATOR
  return static_cast<T*>(nxcore_emulator::dynamic_shared());
#else
  extern __shared__ __align__(16) unsigned char nxcore_dynamic_shared[];
  return reinterpret_cast<T*>(nxcore_dynamic_shared);
#endif
}

// The sum over a group of neighbouring lanes (WIDTH a power of two), in every lane, in one fixed order.
template <int WIDTH = WARP>
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = WIDTH / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
  return x;
}

// The sum over a block of THREADS threads (x alone, a multiple of 32), in every thread, in one fixed order.
// Every thread calls it. It ends with a barrier, so it may be called again.
template <int THREADS>
__device__ __forceinline__ float block_sum(float x) {
  static_assert(THREADS % WARP == 0 && THREADS <= 1024, "a block has up to 32 whole warps");
  constexpr int WARPS = THREADS / WARP;
  x = warp_sum(x);
  if constexpr (WARPS > 1) {
    __shared__ float of_warp[WARPS];
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = x;
    __syncthreads();
    x = of_warp[0];
#pragma unroll
    for (int i = 1; i < WARPS; ++i) x += of_warp[i];
    __syncthreads();
  }
  return x;
}
