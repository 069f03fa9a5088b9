"""avg_pool2d_backward: strips down the image, which gather from the windows that each element lies in.

Every output's gradient is divided by its window's divisor once, when its row is loaded; sums go across and
then down as in avg_pool2d.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, Window
from nxcore_triton import any_window
from nxcore_triton.avg_pool2d import added_across, added_down, divided
from nxcore_triton.launch import Launch
from nxcore_triton.places import counted
from nxcore_triton.schedule import ends, lines, loaded, of, window
from nxcore_triton.strip import abreast, blank, line, origin, plane, put, stand
from nxcore_triton.strips import Image, Tile, choose, lay, variations


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


def describe(problem: Problem) -> Window:
    """Return the window of a problem."""
    _, size, kernel_size, stride, padding, ceil_mode, *_ = problem.args
    return Window.of_pool(size, kernel_size, stride, padding, 1, ceil_mode)


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(grad, size, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override,
        memory_format)``.
    """
    out, pool = problem.outputs, describe(problem)
    mean = divided(pool, *problem.args[6:8])
    source, target = Image.of(problem["grad"]), Image.of(out)
    chosen = tile or choose(pool, (target,), (source,), sum(pool.kernel))
    if not chosen.rows:
        anyhow = any_window.bind("mean", pool, problem["grad"], out, back=True, mean=mean)

        def call_anyhow(grad: Tensor, *_: Any) -> Tensor:
            result = out.empty()
            anyhow(grad, None, result, None)
            return result

        return call_anyhow
    strips = lay(pool, chosen, (target,), (source,), back=True)
    launch = Launch(
        share_out,
        (strips.programs,),
        problem.device,
        strips.warps,
        FORM=strips.form,
        COUNTED=mean[0],
        PADDED=mean[1],
    )
    fixed = (mean[2], strips.counts, source.strides, target.strides, source.shape[2:], target.shape[2:])

    def call(grad: Tensor, *_: Any) -> Tensor:
        result = out.empty()
        launch((grad, result), grad, result, *fixed)
        return result

    return call


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    pool, target, source = describe(problem), Image.of(problem.outputs), Image.of(problem["grad"])
    yield from variations(choose(pool, (target,), (source,), sum(pool.kernel)), sum(pool.kernel))
