// pointwise_conv2d_backward: the image's gradient is such a product too; the filters' are sums over all pixels.
//
// A block of the sums has OUTS channels out and INS channels in, and chunks of 64 pixels, of both the output's
// gradient and the image in shared memory. A thread has every (OUTS / OWN_OUTS)-th channel out, every
// (INS / OWN_INS)-th channel in, and a slice of a chunk's quads. Blocks leave shares, which a second launch adds up.
#pragma once

#include "points.cuh"

template <typename T, int STRIDE, int PIXELS, int MADE, int SLICES>
__device__ __forceinline__ void pointwise_conv2d_image(const points_args<T>& a) {
  points_product<T, true, STRIDE, PIXELS, MADE, SLICES>(a);
}

struct pointwise_conv2d_filters_args {
  const void* grad;
  const void* x;
  float* shares;  // [part][channel out, then shifted ones'][channel in]
  points_steps grad_step, x_step;
  int channels, made, made_shifted;
  int out_width, of_image, pixels;  // pixels: of an image's outputs, and of all
  int stride, relu;
  int tiles, tiles_of_weight, across;  // tiles of OUTS channels out: all, and those of `weight`; tiles of channels in
  int chunks, parts;                   // blocks that share the chunks of a tile
};

// STRIDE: 1 or 2 where quads are whole, 0 for any other layout and stride.
template <typename T, int STRIDE, int OUTS, int INS, int OWN_OUTS, int OWN_INS>
__device__ __forceinline__ void pointwise_conv2d_filters(const pointwise_conv2d_filters_args& a) {
  using namespace points;
  constexpr int QUAD = 4, QUADS = 16, CHUNK = QUAD * QUADS, PITCH = CHUNK + 4;  // rows begin in other banks
  constexpr int DOWN = OUTS / OWN_OUTS, ACROSS = INS / OWN_INS, UNITS = DOWN * ACROSS, WORKERS = THREADS / UNITS;
  constexpr int LINES = THREADS / QUADS, ROUNDS = (OUTS + INS + LINES - 1) / LINES;
  static_assert((WORKERS & (WORKERS - 1)) == 0 && WORKERS <= QUADS, "halves of the slices are added up");
  static_assert(OUTS % LINES == 0 && INS % LINES == 0, "a round loads channels of one kind");

  float* const grads = dynamic_shared<float>();
  float* const image = grads + OUTS * PITCH;
  int index = blockIdx.x;
  const int part = index % a.parts;
  index /= a.parts;
  const int left = index % a.across * INS, tile = index / a.across;
  const int shift = tile >= a.tiles_of_weight, made = shift ? a.made_shifted : a.made;
  const int top = (tile - shift * a.tiles_of_weight) * OUTS;
  const int unit = threadIdx.x % UNITS, worker = threadIdx.x / UNITS, c = unit % ACROSS, o = unit / ACROSS;
  const int quad = threadIdx.x % QUADS, line = threadIdx.x / QUADS;

  // A thread loads one quad of every LINES-th channel. The next chunk is on its way while one is multiplied.
  Vector<float, QUAD> some[ROUNDS];
  const auto fetch = [&](int chunk) {
    const int begin = chunk * CHUNK + quad * QUAD;
    if constexpr (STRIDE > 0) {
      const bool inside = begin < a.pixels;
      const int known = inside ? begin : 0, number = known / a.of_image, pixel = known % a.of_image;
      const int row = pixel / a.out_width, column = pixel % a.out_width;
      const T* const g = static_cast<const T*>(a.grad) + number * a.grad_step.image + row * a.grad_step.row + column +
                             (long long)(top + shift * a.made) * a.grad_step.channel;
      const T* const x = static_cast<const T*>(a.x) + number * a.x_step.image +
                         (row * STRIDE + (STRIDE == 2 ? shift : 0)) * a.x_step.row + column * STRIDE +
                         left * a.x_step.channel;
#pragma unroll
      for (int r = 0; r < ROUNDS; ++r) {
        const int own = r * LINES + line, channel = own - OUTS;
        float found[QUAD] = {};
        if (r * LINES < OUTS) {
          if (inside && top + own < made) load_apart<QUAD, 1>(g + own * a.grad_step.channel, 0, found);
        } else if (inside && left + channel < a.channels) {
          load_apart<QUAD, STRIDE>(x + channel * a.x_step.channel, shift, found);
        }
#pragma unroll
        for (int p = 0; p < QUAD; ++p) some[r][p] = found[p];
      }
    } else {
#pragma unroll
      for (int p = 0; p < QUAD; ++p) {
        const bool inside = begin + p < a.pixels;
        const int known = inside ? begin + p : 0, number = known / a.of_image, pixel = known % a.of_image;
        const int row = pixel / a.out_width, column = pixel % a.out_width;
        const T* const g = static_cast<const T*>(a.grad) + number * a.grad_step.image + row * a.grad_step.row +
                               column * a.grad_step.column + (long long)(top + shift * a.made) * a.grad_step.channel;
        const T* const x = static_cast<const T*>(a.x) + number * a.x_step.image + (row * a.stride + shift) * a.x_step.row +
                               (column * a.stride + shift) * a.x_step.column + left * a.x_step.channel;
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
          const int own = r * LINES + line, channel = own - OUTS;
          float found = 0.0f;
          if (r * LINES < OUTS) {
            if (inside && top + own < made) found = widen(g[own * a.grad_step.channel]);
          } else if (inside && left + channel < a.channels) {
            found = widen(x[channel * a.x_step.channel]);
          }
          some[r][p] = found;
        }
      }
    }
  };

  float sums[OWN_OUTS][OWN_INS] = {};
  fetch(part);
  for (int chunk = part; chunk < a.chunks; chunk += a.parts) {
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      if (r * LINES >= OUTS && a.relu) {
#pragma unroll
        for (int p = 0; p < QUAD; ++p) some[r][p] = positive(some[r][p]);
      }
      store(grads + (r * LINES + line) * PITCH + quad * QUAD, some[r]);
    }
    __syncthreads();
    if (chunk + a.parts < a.chunks) fetch(chunk + a.parts);
    for (int q = worker; q < QUADS; q += WORKERS) {
      Vector<float, QUAD> seen[OWN_INS];
#pragma unroll
      for (int j = 0; j < OWN_INS; ++j) seen[j] = load<QUAD>(image + (c + j * ACROSS) * PITCH + q * QUAD);
#pragma unroll
      for (int i = 0; i < OWN_OUTS; ++i) {
        const Vector<float, QUAD> g = load<QUAD>(grads + (o + i * DOWN) * PITCH + q * QUAD);
#pragma unroll
        for (int p = 0; p < QUAD; ++p) {
#pragma unroll
          for (int j = 0; j < OWN_INS; ++j) sums[i][j] = __fmaf_rn(g[p], seen[j][p], sums[i][j]);
        }
      }
    }
  }

  // The upper half of the slices hands its sums to the lower one, until one slice is left.
  float* const found = dynamic_shared<float>();
#pragma unroll
  for (int half = WORKERS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (worker >= half && worker < 2 * half) {
#pragma unroll
      for (int i = 0; i < OWN_OUTS; ++i) {
#pragma unroll
        for (int j = 0; j < OWN_INS; ++j) found[(i * OWN_INS + j) * half * UNITS + threadIdx.x - half * UNITS] = sums[i][j];
      }
    }
    __syncthreads();
    if (worker < half) {
#pragma unroll
      for (int i = 0; i < OWN_OUTS; ++i) {
#pragma unroll
        for (int j = 0; j < OWN_INS; ++j) sums[i][j] += found[(i * OWN_INS + j) * half * UNITS + threadIdx.x];
      }
    }
  }
  if (worker) return;
  float* const to = a.shares + ((long long)part * (a.made + a.made_shifted) + shift * a.made) * a.channels;
#pragma unroll
  for (int i = 0; i < OWN_OUTS; ++i) {
#pragma unroll
    for (int j = 0; j < OWN_INS; ++j) {
      const int out = top + o + i * DOWN, in = left + c + j * ACROSS;
      if (out < made && in < a.channels) to[(long long)out * a.channels + in] = sums[i][j];
    }
  }
}

struct pointwise_conv2d_totals_args {
  const float* shares;
  void* weight_grad;   // or null
  void* shifted_grad;  // or null
  int rows, columns, split;  // columns from `split` on are those of shifted filters
};

// Adds up what blocks left: 16 threads a column, each every 16th row, then their sums in order, as column_sums does.
template <typename T>
__device__ __forceinline__ void pointwise_conv2d_totals(const pointwise_conv2d_totals_args& a) {
  constexpr int COLUMNS = 16, PARTS = points::THREADS / COLUMNS;
  __shared__ float found[PARTS][COLUMNS];
  const int lane = threadIdx.x % COLUMNS, part = threadIdx.x / COLUMNS, column = blockIdx.x * COLUMNS + lane;
  float total = 0.0f;
  if (column < a.columns) {
#pragma unroll 8
    for (int row = part; row < a.rows; row += PARTS) total += a.shares[(long long)row * a.columns + column];
  }
  found[part][lane] = total;
  __syncthreads();
  T* const to = static_cast<T*>(column < a.split ? a.weight_grad : a.shifted_grad);
  if (part || column >= a.columns || to == nullptr) return;
#pragma unroll
  for (int p = 1; p < PARTS; ++p) total += found[p][lane];
  to[column < a.split ? column : column - a.split] = narrow<T>(total);
}
