// Rows of an image as the depthwise kernels read them: words in flight, widened when their turn comes.
#pragma once
#include "element.cuh"

namespace depthwise {

// n / divisor for n below 2^31, as one multiplication: the multiplier and the shift come from the host.
struct Divisor {
  unsigned multiplier, shift;
};
__device__ __forceinline__ unsigned quotient(unsigned n, Divisor d) {
  return (__umulhi(n, d.multiplier) + n) >> d.shift;
}

constexpr int ceil_to_power(int n) { return n <= 1 ? 1 : 2 * ceil_to_power((n + 1) / 2); }

// N elements as the words that hold them. Elements stay packed while a load is in flight: taking a word
// apart waits for it.
template <typename T, int N>
struct Packed {
  static constexpr int BYTES = N * sizeof(T), WORDS = BYTES < 4 ? 1 : BYTES / 4;
  unsigned word[WORDS];

  __device__ __forceinline__ float operator[](int i) const {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(word[i]);
    } else {
      unsigned both = word[i / 2];
      return widen(T{(unsigned short)(i % 2 ? both >> 16 : both & 0xffff)});
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < WORDS; ++i) word[i] = 0;
  }

  // What lies outside reads as zeros.
  __device__ __forceinline__ void load(const T* from, bool inside) {
    clear();
    if (!inside) return;
    if constexpr (BYTES == 2) {
      word[0] = *reinterpret_cast<const unsigned short*>(from);
    } else {
      Vector<unsigned, WORDS> loaded = ::load<WORDS>(reinterpret_cast<const unsigned*>(from));
#pragma unroll
      for (int i = 0; i < WORDS; ++i) word[i] = loaded[i];
    }
  }
};

// Two elements in a word.
template <typename T>
__device__ __forceinline__ unsigned pack(float low, float high) {
  return (unsigned)narrow<T>(low).bits | (unsigned)narrow<T>(high).bits << 16;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <>
__device__ __forceinline__ unsigned pack<float16>(float low, float high) {
  unsigned word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
template <>
__device__ __forceinline__ unsigned pack<bfloat16>(float low, float high) {
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
#endif

// Stores N numbers as N elements at once. The compiler takes a plain store of a vector apart where other
// memory accesses surround it.
template <typename T, int N>
__device__ __forceinline__ void write(T* to, const float* from) {
  if constexpr (N * sizeof(T) == 2) {
    *to = narrow<T>(from[0]);
  } else {
    constexpr int WORDS = Packed<T, N>::WORDS;
    Vector<unsigned, WORDS> words;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
      if constexpr (sizeof(T) == 4) words[i] = __float_as_uint(from[i]);
      else words[i] = pack<T>(from[2 * i], from[2 * i + 1]);
    }
    unsigned* at = reinterpret_cast<unsigned*>(to);
#ifndef NXCORE_EMULATOR
    if constexpr (WORDS == 4) {
      asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(words[0]), "r"(words[1]),
                   "r"(words[2]), "r"(words[3]));
    } else if constexpr (WORDS == 2) {
      asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(words[0]), "r"(words[1]));
    } else
#endif
      store(at, words);
  }
}

// COUNT elements beside a run that starts or ends at a multiple of LOAD: as few loads as they take.
template <typename T, int COUNT, int LOAD>
struct Side {
  static constexpr int EACH = COUNT >= LOAD ? LOAD : ceil_to_power(COUNT);
  static constexpr int CHUNKS = COUNT > 0 ? (COUNT + EACH - 1) / EACH : 0;
  Packed<T, EACH> chunk[CHUNKS > 0 ? CHUNKS : 1];
};

// The part of a row that COLUMNS neighbouring outputs see. `first` is the input column of their first output
// without padding. With LOAD above 1 the padding is half the filter's reach on each side, and all runs of
// LOAD elements lie on the row or beside it as a whole.
template <typename T, int K, int S, int D, int COLUMNS, int LOAD>
struct Row {
  static constexpr int REACH = D * (K - 1), PAD = REACH / 2, WIDTH = S * (COLUMNS - 1) + REACH + 1;
  static constexpr int BODY = S * COLUMNS / LOAD;
  static_assert(S * COLUMNS % LOAD == 0, "a row's own part is whole vectors");
  using Left = Side<T, PAD, LOAD>;
  using Right = Side<T, PAD + 1 - S, LOAD>;
  Left left;
  Packed<T, LOAD> body[BODY];
  Right right;

  __device__ __forceinline__ void load(const T* from, int first, int width, int, bool inside) {
#pragma unroll
    for (int i = 0; i < Left::CHUNKS; ++i) {
      int at = (i - Left::CHUNKS) * Left::EACH;
      left.chunk[i].load(from + at, inside && first + at >= 0);
    }
#pragma unroll
    for (int i = 0; i < BODY; ++i) body[i].load(from + i * LOAD, inside && first + i * LOAD < width);
#pragma unroll
    for (int i = 0; i < Right::CHUNKS; ++i) {
      int at = S * COLUMNS + i * Right::EACH;
      right.chunk[i].load(from + at, inside && first + at < width);
    }
  }

  // Element i of the window.
  __device__ __forceinline__ float operator[](int i) const {
    int at = i - PAD;
    if (at < 0) {
      at += Left::CHUNKS * Left::EACH;
      return left.chunk[at / Left::EACH][at % Left::EACH];
    }
    if (at < S * COLUMNS) return body[at / LOAD][at % LOAD];
    at -= S * COLUMNS;
    return right.chunk[at / Right::EACH][at % Right::EACH];
  }
};

// Element by element, and with any padding.
template <typename T, int K, int S, int D, int COLUMNS>
struct Row<T, K, S, D, COLUMNS, 1> {
  static constexpr int WIDTH = S * (COLUMNS - 1) + D * (K - 1) + 1;
  Packed<T, 1> element[WIDTH];

  __device__ __forceinline__ void load(const T* from, int first, int width, int pad, bool inside) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
      element[i].load(from - pad + i, inside && (unsigned)(first - pad + i) < (unsigned)width);
  }

  __device__ __forceinline__ float operator[](int i) const { return element[i][0]; }
};

// COLUMNS elements of a row that the thread has for itself.
template <typename T, int COLUMNS, int LOAD>
struct Own {
  Packed<T, LOAD> body[COLUMNS / LOAD];

  __device__ __forceinline__ void load(const T* from, int first, int width, bool inside) {
#pragma unroll
    for (int i = 0; i < COLUMNS / LOAD; ++i)
      body[i].load(from + i * LOAD, inside && first + i * LOAD < width);
  }

  __device__ __forceinline__ float operator[](int i) const { return body[i / LOAD][i % LOAD]; }
};

}  // namespace depthwise
