// What sep_conv2d and its gradients are made of: bands of images in shared memory, in float32 with zeros around
// them, strips of four neighbouring outputs in a thread's registers, and tiles of products of matrices.
#pragma once
#include "depthwise_rows.cuh"
#include "reduce.cuh"

namespace separable {

using depthwise::Divisor;
using depthwise::quotient;

constexpr int STRIP = 4;  // neighbouring outputs of a thread; and a tile of a product is STRIP by STRIP

// A tensor's strides in elements.
struct Steps {
  long long image, channel, row, column;
};

// A block has a band of output rows of one image, for some channels. Pitches and planes are in floats.
struct Band {
  Steps x_step, y_step, z_step;  // the image; the output or its gradient; the image's gradient
  long long filter_channel, filter_row, filter_column, point_made, point_channel;
  int channels, made, height, width, out_height, out_width, pad_row, pad_column;
  int relu, items, bands, band;     // items: bands of all images
  int chunk, tile, lanes, splits;   // channels, outputs' channels, threads a channel, threads a tile
  int x_rows, x_pitch, u_pitch, w_pitch;
  int y_pitch, z_rows, z_pitch, wanted;
  int x_vectors, y_vectors, z_vectors, strips;  // of a row; no vectors where they don't fit
  Divisor by_x, by_x_vectors, by_y, by_y_vectors, by_strips, by_z_strips, by_inner;  // inner: of a row of ws
};

__device__ __forceinline__ int round_up(int n) { return (n + STRIP - 1) / STRIP * STRIP; }

__device__ __forceinline__ bool aligned(const void* pointer) {
  return (reinterpret_cast<unsigned long long>(pointer) & 15) == 0;
}

__device__ __forceinline__ void clear(float* to, int floats) {
  const Vector<float, STRIP> zeros = {};
  for (int i = threadIdx.x * STRIP; i < floats; i += blockDim.x * STRIP) store(to + i, zeros);
}

// Floats on their way from global to shared memory, without a register; `arrive` waits for those of this thread.
template <int FLOATS>
__device__ __forceinline__ void send(float* to, const float* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const unsigned at = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(4 * FLOATS) : "memory");
#else
  store(to, load<FLOATS>(from));
#endif
}
__device__ __forceinline__ void arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Elements to shared memory: from(i) says where one is, to(i) where it goes. Of 16 bits, some are in flight.
template <typename T, typename From, typename To>
__device__ __forceinline__ void copy(int total, From from, To to) {
  if constexpr (sizeof(T) == 4) {
    for (int i = threadIdx.x; i < total; i += blockDim.x) send<1>(to(i), from(i));
  } else {
    constexpr int FLIGHT = 8;
    for (int start = threadIdx.x; start < total; start += blockDim.x * FLIGHT) {
      T found[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; ++i)
        if (start + i * blockDim.x < total) found[i] = *from(start + i * blockDim.x);
#pragma unroll
      for (int i = 0; i < FLIGHT; ++i)
        if (start + i * blockDim.x < total) *to(start + i * blockDim.x) = widen(found[i]);
    }
  }
}

// Rows of planes to shared memory, WIDTH elements at a time. WHOLE: as they are, and each such piece begins at
// a float4 there; else what is negative may count as zero.
template <typename T, int WIDTH, bool WHOLE>
__device__ __forceinline__ void copy_rows(float* to, int plane, int pitch, const T* from, const Steps& step,
                                          int planes, int rows, unsigned pieces, Divisor by_pieces, bool relu) {
  constexpr int FLIGHT = 8 * sizeof(T) * WIDTH > 128 ? 128 / (sizeof(T) * WIDTH) : 8;
  const unsigned total = (unsigned)planes * rows * pieces;
  for (unsigned start = threadIdx.x; start < total; start += blockDim.x * FLIGHT) {
    Vector<T, WIDTH> found[FLIGHT];
    int place[FLIGHT];
#pragma unroll
    for (int i = 0; i < FLIGHT; ++i) {
      const unsigned index = start + i * blockDim.x;
      if (index < total) {
        const unsigned line = quotient(index, by_pieces), column = (index - line * pieces) * WIDTH;
        const unsigned channel = line / rows, row = line - channel * rows;
        const T* at = from + channel * step.channel + row * step.row + (WIDTH == 1 ? column * step.column : column);
        place[i] = channel * plane + row * pitch + column;
        if constexpr (WHOLE && sizeof(T) == 4) {
          send<WIDTH>(to + place[i], at);
        } else {
          found[i] = load<WIDTH>(at);
        }
      }
    }
    if constexpr (!WHOLE || sizeof(T) != 4) {
#pragma unroll
      for (int i = 0; i < FLIGHT; ++i) {
        if (start + i * blockDim.x < total) {
          float value[WIDTH];
#pragma unroll
          for (int e = 0; e < WIDTH; ++e) {
            value[e] = widen(found[i][e]);
            if (!WHOLE && relu && value[e] < 0.0f) value[e] = 0.0f;  // NaN stays
          }
          if constexpr (WHOLE && WIDTH % STRIP == 0) {
#pragma unroll
            for (int e = 0; e < WIDTH; e += STRIP)
              store(to + place[i] + e, Vector<float, STRIP>{value[e], value[e + 1], value[e + 2], value[e + 3]});
          } else {
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) to[place[i] + e] = value[e];
          }
        }
      }
    }
  }
}

template <typename T, bool WHOLE>
__device__ __forceinline__ void copy_band(float* to, int plane, int pitch, const T* from, const Steps& step,
                                          int planes, int rows, int width, int vectors, Divisor by_width,
                                          Divisor by_vectors, bool relu) {
  constexpr int WIDTH = 16 / sizeof(T);
  if (vectors && aligned(from)) {
    copy_rows<T, WIDTH, WHOLE>(to, plane, pitch, from, step, planes, rows, vectors, by_vectors, relu);
  } else {
    copy_rows<T, 1, WHOLE>(to, plane, pitch, from, step, planes, rows, width, by_width, relu);
  }
}

// The part of x that a band of outputs sees: the rows from `top` on of `count` channels, of which xs has x_rows.
template <typename T>
__device__ __forceinline__ void copy_image(float* xs, const T* image, int channel, int count, int top, const Band& b) {
  const int first = max(top, 0), rows = min(top + b.x_rows, b.height) - first;
  if (rows <= 0) return;
  copy_band<T, false>(xs + (first - top) * b.x_pitch + b.pad_column, b.x_rows * b.x_pitch, b.x_pitch,
                      image + channel * b.x_step.channel + first * b.x_step.row, b.x_step, count, rows, b.width,
                      b.x_vectors, b.by_x, b.by_x_vectors, b.relu);
}

// Filters of `count` channels, tap by tap.
template <typename T, int SIZE>
__device__ __forceinline__ void copy_filters(float* fs, const T* filters, int channel, int count, const Band& b) {
  copy<T>(
      count * SIZE * SIZE,
      [&](int i) {
        const int tap = i % (SIZE * SIZE);
        return filters + (channel + i / (SIZE * SIZE)) * b.filter_channel + tap / SIZE * b.filter_row +
               tap % SIZE * b.filter_column;
      },
      [&](int i) { return fs + i; });
}

// What a strip's window sees in a row.
template <int SIZE, int STRIDE, int DILATION>
struct Row {
  static constexpr int LENGTH = (STRIP - 1) * STRIDE + (SIZE - 1) * DILATION + 1;
  static constexpr int FLOATS = (LENGTH + STRIP - 1) / STRIP * STRIP;
  float at[FLOATS];
  __device__ __forceinline__ void read(const float* from) {
#pragma unroll
    for (int i = 0; i < FLOATS; i += STRIP) {
      const Vector<float, STRIP> four = load<STRIP>(from + i);
#pragma unroll
      for (int e = 0; e < STRIP; ++e) at[i + e] = four[e];
    }
  }
};

// Adds a strip's windows, whose first element is at `from`, times a filter.
template <int SIZE, int STRIDE, int DILATION>
__device__ __forceinline__ void convolve(const float* from, int pitch, const float (&weight)[SIZE * SIZE],
                                         float (&sum)[STRIP]) {
#pragma unroll
  for (int a = 0; a < SIZE; ++a) {
    Row<SIZE, STRIDE, DILATION> row;
    row.read(from + a * DILATION * pitch);
#pragma unroll
    for (int t = 0; t < SIZE; ++t)
#pragma unroll
      for (int j = 0; j < STRIP; ++j) sum[j] = fmaf(weight[a * SIZE + t], row.at[j * STRIDE + t * DILATION], sum[j]);
  }
}

// The depthwise convolution of the band in xs: us[channel][pixel].
template <int SIZE, int STRIDE, int DILATION>
__device__ __forceinline__ void depthwise_band(float* us, const float* xs, const float* fs, int count, int rows,
                                               const Band& b) {
  const int group = threadIdx.x / b.lanes, lane = threadIdx.x % b.lanes;
  for (int channel = group; channel < count; channel += blockDim.x / b.lanes) {
    float weight[SIZE * SIZE];
#pragma unroll
    for (int t = 0; t < SIZE * SIZE; ++t) weight[t] = fs[channel * SIZE * SIZE + t];
    const float* plane = xs + channel * b.x_rows * b.x_pitch;
    for (int strip = lane; strip < rows * b.strips; strip += b.lanes) {
      const int row = quotient(strip, b.by_strips), column = (strip - row * b.strips) * STRIP;
      float sum[STRIP] = {};
      convolve<SIZE, STRIDE, DILATION>(plane + row * STRIDE * b.x_pitch + column * STRIDE, b.x_pitch, weight, sum);
      float* to = us + channel * b.u_pitch + row * b.out_width + column;
      if (b.out_width % STRIP == 0) {
        store(to, Vector<float, STRIP>{sum[0], sum[1], sum[2], sum[3]});
      } else {
#pragma unroll
        for (int j = 0; j < STRIP; ++j)
          if (column + j < b.out_width) to[j] = sum[j];
      }
    }
  }
}

// A tile of a product: sum over k of left[k][0..3] times right[k][0..3].
__device__ __forceinline__ void multiply(const float* left, int left_pitch, const float* right, int right_pitch,
                                         int depth, float (&sum)[STRIP][STRIP]) {
#pragma unroll 4
  for (int k = 0; k < depth; ++k) {
    const Vector<float, STRIP> l = load<STRIP>(left + k * left_pitch), r = load<STRIP>(right + k * right_pitch);
#pragma unroll
    for (int i = 0; i < STRIP; ++i)
#pragma unroll
      for (int j = 0; j < STRIP; ++j) sum[i][j] = fmaf(l[i], r[j], sum[i][j]);
  }
}

// Adds up each of COUNT values over LANES neighbouring threads: emit(value's number, sum) is called in one of them.
// ALL: the next power of two, and LANES at least.
template <int COUNT, int LANES, int ALL, typename Emit>
__device__ __forceinline__ void add_over(const float (&given)[COUNT], Emit emit) {
  constexpr int OWN = ALL / LANES;
  const int lane = threadIdx.x % LANES;
  float value[ALL];
#pragma unroll
  for (int i = 0; i < ALL; ++i) value[i] = i < COUNT ? given[i < COUNT ? i : 0] : 0.0f;
  int held = ALL;
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) {
    held /= 2;
    const bool upper = lane & step;
#pragma unroll
    for (int i = 0; i < ALL / 2; ++i) {
      if (i < held) {
        const float other = upper ? value[i] : value[i + held];
        value[i] = (upper ? value[i + held] : value[i]) + __shfl_xor_sync(ALL_LANES, other, step);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < OWN; ++i)
    if (lane * OWN + i < COUNT) emit(lane * OWN + i, value[i]);
}

template <int COUNT, int ALL = depthwise::ceil_to_power(COUNT < WARP ? WARP : COUNT), typename Emit>
__device__ __forceinline__ void add_over(const float (&given)[COUNT], int lanes, Emit emit) {
  switch (lanes) {
    case 32: return add_over<COUNT, 32, ALL>(given, emit);
    case 16: return add_over<COUNT, 16, ALL>(given, emit);
    case 8: return add_over<COUNT, 8, ALL>(given, emit);
    case 4: return add_over<COUNT, 4, ALL>(given, emit);
    case 2: return add_over<COUNT, 2, ALL>(given, emit);
    default: return add_over<COUNT, 1, ALL>(given, emit);
  }
}

}  // namespace separable
