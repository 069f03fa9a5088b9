"""avg_pool2d: strips down each plane, which add up rows of taps first, and then these sums."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable, Iterator

import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem
from nxcore_triton import average as averages
from nxcore_triton.average import added_across, added_down
from nxcore_triton.places import counted
from nxcore_triton.schedule import ends, lines, loaded, of, window
from nxcore_triton.strip import abreast, blank, line, origin, plane, put, stand
from nxcore_triton.strips import Tile


@triton.jit(do_not_specialize=["scale"])
def average(
    x,
    out,
    scale,
    counts,
    x_strides,
    out_strides,
    x_size,
    out_size,
    FORM: tl.constexpr,
    COUNTED: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Write the strips of LANES lanes."""
    ROWS: tl.constexpr = of(FORM, "rows")
    COLUMNS: tl.constexpr = of(FORM, "columns")
    DOWN: tl.constexpr = window(FORM, "down")
    ACROSS: tl.constexpr = window(FORM, "across")
    ok, image, channel, row, column = stand(counts, FORM)
    source = plane(x, image, channel, x_strides, FORM, False)
    target = plane(out, image, channel, out_strides, FORM, True)
    top, left = origin(row, column, FORM)
    shares = ()
    if COUNTED:
        for v in tl.static_range(COLUMNS):
            n = counted(column + v, ACROSS[0], ACROSS[1], ACROSS[2], x_size[1], PADDED)
            shares += (1.0 / n,)
    sums = ()
    for _ in tl.static_range(ROWS * COLUMNS):
        sums += (blank(0.0, tl.float32, FORM),)
    for i in tl.static_range(len(lines(FORM))):
        seen = line(source, top + lines(FORM)[i], left, x_strides, x_size, ok, 0.0, FORM)
        sums = added_down(sums, added_across(seen, FORM), i, FORM)
        for r in tl.static_range(ROWS):
            if ends(FORM, i, r):
                means = ()
                if COUNTED:
                    share = 1.0 / counted(row + r, DOWN[0], DOWN[1], DOWN[2], x_size[0], PADDED)
                    for v in tl.static_range(COLUMNS):
                        means += (sums[r * COLUMNS + v] * abreast(share * shares[v], FORM),)
                else:
                    for v in tl.static_range(COLUMNS):
                        means += (sums[r * COLUMNS + v] * scale,)
                put(target, row + r, column, means, out_strides, out_size, ok, FORM)


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    It is called as ``call(x, kernel_size, stride, padding, ceil_mode, count_include_pad,
    divisor_override)``.
    """
    return averages.bind(average, problem, tile)


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from averages.tiles(problem)


@triton.jit(do_not_specialize=["scale"])
def share_out(
    grad,
    out,
    scale,
    counts,
    grad_strides,
    out_strides,
    grad_size,
    out_size,
    FORM: tl.constexpr,
    COUNTED: tl.constexpr,
    PADDED: tl.constexpr,
):
    """Write the strips of LANES lanes."""
    ROWS: tl.constexpr = of(FORM, "rows")
    COLUMNS: tl.constexpr = of(FORM, "columns")
    DOWN: tl.constexpr = window(FORM, "down")
    ACROSS: tl.constexpr = window(FORM, "across")
    ok, image, channel, row, column = stand(counts, FORM)
    source = plane(grad, image, channel, grad_strides, FORM, False)
    target = plane(out, image, channel, out_strides, FORM, True)
    top, left = origin(row, column, FORM)
    shares = ()
    if COUNTED:
        for j in tl.static_range(len(loaded(FORM))):
            n = counted(left + loaded(FORM)[j], ACROSS[0], ACROSS[1], ACROSS[2], out_size[1], PADDED)
            shares += (1.0 / n,)
    sums = ()
    for _ in tl.static_range(ROWS * COLUMNS):
        sums += (blank(0.0, tl.float32, FORM),)
    for i in tl.static_range(len(lines(FORM))):
        seen = line(source, top + lines(FORM)[i], left, grad_strides, grad_size, ok, 0.0, FORM)
        if COUNTED:
            share = 1.0 / counted(top + lines(FORM)[i], DOWN[0], DOWN[1], DOWN[2], out_size[0], PADDED)
            each = ()
            for j in tl.static_range(len(loaded(FORM))):
                each += (seen[j] * abreast(share * shares[j], FORM),)
            seen = each
        sums = added_down(sums, added_across(seen, FORM), i, FORM)
        for r in tl.static_range(ROWS):
            if ends(FORM, i, r):
                done = ()
                for v in tl.static_range(COLUMNS):
                    if COUNTED:
                        done += (sums[r * COLUMNS + v],)
                    else:
                        done += (sums[r * COLUMNS + v] * scale,)
                put(target, row + r, column, done, out_strides, out_size, ok, FORM)


def plan_backward(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    It is called as ``call(grad, size, kernel_size, stride, padding, ceil_mode, count_include_pad,
    divisor_override, memory_format)``.
    """
    return averages.bind(share_out, problem, tile, back=True)


def sweep_backward(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from averages.tiles(problem, back=True)
