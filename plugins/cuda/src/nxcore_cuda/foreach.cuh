// Groups: the blocks of one launch belong to several items of one kind, whose pointers and shapes are in the
// arguments of the kernel.
//
// Blocks are numbered slice by slice, and a slice has some blocks of every item: items that read the same part of
// one tensor are neighbours, and the cache serves all but the first.
#pragma once

#include "separable.cuh"

namespace foreach {

constexpr int ROOM = 32, KINDS = 6;  // items and bands of a launch: kernels take 4 KiB of arguments on every driver

// Bands of the items, and which blocks each item has. Items whose shapes are the same share one.
struct Bands {
  separable::Band of[KINDS];
  int windows[KINDS];  // 100 * size + 10 * stride + dilation
  int which[ROOM];     // the band of an item
  int firsts[ROOM + 1];  // an item's first block in a slice; then how many blocks a slice has
  int count;
};

struct Place {
  int item;
  unsigned block, blocks;  // of the item's
};

// Which item this block has, and which of its blocks this is.
__device__ __forceinline__ Place place(const Bands& b) {
  const unsigned all = b.firsts[b.count], slice = blockIdx.x / all, rest = blockIdx.x - slice * all;
  int item = 0, end = b.count;  // the last item whose first block isn't a later one
  while (end - item > 1) {
    const int middle = (item + end) / 2;
    if (b.firsts[middle] <= (int)rest) {
      item = middle;
    } else {
      end = middle;
    }
  }
  const unsigned first = b.firsts[item], own = b.firsts[item + 1] - first;
  return {item, slice * own + rest - first, own * (gridDim.x / all)};
}

}  // namespace foreach
