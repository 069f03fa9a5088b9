"""global_max_pool2d: a tile of channels by pixels, each place of which keeps the best that it meets.

Each place goes through its pixels in order. At the end the best of a channel's places are compared: the first
of equals counts, and the last NaN.
"""

# mypy: ignore-errors

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, Reduction, TensorMeta, collapse
from nxcore_triton import tile as tiles
from nxcore_triton.index import offset
from nxcore_triton.launch import Launch
from nxcore_triton.rounding import narrow, widen
from nxcore_triton.sum import kept_inside

Blocks = tuple[int, int]
"""Channels and pixels of one tile."""

NONE = tl.constexpr(2**31 - 1)


@triton.jit
def largest(
    x,
    out,
    offsets,
    outputs,
    terms,
    kept_sizes,
    kept_strides,
    out_strides,
    sizes,
    strides,
    KEPT: tl.constexpr,
    REDUCED: tl.constexpr,
    PLACES: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    TERMS: tl.constexpr,
):
    """Write BLOCK maxima and, if PLACES, their pixels' numbers."""
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if WIDE:
        k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x_at = offset(k, kept_sizes, kept_strides, KEPT)
    best = tl.full([BLOCK, TERMS], float("-inf"), tl.float32)
    if PLACES:  # what nothing has replaced yet is the place's first pixel
        at = tl.where(tl.arange(0, TERMS) < terms, tl.arange(0, TERMS), NONE)[None, :] + tl.zeros_like(
            best
        ).to(tl.int32)
    for start in range(0, terms, TERMS):
        term = start + tl.arange(0, TERMS)
        mask = (k < outputs)[:, None] & (term < terms)[None, :]
        value = widen(
            tl.load(
                x + x_at[:, None] + offset(term, sizes, strides, REDUCED)[None, :], mask, other=float("-inf")
            )
        )
        if PLACES:
            replaces = (value > best) | (value != value)
            best = tl.where(replaces, value, best)
            at = tl.where(replaces, term[None, :], at)
        else:
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    odd = best != best
    top = tl.max(tl.where(odd, float("-inf"), best), 1)
    any_odd = tl.max(odd.to(tl.int32), 1) > 0
    out_at = offset(k, kept_sizes, out_strides, KEPT)
    tl.store(out + out_at, narrow(tl.where(any_odd, float("nan"), top), out.dtype.element_ty), k < outputs)
    if PLACES:
        first = tl.min(tl.where(best == top[:, None], at, NONE), 1)
        last = tl.max(tl.where(odd, at, -1), 1)
        tl.store(offsets + out_at, tl.where(any_odd, last, first), k < outputs)


def choose(reduction: Reduction) -> Blocks:
    """Return the tile of one program: that of a sum, smaller by half, and no two programs for one channel."""
    outputs, terms = reduction.outputs, reduction.terms
    inside = kept_inside(reduction)
    block, span, _ = tiles.reduction(outputs, terms, kept_inside=inside)
    while inside and block > tiles.WARP and tiles.cdiv(outputs, block) < 2 * tiles.FILL:
        block //= 2
        span = min(2 * span, tiles.power_of_two(terms))
    while span > 1 and 2 * block * span > tiles.TERMS:
        span //= 2
    return block, span


def plan_both(problem: Problem, tile: Blocks | None, *, places: bool) -> Callable[..., None]:
    """Return the launch for one problem: ``call(x, out, offsets)``, the last any tensor if not requested."""
    reduction = Reduction.of_planes(problem)
    block, span = tile or choose(reduction)
    # Triton takes no empty tuple; with rank 0 this one isn't read.
    kept_sizes, kept_strides, out_strides = zip(*(reduction.kept or ((1, 0, 0),)), strict=True)
    sizes, strides = zip(*(reduction.reduced or ((1, 0),)), strict=True)
    launch = Launch(
        largest,
        (tiles.cdiv(reduction.outputs, block),),
        problem.device,
        KEPT=len(reduction.kept),
        REDUCED=len(reduction.reduced),
        PLACES=places,
        WIDE=max(reduction.outputs, reduction.terms) >= 2**30,
        BLOCK=block,
        TERMS=span,
    )
    fixed = (reduction.outputs, reduction.terms, kept_sizes, kept_strides, out_strides, sizes, strides)

    def call(x: Tensor, out: Tensor, offsets: Tensor) -> None:
        launch((x, out, offsets), x, out, offsets, *fixed)

    return call


def plan(problem: Problem, tile: Blocks | None = None) -> Callable[[Tensor], Any]:
    """Return the launch for one problem: ``call(x)``."""
    outputs = problem.outputs
    if isinstance(outputs, TensorMeta):
        run = plan_both(problem, tile, places=False)

        def call(x: Tensor) -> Tensor:
            result = outputs.empty()
            run(x, result, result)
            return result

        return call
    (out, offsets), run = outputs, plan_both(problem, tile, places=True)

    def call_for_both(x: Tensor) -> tuple[Tensor, Tensor]:
        results = out.empty(), offsets.empty()
        run(x, *results)
        return results

    return call_for_both


def sweep(problem: Problem) -> Iterator[Blocks]:
    """Yield the tiles worth timing: that chosen, half and twice as many of each."""
    block, span = choose(Reduction.of_planes(problem))
    for b in (block, 2 * block, block // 2):
        for t in (span, 2 * span, span // 2):
            if b and t and b * t <= 2 * tiles.TERMS:
                yield b, t


Spread = tuple[int, int]
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


def choose_backward(channels: int, pixels: int, *, inside: bool) -> Spread:
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


def plan_backward(problem: Problem, tile: Spread | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem: ``call(grad, offsets, size, memory_format)``."""
    grad, offsets, out = problem["grad"], problem["offsets"], problem.outputs
    channels, pixels, step = _shape(problem)
    block, span = tile or choose_backward(channels, pixels, inside=step > 1)
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


def sweep_backward(problem: Problem) -> Iterator[Spread]:
    """Yield the tiles worth timing: that chosen, half and twice as many of each."""
    channels, pixels, step = _shape(problem)
    block, span = choose_backward(channels, pixels, inside=step > 1)
    for b in (block, 2 * block, block // 2):
        for p in (span, 2 * span, span // 2):
            if b and p and b * p <= 2 * tiles.TERMS:
                yield b, p
