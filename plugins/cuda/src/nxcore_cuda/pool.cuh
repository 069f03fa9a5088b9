// Windows on images: the part of an image that a thread has, the rows that it reads, the windows on them.
#pragma once

#include "element.cuh"
#include "pool_memory.cuh"
#include "strided.cuh"

// An image tensor's strides, in elements.
struct image_strides {
  long long image;
  long long channel;
  long long row;
  long long column;
};

// How the threads share the work. Innermost first: pieces of a row, strips of rows, channels and images; or,
// where channels lie innermost in memory, pieces of the channels, of a row, strips of rows and images. Blocks
// of one blockIdx.y have so many images that 31 bits number their pieces.
struct tiling {
  dims sizes;
  unsigned count;  // of a blockIdx.y's pieces
  int images;      // in all
  int channels_inside;
  int lanes;  // neighbouring threads that share a piece: 2 to this power, up to a warp
};

// A window as nxcore.spec.window.Window has it: each attribute down and across.
struct pool_window {
  int image[2];
  int outputs[2];
  int kernel[2];
  int stride[2];
  int padding[2];
  int dilation[2];
};

namespace pool {

struct nothing {};

template <typename A, typename B>
constexpr bool same = false;
template <typename A>
constexpr bool same<A, A> = true;

constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// ------------------------------------------------------------------------------------------ what is whose

// Which piece of which image.
struct Place {
  int column;
  int row;
  int channel;
  int image;
};

// The number of a thread's piece, in its blockIdx.y.
__device__ __forceinline__ unsigned piece_of(const tiling& t) {
  return (blockIdx.x * blockDim.x + threadIdx.x) >> t.lanes;
}

// Of pieces of so many columns, rows and channels: where one begins.
__device__ __forceinline__ Place place_of(unsigned rest, const tiling& t, int columns = 1, int rows = 1,
                                          int channels = 1) {
  int digits[MAX_RANK];
#pragma unroll
  for (int k = 0; k < MAX_RANK - 1; ++k) {
    const unsigned quotient = (__umulhi(rest, t.sizes.magics[k]) + rest) >> t.sizes.shifts[k];
    digits[k] = (int)(rest - quotient * (unsigned)t.sizes.sizes[k]);
    rest = quotient;
  }
  const int image = (int)(rest + blockIdx.y * (unsigned)t.sizes.sizes[MAX_RANK - 1]);
  const bool inside = t.channels_inside;
  return {(inside ? digits[1] : digits[0]) * columns, (inside ? digits[2] : digits[1]) * rows,
          (inside ? digits[0] : digits[2]) * channels, image};
}

// Where its channel of its image begins, and where the piece does.
__device__ __forceinline__ long long offset(const Place& place, const image_strides& s) {
  return place.image * s.image + place.channel * s.channel;
}
__device__ __forceinline__ long long start(const Place& place, const image_strides& s) {
  return offset(place, s) + place.row * s.row + place.column * s.column;
}

// What a thread reads of each row: N places, LEFT of them before the MAIN ones that are its alone. VECTOR:
// rows consist of such MAIN elements and are aligned. Else a place has L channels, and lies anywhere.
template <int N, int LEFT, int MAIN, int L, bool VECTOR>
struct Line {
  static constexpr int RIGHT = N > LEFT + MAIN ? N - LEFT - MAIN : 0;
  static constexpr int BEFORE = power_of_two(LEFT);
  static constexpr int AFTER = power_of_two(RIGHT);
  static_assert(!VECTOR || (L == 1 && BEFORE <= MAIN && AFTER <= MAIN), "a neighbour has what a window reaches");

  int first;
  int width;
  long long step;

  __device__ __forceinline__ bool inside(int n) const {
    if constexpr (VECTOR) {
      return n < LEFT ? first + LEFT > 0 : n < LEFT + MAIN || first + LEFT + MAIN < width;
    } else {
      return (unsigned)(first + n) < (unsigned)width;
    }
  }

  // From where a row begins to where `read` wants to be told to.
  __device__ __forceinline__ long long start() const { return VECTOR ? first + LEFT : first * step; }

  // Where a place lies in the vector that it is loaded with.
  __device__ static constexpr int index(int n, int l) {
    if (!VECTOR) return l;
    return n < LEFT ? BEFORE - LEFT + n : n < LEFT + MAIN ? n - LEFT : n - LEFT - MAIN;
  }

  // What `source` loads of a row, and what it has to say where the row has nothing.
  template <typename Source, typename T, typename Value>
  __device__ __forceinline__ void read(bool in, const T* own, const Source& source, Value (&values)[N][L]) const {
    constexpr int PIECE = element::piece<T, VECTOR ? MAIN : L>;
    if constexpr (VECTOR) {
      if constexpr (LEFT > 0) {
        const Vector<Value, BEFORE> before = source.template load<BEFORE>(in && inside(0), own - BEFORE);
#pragma unroll
        for (int i = 0; i < LEFT; ++i) values[i][0] = before[BEFORE - LEFT + i];
      }
#pragma unroll
      for (int start = 0; start < MAIN; start += PIECE) {
        const Vector<Value, PIECE> piece = source.template load<PIECE>(in, own + start);
#pragma unroll
        for (int i = 0; i < PIECE; ++i) {
          if (LEFT + start + i < N) values[LEFT + start + i][0] = piece[i];
        }
      }
      if constexpr (RIGHT > 0) {
        const Vector<Value, AFTER> after = source.template load<AFTER>(in && inside(N - 1), own + MAIN);
#pragma unroll
        for (int i = 0; i < RIGHT; ++i) values[LEFT + MAIN + i][0] = after[i];
      }
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int start = 0; start < L; start += PIECE) {
          const Vector<Value, PIECE> piece = source.template load<PIECE>(in && inside(n), own + n * step + start);
#pragma unroll
          for (int l = 0; l < PIECE; ++l) values[n][start + l] = piece[l];
        }
      }
    }
  }
};

// Writes Q places of a row from `own` on, which is `column` of it.
template <bool VECTOR, typename T, int Q, int L>
__device__ __forceinline__ void write(bool in, T* own, int column, int width, long long step,
                                      const T (&values)[Q][L]) {
  if constexpr (VECTOR) {
    constexpr int PIECE = element::piece<T, Q>;
#pragma unroll
    for (int start = 0; start < Q; start += PIECE) {
      Vector<T, PIECE> piece;
#pragma unroll
      for (int i = 0; i < PIECE; ++i) piece[i] = values[start + i][0];
      store_if(in, own + start, piece);
    }
  } else {
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      constexpr int PIECE = element::piece<T, L>;
#pragma unroll
      for (int start = 0; start < L; start += PIECE) {
        Vector<T, PIECE> piece;
#pragma unroll
        for (int i = 0; i < PIECE; ++i) piece[i] = values[q][start + i];
        store_if(in && column + q < width, own + q * step + start, piece);
      }
    }
  }
}

// ------------------------------------------------------------------------------------------------ windows

// Where the taps of output i lie along one axis: tap t at start + t * dilation, on the image from `first` to
// before `last`.
struct Taps {
  int start;
  int first;
  int last;
  __device__ __forceinline__ Taps(const pool_window& w, int axis, int i) {
    start = i * w.stride[axis] - w.padding[axis];
    first = start < 0 ? (-start + w.dilation[axis] - 1) / w.dilation[axis] : 0;
    const int room = w.image[axis] - start;
    const int most = room > 0 ? (room + w.dilation[axis] - 1) / w.dilation[axis] : 0;
    last = most < w.kernel[axis] ? most : w.kernel[axis];
  }
};

// The windows that input i lies in along one axis, if dilation leaves it a tap there.
struct Owners {
  int at;
  int first;
  int last;
  __device__ __forceinline__ Owners(const pool_window& w, int axis, int i) {
    at = i + w.padding[axis];
    const int reach = (w.kernel[axis] - 1) * w.dilation[axis];
    first = at > reach ? (at - reach + w.stride[axis] - 1) / w.stride[axis] : 0;
    const int most = at / w.stride[axis];
    last = most < w.outputs[axis] ? most : w.outputs[axis] - 1;
  }
  // The tap of a window that lies at the input, or -1.
  __device__ __forceinline__ int tap(const pool_window& w, int axis, int window) const {
    const int distance = at - window * w.stride[axis], dilation = w.dilation[axis];
    if (dilation == 1) return distance;
    const int found = distance / dilation;
    return found * dilation == distance ? found : -1;
  }
};

// How many taps of a window that begins at `first` count: those between two bounds, the image's or its padding's.
__device__ __forceinline__ int counted(int first, int kernel, const int (&bounds)[2]) {
  return min(first + kernel, bounds[1]) - max(first, bounds[0]);
}

// The windows that reach SIZE inputs from a multiple of S on: COUNT of them, from FIRST on where 0 begins there.
template <int K, int S, int P, int SIZE>
struct Reach {
  static constexpr int FIRST = -((K - 1 - P) / S);
  static constexpr int COUNT = (SIZE - 1 + P) / S - FIRST + 1;
};

// Folds Q windows of K places, S apart, from the q-th on. At step 1, G neighbours share the places that all see,
// and what one adds to them before or behind, the next one adds to.
template <int K, int S, int q = 0, typename Rule, typename Item, int N, int Q>
__device__ __forceinline__ void windows(const Rule& rule, const Item (&in)[N], Item (&out)[Q]) {
  constexpr int G = S > 1 || Q - q < 2 ? 1 : K >= 5 && Q - q >= 4 ? 4 : 2;
  Item before[G];
  before[G - 1] = in[q * S + G - 1];
#pragma unroll
  for (int k = G; k < K; ++k) before[G - 1] = rule.combine(before[G - 1], in[q * S + k]);
#pragma unroll
  for (int g = G - 2; g >= 0; --g) before[g] = rule.combine(in[q + g], before[g + 1]);
  out[q] = before[0];
  if constexpr (G > 1) {
    Item behind = in[q + K];
    out[q + 1] = rule.combine(before[1], behind);
#pragma unroll
    for (int g = 2; g < G; ++g) {
      behind = rule.combine(behind, in[q + K + g - 1]);
      out[q + g] = rule.combine(before[g], behind);
    }
  }
  if constexpr (q + G < Q) windows<K, S, q + G>(rule, in, out);
}

// Slides Q columns of windows down ROWS rows of outputs: first folds each row, then the rows' results.
// `image` is where the image begins, `first` the number of the first row.
//
// rule.fill() stands where there is no input, rule.take(k, values, items) makes items of the k-th row's values,
// rule.combine(a, b) folds two where a comes before b, rule.line(item, k) is what a window's part on the
// k-th row counts for, and rule.finish(r, items) takes the r-th row of outputs, one after the other.
template <int K, int S, int Q, int L, int ROWS, typename Rule, typename T, typename LINE>
__device__ __forceinline__ void slide(Rule& rule, const T* image, const LINE& line, int first, int height,
                                      long long step) {
  using Item = typename Rule::Item;
  constexpr int N = (Q - 1) * S + K, LINES = (ROWS - 1) * S + K;
  constexpr int STEP = S > 1 || ROWS % 2 ? 1 : K >= 5 && ROWS % 4 == 0 ? 4 : 2;  // rows of outputs at a time
  constexpr int SPAN = (STEP - 1) * S + K;
  const Or<T> source = {rule.fill()};
  Item lines[LINES][L][Q];
  const T* own = image + first * step + line.start();
#pragma unroll
  for (int k = 0; k < LINES; ++k) {
    T values[N][L];
    line.read((unsigned)(first + k) < (unsigned)height, own, source, values);
    own += step;
    Item items[L][N];
    rule.take(k, values, items);
#pragma unroll
    for (int l = 0; l < L; ++l) {
      windows<K, S>(rule, items[l], lines[k][l]);
#pragma unroll
      for (int q = 0; q < Q; ++q) lines[k][l][q] = rule.line(lines[k][l][q], k);
    }
    const int done = k - (SPAN - 1);  // from the first of the windows that end here
    if (done < 0 || done % (STEP * S) != 0) continue;
    Item results[STEP][Q][L];
#pragma unroll
    for (int i = 0; i < L * Q; ++i) {
      const int l = i / Q, q = i % Q;
      Item column[SPAN], found[STEP];
#pragma unroll
      for (int n = 0; n < SPAN; ++n) column[n] = lines[done + n][l][q];
      windows<K, S>(rule, column, found);
#pragma unroll
      for (int n = 0; n < STEP; ++n) results[n][q][l] = found[n];
    }
#pragma unroll
    for (int i = 0; i < STEP; ++i) rule.finish(done / S + i, results[i]);
  }
}

}  // namespace pool
