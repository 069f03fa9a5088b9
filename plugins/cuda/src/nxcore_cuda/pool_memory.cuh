// Loads and stores under a condition, of 1 to 16 bytes.
//
// They don't branch, so loads need not wait for the stores before them. What is loaded is nothing that a kernel
// at work writes.
#pragma once

#include "element.cuh"

namespace pool {

template <int BYTES>
struct Word {
  static constexpr int COUNT = BYTES / 4;
  unsigned word[COUNT];
};
template <>
struct Word<2> {
  static constexpr int COUNT = 1;
  unsigned short word[1];
};
template <>
struct Word<1> {
  static constexpr int COUNT = 1;
  unsigned short word[1];  // PTX knows no register of a byte
};

template <typename T, int N>
union Piece {
  Vector<T, N> values;
  Word<sizeof(T) * N> words;
  __device__ __forceinline__ Piece() {}
};

#ifndef NXCORE_EMULATOR
__device__ __forceinline__ void load_if(bool in, const void* from, Word<1>& to) {
  asm("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u8 %0, [%1];}"
      : "+h"(to.word[0])
      : "l"(from), "r"((unsigned)in));
}
__device__ __forceinline__ void load_if(bool in, const void* from, Word<2>& to) {
  asm("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u16 %0, [%1];}"
      : "+h"(to.word[0])
      : "l"(from), "r"((unsigned)in));
}
__device__ __forceinline__ void load_if(bool in, const void* from, Word<4>& to) {
  asm("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.nc.u32 %0, [%1];}"
      : "+r"(to.word[0])
      : "l"(from), "r"((unsigned)in));
}
__device__ __forceinline__ void load_if(bool in, const void* from, Word<8>& to) {
  asm("{.reg .pred p; setp.ne.u32 p, %3, 0; @p ld.global.nc.v2.u32 {%0, %1}, [%2];}"
      : "+r"(to.word[0]), "+r"(to.word[1])
      : "l"(from), "r"((unsigned)in));
}
__device__ __forceinline__ void load_if(bool in, const void* from, Word<16>& to) {
  asm("{.reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];}"
      : "+r"(to.word[0]), "+r"(to.word[1]), "+r"(to.word[2]), "+r"(to.word[3])
      : "l"(from), "r"((unsigned)in));
}

__device__ __forceinline__ void store_if(bool in, void* to, const Word<1>& from) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; @p st.global.u8 [%0], %2;}" ::"l"(to),
               "r"((unsigned)in), "h"(from.word[0])
               : "memory");
}
__device__ __forceinline__ void store_if(bool in, void* to, const Word<2>& from) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; @p st.global.u16 [%0], %2;}" ::"l"(to),
               "r"((unsigned)in), "h"(from.word[0])
               : "memory");
}
__device__ __forceinline__ void store_if(bool in, void* to, const Word<4>& from) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; @p st.global.u32 [%0], %2;}" ::"l"(to),
               "r"((unsigned)in), "r"(from.word[0])
               : "memory");
}
__device__ __forceinline__ void store_if(bool in, void* to, const Word<8>& from) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; @p st.global.v2.u32 [%0], {%2, %3};}" ::"l"(to),
               "r"((unsigned)in), "r"(from.word[0]), "r"(from.word[1])
               : "memory");
}
__device__ __forceinline__ void store_if(bool in, void* to, const Word<16>& from) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; @p st.global.v4.u32 [%0], {%2, %3, %4, %5};}" ::"l"(to),
               "r"((unsigned)in), "r"(from.word[0]), "r"(from.word[1]), "r"(from.word[2]), "r"(from.word[3])
               : "memory");
}
#endif

// N elements, or `fill` as often.
template <int N, typename T>
__device__ __forceinline__ Vector<T, N> load_if(bool in, const T* from, T fill) {
  Piece<T, N> piece;
#pragma unroll
  for (int i = 0; i < N; ++i) piece.values[i] = fill;
#ifdef NXCORE_EMULATOR
  return in ? load<N>(from) : piece.values;
#else
  load_if(in, from, piece.words);
  return piece.values;
#endif
}

template <int N, typename T>
__device__ __forceinline__ void store_if(bool in, T* to, const Vector<T, N>& values) {
#ifdef NXCORE_EMULATOR
  if (in) store(to, values);
#else
  Piece<T, N> piece;
  piece.values = values;
  store_if(in, to, piece.words);
#endif
}

template <typename T>
__device__ __forceinline__ T fetch(const T* from) {
  return load_if<1>(true, from, T{})[0];
}

// What `Line::read` loads N neighbours with: elements or a filling;
template <typename T>
struct Or {
  T fill;
  template <int N>
  __device__ __forceinline__ Vector<T, N> load(bool in, const T* from) const {
    return load_if<N>(in, from, fill);
  }
};

// or bytes or a filling, the k-th left where a register of four has it: to compare them there saves a shift.
struct BytesInPlace {
  unsigned fill;
  template <int N>
  __device__ __forceinline__ Vector<unsigned, N> load(bool in, const unsigned char* from) const {
    Vector<unsigned, N> bytes;
#ifdef NXCORE_EMULATOR
    for (int i = 0; i < N; ++i) bytes[i] = (in ? ::load<N>(from)[i] : fill) << i % 4 * 8;
#else
    Word<N> words;
#pragma unroll
    for (int i = 0; i < Word<N>::COUNT; ++i) words.word[i] = fill * 0x01010101u;
    load_if(in, from, words);
#pragma unroll
    for (int i = 0; i < N; ++i) bytes[i] = words.word[i / 4] & 0xffu << i % 4 * 8;
#endif
    return bytes;
  }
};

}  // namespace pool
