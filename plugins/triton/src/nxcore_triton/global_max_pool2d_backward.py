"""global_max_pool2d_backward: a tile of channels by pixels, each of which looks whether it is the one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, collapse
from nxcore_triton import tile as tiles
from nxcore_triton.index import offset
from nxcore_triton.launch import Launch

Blocks = tuple[int, int]
"""Channels and pixels of one tile."""


@triton.jit
def spread(
    grad,
    offsets,
    out,
    channels,
    pixels,
    across,
    step,
    kept_sizes,
    out_strides,
    grad_strides,
    offset_strides,
    KEPT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Write PIXELS pixels, ``step`` apart, of BLOCK channels; ``across`` such tiles make a channel."""
    row, column = tl.program_id(0) // across, tl.program_id(0) % across
    k = row * BLOCK + tl.arange(0, BLOCK)
    if WIDE:
        k = row.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mine = k < channels
    share = tl.load(grad + offset(k, kept_sizes, grad_strides, KEPT), mine, other=0.0)
    place = tl.load(offsets + offset(k, kept_sizes, offset_strides, KEPT), mine, other=-1)
    pixel = column * PIXELS + tl.arange(0, PIXELS)
    at = offset(k, kept_sizes, out_strides, KEPT)[:, None] + (pixel.to(tl.int64) * step)[None, :]
    value = tl.where(place[:, None] == pixel[None, :], share[:, None], tl.zeros_like(share)[:, None])
    tl.store(out + at, value, mine[:, None] & (pixel < pixels)[None, :])


def choose(channels: int, pixels: int, *, inside: bool) -> Blocks:
    """Return the tile of one program; channels lie ``inside`` where they are neighbours in memory."""
    places = tiles.TERMS // 2
    if inside:
        block = min(tiles.power_of_two(channels), 4 * tiles.WARP)
        return block, min(tiles.power_of_two(pixels), places // block)
    span = min(tiles.power_of_two(pixels), places)
    return min(tiles.power_of_two(channels), places // span), span


def _shape(problem: Problem) -> tuple[int, int, int]:
    """Return how many channels of all images there are, the pixels of each, and the step between two."""
    out = problem.outputs
    pixels = math.prod(out.shape[-2:])
    step = 1 if out.is_contiguous() else out.shape[-3]
    return out.numel() // pixels, pixels, step


def plan(problem: Problem, tile: Blocks | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(grad, offsets, size, memory_format)``.
    """
    grad, offsets, out = problem["grad"], problem["offsets"], problem.outputs
    channels, pixels, step = _shape(problem)
    block, span = tile or choose(channels, pixels, inside=step > 1)
    sizes, strides = collapse(out.shape[:-2], *(m.strides[:-2] for m in (out, grad, offsets)))
    # Triton takes no empty tuple; with rank 0 this one isn't read.
    sizes, strides = sizes or (1,), strides if sizes else ((0,),) * 3
    across = tiles.cdiv(pixels, span)
    launch = Launch(
        spread,
        (tiles.cdiv(channels, block) * across,),
        problem.device,
        KEPT=len(sizes),
        WIDE=channels >= 2**30,
        BLOCK=block,
        PIXELS=span,
    )
    fixed = (channels, pixels, across, step, sizes, *strides)

    def call(grad: Tensor, offsets: Tensor, *_: Any) -> Tensor:
        result = out.empty()
        launch((grad, offsets, result), grad, offsets, result, *fixed)
        return result

    return call


def sweep(problem: Problem) -> Iterator[Blocks]:
    """Yield the tiles worth timing: that chosen, half and twice as many of each."""
    channels, pixels, step = _shape(problem)
    block, span = choose(channels, pixels, inside=step > 1)
    for b in (block, 2 * block, block // 2):
        for p in (span, 2 * span, span // 2):
            if b and p and b * p <= 2 * tiles.TERMS:
                yield b, p
