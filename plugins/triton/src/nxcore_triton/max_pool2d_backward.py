"""max_pool2d_backward: strips down the image, which gather from the windows that each element lies in.

An output's gradient is added where its offset names the tap by which its window sees the element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, Window
from nxcore_triton import any_window
from nxcore_triton.launch import Launch
from nxcore_triton.schedule import ends, lines, of, place, tap, taps
from nxcore_triton.strip import blank, line, origin, plane, put, stand
from nxcore_triton.strips import Image, Tile, choose, lay, variations


@triton.jit
def collect(
    grad,
    offsets,
    out,
    counts,
    grad_strides,
    offset_strides,
    out_strides,
    grad_size,
    out_size,
    FORM: tl.constexpr,
):
    """Write the strips of LANES lanes."""
    ROWS: tl.constexpr = of(FORM, "rows")
    COLUMNS: tl.constexpr = of(FORM, "columns")
    ACROSS: tl.constexpr = taps(FORM)[1]
    ok, image, channel, row, column = stand(counts, FORM)
    source = plane(grad, image, channel, grad_strides, FORM, False)
    places = plane(offsets, image, channel, offset_strides, FORM, False)
    target = plane(out, image, channel, out_strides, FORM, True)
    top, left = origin(row, column, FORM)
    sums = ()
    for _ in tl.static_range(ROWS * COLUMNS):
        sums += (blank(0.0, tl.float32, FORM),)
    for i in tl.static_range(len(lines(FORM))):
        at = top + lines(FORM)[i]
        seen = line(source, at, left, grad_strides, grad_size, ok, 0.0, FORM)
        taken = line(places, at, left, offset_strides, grad_size, ok, 0, FORM)
        fresh = ()
        for r in tl.static_range(ROWS):
            for v in tl.static_range(COLUMNS):
                total = sums[r * COLUMNS + v]
                if tap(FORM, i, r) >= 0:
                    for b in tl.static_range(ACROSS):
                        if place(FORM, v, b) >= 0:
                            mine = taken[place(FORM, v, b)] == tap(FORM, i, r) * ACROSS + b
                            total = tl.where(mine, total + seen[place(FORM, v, b)], total)
                fresh += (total,)
        sums = fresh
        for r in tl.static_range(ROWS):
            if ends(FORM, i, r):
                done = sums[r * COLUMNS : (r + 1) * COLUMNS]
                put(target, row + r, column, done, out_strides, out_size, ok, FORM)


def describe(problem: Problem) -> Window:
    """Return the window of a problem."""
    return Window.of_pool(*problem.args[2:])


def _images(problem: Problem) -> tuple[tuple[Image, Image], Image]:
    return (Image.of(problem["grad"]), Image.of(problem["offsets"])), Image.of(problem.outputs)


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    Returns
    -------
    callable
        ``call(grad, offsets, size, kernel_size, stride, padding, dilation, ceil_mode)``.
    """
    out, window = problem.outputs, describe(problem)
    sources, target = _images(problem)
    chosen = tile or choose(window, (target,), sources, window.taps)
    if not chosen.rows:
        places = problem["offsets"]
        anyhow = any_window.bind("maximum", window, problem["grad"], out, back=True, places=places)

        def call_anyhow(grad: Tensor, offsets: Tensor, *_: Any) -> Tensor:
            result = out.empty()
            anyhow(grad, None, result, offsets)
            return result

        return call_anyhow
    strips = lay(window, chosen, (target,), sources, back=True)
    launch = Launch(collect, (strips.programs,), problem.device, strips.warps, FORM=strips.form)
    fixed = (
        strips.counts,
        *(source.strides for source in sources),
        target.strides,
        sources[0].shape[2:],
        target.shape[2:],
    )

    def call(grad: Tensor, offsets: Tensor, *_: Any) -> Tensor:
        result = out.empty()
        launch((grad, offsets, result), grad, offsets, result, *fixed)
        return result

    return call


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    sources, target = _images(problem)
    window = describe(problem)
    yield from variations(choose(window, (target,), sources, window.taps), window.taps)
