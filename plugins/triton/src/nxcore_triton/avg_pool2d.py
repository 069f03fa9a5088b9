"""avg_pool2d: strips down each plane, which add up rows of taps first, and then these sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, Window
from nxcore_triton import any_window
from nxcore_triton.launch import Launch
from nxcore_triton.places import counted
from nxcore_triton.schedule import ends, lines, of, place, tap, taps, window
from nxcore_triton.strip import abreast, blank, line, origin, plane, put, stand
from nxcore_triton.strips import Image, Tile, choose, lay, variations


@triton.jit
def added_across(seen, FORM: tl.constexpr):
    """Return the sum of a row of taps, one for each column of targets."""
    ACROSS: tl.constexpr = taps(FORM)[1]
    sums = ()
    for v in tl.static_range(of(FORM, "columns")):
        total = blank(0.0, tl.float32, FORM)
        for b in tl.static_range(ACROSS):
            if place(FORM, v, b) >= 0:
                total += seen[place(FORM, v, b)]
        sums += (total,)
    return sums


@triton.jit
def added_down(sums, row_sums, LINE: tl.constexpr, FORM: tl.constexpr):
    """Return the sums of each target with those of line LINE."""
    COLUMNS: tl.constexpr = of(FORM, "columns")
    fresh = ()
    for r in tl.static_range(of(FORM, "rows")):
        for v in tl.static_range(COLUMNS):
            if tap(FORM, LINE, r) >= 0:
                fresh += (sums[r * COLUMNS + v] + row_sums[v],)
            else:
                fresh += (sums[r * COLUMNS + v],)
    return fresh


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


def divided(window: Window, count_include_pad: Any, divisor_override: int | None) -> tuple[bool, bool, float]:
    """Return whether each window has its own divisor, whether that counts the padding, and else the scale."""
    if divisor_override is not None:
        return False, False, 1 / divisor_override
    padded = bool(count_include_pad)
    whole = all(
        (o - 1) * s + k <= n + (2 * p if padded else 0) and (padded or p == 0)
        for n, o, k, s, p in zip(
            window.image, window.outputs, window.kernel, window.stride, window.padding, strict=True
        )
    )
    return not whole, padded, 1 / window.taps


def describe(problem: Problem) -> Window:
    """Return the window of a problem."""
    _, size, stride, padding, ceil_mode, *_ = problem.args
    return Window.of_pool(problem["x"].shape, size, stride, padding, 1, ceil_mode)


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)``.
    """
    out, pool = problem.outputs, describe(problem)
    mean = divided(pool, *problem.args[5:7])
    source, target = Image.of(problem["x"]), Image.of(out)
    chosen = tile or choose(pool, (target,), (source,), sum(pool.kernel))
    if not chosen.rows:
        anyhow = any_window.bind("mean", pool, problem["x"], out, mean=mean)

        def call_anyhow(x: Tensor, *_: Any) -> Tensor:
            result = out.empty()
            anyhow(x, None, result, None)
            return result

        return call_anyhow
    strips = lay(pool, chosen, (target,), (source,))
    launch = Launch(
        average,
        (strips.programs,),
        problem.device,
        strips.warps,
        FORM=strips.form,
        COUNTED=mean[0],
        PADDED=mean[1],
    )
    fixed = (mean[2], strips.counts, source.strides, target.strides, source.shape[2:], target.shape[2:])

    def call(x: Tensor, *_: Any) -> Tensor:
        result = out.empty()
        launch((x, result), x, result, *fixed)
        return result

    return call


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    pool, target, source = describe(problem), Image.of(problem.outputs), Image.of(problem["x"])
    yield from variations(choose(pool, (target,), (source,), sum(pool.kernel)), sum(pool.kernel))
