"""global_max_pool2d_backward: neighbours in memory are written together, be they pixels or channels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from nxcore.plugin import FLOATS, Problem
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.instance import Instance
from nxcore_cuda.launch import Launch
from nxcore_cuda.layout import DIMS, STRIDES, VECTOR, dims, steps

THREADS = 256
ALONG = 32  # threads along channels: a warp writes what lies side by side
RESIDENT = 2048 * 132  # threads that a large GPU holds
WORTHWHILE = 8  # pixels that pay for reading what a channel won
MOST = 65535  # blocks of a grid along y


@dataclass(frozen=True)
class Tile:
    """How much is written at once.

    Attributes
    ----------
    vector : int
        Elements of a store.
    parts : int
        Blocks that share a channel's pixels, at most; 0 where pixels lie closest.
    """

    vector: int
    parts: int = 0


def choose(problem: Problem) -> Tile:
    """Return the tile for a problem."""
    out = problem.outputs
    widest = VECTOR // out.element_size()
    if out.is_contiguous():
        return Tile(widest)
    channels, pixels = out.shape[-3], math.prod(out.shape[-2:])
    vector = next(width for width in (widest, widest // 2, 1) if channels % width == 0)
    columns = out.numel() // pixels // vector
    lanes = THREADS // ALONG
    parts = min(-(-RESIDENT // (columns * lanes)), pixels // (lanes * WORTHWHILE), MOST)
    return Tile(vector, max(parts, 1))


def _instance(name: str, tile: Tile) -> Instance:
    return Instance(
        "global_max_pixels" if tile.parts else "global_max_planes",
        (name, tile.vector),
        "global_max_pool2d_backward",
        "global_max_pool2d_backward_args",
        threads=THREADS,
    )


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(grad, offsets, size, memory_format)``.
    """
    out, chosen = problem.outputs, tile or choose(problem)
    channels, pixels = out.shape[-3], math.prod(out.shape[-2:])
    images = out.numel() // (channels * pixels)
    grads, taps = ((0, *problem[name].strides)[-4:-2] for name in ("grad", "offsets"))
    if chosen.parts:
        width, lanes = chosen.vector, THREADS // ALONG
        count, sizes = images * channels // width, (images, channels // width)
        blocks, span = -(-count // ALONG), -(-pixels // chosen.parts)
        grid = (blocks, -(-pixels // span))
        strides = [(grads[0], grads[1] * width), (taps[0], taps[1] * width), (channels * pixels, width)]
    else:
        count, sizes, lanes, span = out.numel(), (images, channels, pixels), 1, pixels
        grid = (-(-count // (THREADS * chosen.vector)), 1)
        strides = [(*grads, 0), (*taps, 0), (0, 0, 1)]
    launch = Launch(
        _instance(TYPES[out.dtype], chosen),
        out.device,
        grid,
        THREADS,
        pointers=3,
        layout=f"6q{DIMS}{3 * STRIDES}i",
        values=(
            *(count, pixels, channels, grads[1], taps[1], span),
            *(*dims(sizes), *(step for of in strides for step in steps(of)), lanes),
        ),
    )

    def call(grad: Tensor, offsets: Tensor, *_: Any) -> Tensor:
        result = out.empty()
        launch(grad, offsets, result)
        return result

    return call


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    first = choose(problem)
    yield first
    if first.parts:
        pixels = math.prod(problem.outputs.shape[-2:])
        for parts in (first.parts * 2, first.parts // 2, first.parts * 4):
            if 1 <= parts <= min(pixels, MOST):
                yield replace(first, parts=parts)
    if first.vector > 1:
        yield replace(first, vector=first.vector // 2)


def instances() -> Iterator[Instance]:
    """Yield what ordinary calls want."""
    for dtype in FLOATS:
        yield _instance(TYPES[dtype], Tile(VECTOR // dtype.itemsize))
        for vector in {VECTOR // dtype.itemsize, 1}:
            yield _instance(TYPES[dtype], Tile(vector, 1))
