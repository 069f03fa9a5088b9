// Sums over the threads of a block, and over the blocks of a grid, each in one fixed order.
#pragma once

#include "element.cuh"

// Adds up by columns: thread t holds WIDTH neighbouring values of column t % columns (a power of two).
// Calls emit(place, total) once for each place in 0..columns * WIDTH - 1. Every thread calls this, with
// `shared` of blockDim.x * WIDTH floats; a barrier must lie before `shared` is used again.
template <int WIDTH, typename Emit>
__device__ __forceinline__ void sum_columns(float (&values)[WIDTH], int columns, float* shared, Emit emit) {
  const int thread = threadIdx.x, threads = blockDim.x;
  const int column = thread & (columns - 1);
  for (int step = WARP / 2; step >= columns; step /= 2) {
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) values[e] += __shfl_xor_sync(ALL_LANES, values[e], step);
  }
  const int held = columns < WARP ? WARP : columns;  // threads that hold one row of values now
  const int row = thread / held, rows = threads / held;
  if (thread % held < columns) {
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) shared[(row * columns + column) * WIDTH + e] = values[e];
  }
  __syncthreads();
#pragma unroll 1
  for (int place = thread; place < columns * WIDTH; place += threads) {
    float total = shared[place];
#pragma unroll 8
    for (int r = 1; r < rows; ++r) total += shared[r * columns * WIDTH + place];
    emit(place, total);
  }
}

// Tells every thread of a block whether it is the last of `blocks` blocks to arrive, in which case all that
// their threads wrote before is visible. `ticket` starts at 0 and is 0 again afterwards.
__device__ __forceinline__ bool last_to_arrive(unsigned* ticket, unsigned blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned before;
#ifdef NXCORE_EMULATOR
    before = atomicInc(ticket, blocks - 1);
#else
    // Release what the barrier before ordered, acquire for the barrier after; cheaper than full fences.
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(ticket), "r"(blocks - 1)
                 : "memory");
#endif
    last = before == blocks - 1;
  }
  __syncthreads();
  return last;
}
