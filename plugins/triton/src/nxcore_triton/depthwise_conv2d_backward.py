"""depthwise_conv2d_backward: the image's gradient by depthwise_conv2d's strips, the filters' in two steps.

A program of the filters' gradient has some channels and a part of their outputs. Its lanes go down strips of
outputs as the forward pass does, one after another, and keep a sum for each tap in registers. A second launch
adds up the parts in fixed order, so no sum depends on which program came first.
"""

# mypy: ignore-errors

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, Reduction, TensorMeta, Window, window_of
from nxcore_triton import any_window
from nxcore_triton import tile as tiles
from nxcore_triton.depthwise_conv2d import bind
from nxcore_triton.launch import Launch
from nxcore_triton.schedule import begins, lines, of, place, tap, taps
from nxcore_triton.strip import blank, line, origin, plane, take
from nxcore_triton.strips import ANY, UNROLLED, Image, Tile, choose, columns, lanes, lay, variations
from nxcore_triton.sum import plan_reduction

MAX_SUMS = 100
"""Taps of which a lane can keep a sum each, in registers."""

SUMS = 50
"""Sums of a lane that leave room for the loads in flight, where it has several channels."""

Run = Callable[[Tensor, Tensor, Tensor], None]


@triton.jit
def _add_line(sums, seen, rows, LINE: tl.constexpr, FORM: tl.constexpr):
    """Return the sum of each tap with what line LINE of the image adds to it."""
    COLUMNS: tl.constexpr = of(FORM, "columns")
    DOWN: tl.constexpr = taps(FORM)[0]
    ACROSS: tl.constexpr = taps(FORM)[1]
    fresh = ()
    for a in tl.static_range(DOWN):
        for b in tl.static_range(ACROSS):
            total = sums[a * ACROSS + b]
            for r in tl.static_range(of(FORM, "rows")):
                if tap(FORM, LINE, r) == a:
                    for v in tl.static_range(COLUMNS):
                        total += rows[r * COLUMNS + v] * seen[place(FORM, v, b)]
            fresh += (total,)
    return fresh


@triton.jit
def _add_strip(
    sums, grad, x, row, column, grad_strides, x_strides, grad_size, x_size, ok, FORM: tl.constexpr
):
    """Return the sum of each tap with what a strip of outputs adds to it."""
    top, left = origin(row, column, FORM)
    rows = ()
    for i in tl.static_range(len(lines(FORM))):
        seen = line(x, top + lines(FORM)[i], left, x_strides, x_size, ok, 0.0, FORM)
        for r in tl.static_range(of(FORM, "rows")):
            if begins(FORM, i, r):
                rows += take(grad, row + r, column, grad_strides, grad_size, ok, FORM)
        sums = _add_line(sums, seen, rows, i, FORM)
    return sums


@triton.jit
def dots_of_strips(
    grad,
    x,
    parts,
    counts,
    span,
    part_step,
    grad_strides,
    x_strides,
    grad_size,
    x_size,
    FORM: tl.constexpr,
):
    """Write the part of some channels' gradient that span strips make: program (channels, part)."""
    ABREAST: tl.constexpr = of(FORM, "abreast")
    VECTOR: tl.constexpr = of(FORM, "vector")
    TAPS: tl.constexpr = taps(FORM)[0] * taps(FORM)[1]
    STEP: tl.constexpr = of(FORM, "lanes") // ABREAST
    groups, strips, vectors, total = counts
    lane = tl.arange(0, of(FORM, "lanes"))
    slot = tl.program_id(0) * ABREAST + lane % ABREAST
    first = tl.program_id(1) * span
    if of(FORM, "wide"):
        first = tl.program_id(1).to(tl.int64) * span
    last = tl.minimum(first + span, total)
    sums = ()
    for _ in tl.static_range(TAPS):
        sums += (blank(0.0, tl.float32, FORM),)
    for start in range(first, last, STEP):
        strip = start + lane // ABREAST
        ok = (strip < last) & (slot < vectors)
        column = strip % groups * of(FORM, "columns")
        rest = strip // groups
        row = rest % strips * of(FORM, "rows")
        image = rest // strips
        from_grad = plane(grad, image, slot * VECTOR, grad_strides, FORM, True)
        from_x = plane(x, image, slot * VECTOR, x_strides, FORM, False)
        sums = _add_strip(
            sums, from_grad, from_x, row, column, grad_strides, x_strides, grad_size, x_size, ok, FORM
        )
    at = parts + tl.program_id(1).to(tl.int64) * part_step
    if of(FORM, "inside"):
        channel = tl.program_id(0) * (ABREAST * VECTOR) + tl.arange(0, ABREAST * VECTOR)
        for i in tl.static_range(TAPS):
            each = tl.sum(sums[i].reshape(STEP, ABREAST * VECTOR), 0)
            tl.store(at + channel * TAPS + i, each, channel < vectors * VECTOR)
    else:
        for i in tl.static_range(TAPS):
            tl.store(at + tl.program_id(0) * TAPS + i, tl.sum(sums[i], 0))


def choose_sums(window: Window, grad: Image) -> Tile:
    """Return the tile of the filters' gradient: strips that divide the outputs, so that none lies beyond."""
    height, width = grad.shape[2:]
    if window.taps > MAX_SUMS:
        return ANY
    if grad.inside:
        vector = 2 if 2 * window.taps <= SUMS else 1
        rows, across = 4, math.gcd(width, 4)
    else:
        rows, vector, across = 8, 1, columns(grad, max(min(tiles.VECTOR // grad.itemsize, 8), 1))
    across = max(min(across, UNROLLED // window.taps), 1)
    most = max(min(rows, UNROLLED // (across * window.taps)), 1)
    return Tile(_divisor(height, most), across, vector, 4)


def _divisor(n: int, most: int) -> int:
    return next(d for d in range(most, 0, -1) if n % d == 0)


def _exact(tile: Tile, grad: Image) -> Tile:
    """Round a tile to strips that divide the outputs."""
    height, width = grad.shape[2:]
    across = _divisor(width, tile.columns)
    if not grad.inside and (across not in (1, 2, 4, 8) or grad.unit(across) != across):
        across = 1
    return tile._replace(rows=_divisor(height, tile.rows), columns=across)


def bind_filters(
    of_grad: TensorMeta, of_x: TensorMeta, out: TensorMeta, window: Window, tile: Tile | None
) -> Run:
    """Return the launches that make the filters' gradient: ``launch(grad, x, weight_grad)``."""
    grad, x, device = Image.of(of_grad), Image.of(of_x), out.device
    chosen = tile or choose_sums(window, grad)
    if chosen.rows:
        parts, make = _bind_sums(window, grad, x, _exact(chosen, grad), device)
    else:
        parts, make = any_window.bind_dots(window, of_grad, of_x)
    channels, height, width = out.shape[0], *window.kernel
    shape = (parts.shape[0], channels, height, width)
    strides = (parts.strides[0], window.taps, width, 1)
    sums = TensorMeta(shape, strides, torch.float32, device)
    conclude = plan_reduction(Reduction.of(sums, (0,), (0, out.strides[0], *out.strides[2:])), device)

    def run(g: Tensor, image: Tensor, result: Tensor) -> None:
        found = parts.empty()
        make(g, image, found)
        conclude(found, result, 1.0)

    return run


def _bind_sums(
    window: Window, grad: Image, x: Image, tile: Tile, device: torch.device
) -> tuple[TensorMeta, Run]:
    images, channels = grad.shape[:2]
    strips = lay(window, tile, (grad,), (x,))
    groups, rows, vectors, _ = strips.counts
    total = images * rows * groups
    beside = min(tiles.power_of_two(vectors), tiles.WARP) if strips.form.inside else 1
    program = min(lanes(total * beside, tile.warps), 256 if tiles.INTERPRETED else 1024)
    form = replace(strips.form, lanes=program, abreast=min(beside, program))
    step = program // form.abreast
    blocks = tiles.cdiv(vectors, form.abreast)
    count = max(min(tiles.cdiv(4 * tiles.FILL, blocks), tiles.cdiv(total, step)), 1)
    span = tiles.cdiv(tiles.cdiv(total, step), count) * step
    count = tiles.cdiv(total, span)
    part_step = channels * window.taps
    launch = Launch(dots_of_strips, (blocks, count), device, strips.warps, FORM=form)
    fixed = (
        (groups, rows, vectors, total),
        span,
        part_step,
        grad.strides,
        x.strides,
        grad.shape[2:],
        x.shape[2:],
    )

    def run(g: Tensor, image: Tensor, parts: Tensor) -> None:
        launch((g, image, parts), g, image, parts, *fixed)

    return TensorMeta((count, part_step), (part_step, 1), torch.float32, device), run


def plan(problem: Problem, tile: tuple[Tile | None, Tile | None] | None = None) -> Callable[..., Any]:
    """Return the launches for one problem.

    Parameters
    ----------
    tile : (Tile, Tile), optional
        Of the image's gradient and of the filters'.

    Returns
    -------
    callable
        ``call(grad, x, weight, stride, padding, dilation, output_mask)``, which returns
        ``(x_grad, weight_grad)``.
    """
    window = window_of(*problem.args[1:6])
    x_grad, weight_grad = problem.outputs
    for_x, for_weight = tile or (None, None)
    to_image = to_filters = None
    if x_grad is not None:
        to_image = bind(problem, window, (problem["grad"], x_grad), for_x, back=True)
    if weight_grad is not None:
        to_filters = bind_filters(problem["grad"], problem["x"], weight_grad, window, for_weight)

    def call(grad: Tensor, x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor | None, Tensor | None]:
        image = filters = None
        if to_image is not None:
            image = x_grad.empty()
            to_image(grad, weight, image)
        if to_filters is not None:
            filters = weight_grad.empty()
            to_filters(grad, x, filters)
        return image, filters

    return call


def sweep(problem: Problem) -> Iterator[tuple[Tile | None, Tile | None]]:
    """Yield the tiles worth timing, of one gradient at a time."""
    window, (x_grad, weight_grad) = window_of(*problem.args[1:6]), problem.outputs
    grad = Image.of(problem["grad"])
    yield None, None
    if x_grad is not None:
        target = Image.of(x_grad)
        for tile in variations(choose(window, (target,), (grad,), window.taps), window.taps):
            yield tile, None
    if weight_grad is not None:
        found = variations(choose_sums(window, grad), window.taps)
        yield from dict.fromkeys((None, _exact(tile, grad)) for tile in found if tile.rows)
