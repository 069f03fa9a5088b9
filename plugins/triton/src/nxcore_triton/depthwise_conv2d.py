"""depthwise_conv2d: strips down each plane, whose filter stays in registers.

The same kernel goes back, from outputs to the image: there a tap is found the other way round.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta, Window, window_of
from nxcore_triton import any_window
from nxcore_triton.launch import Launch
from nxcore_triton.rounding import widen
from nxcore_triton.schedule import ends, lines, of, place, tap, taps
from nxcore_triton.strip import blank, line, origin, plane, put, stand
from nxcore_triton.strips import Image, Tile, choose, lay, variations

HELD = 50
"""Filter elements of a lane with several channels that stay in registers; of more, none does."""


@triton.jit
def filter_row(weight, A: tl.constexpr, ok, strides, FORM: tl.constexpr):
    """Return row A of each lane's filter."""
    ACROSS: tl.constexpr = taps(FORM)[1]
    values = ()
    for b in tl.static_range(ACROSS):
        at = weight + A * strides[1] + b * strides[2]
        if of(FORM, "inside"):
            each = at[:, None] + (tl.arange(0, of(FORM, "vector")) * strides[0])[None, :]
            values += (widen(tl.load(each, ok[:, None], other=0.0)),)
        else:
            values += (widen(tl.load(at, ok, other=0.0)),)
    return values


@triton.jit
def correlate(
    x,
    weight,
    out,
    counts,
    x_strides,
    weight_strides,
    out_strides,
    x_size,
    out_size,
    FORM: tl.constexpr,
    KEPT: tl.constexpr,
):
    """Write the strips of LANES lanes."""
    ROWS: tl.constexpr = of(FORM, "rows")
    COLUMNS: tl.constexpr = of(FORM, "columns")
    DOWN: tl.constexpr = taps(FORM)[0]
    ACROSS: tl.constexpr = taps(FORM)[1]
    ok, image, channel, row, column = stand(counts, FORM)
    source = plane(x, image, channel, x_strides, FORM, False)
    target = plane(out, image, channel, out_strides, FORM, True)
    weight += channel.to(tl.int64) * weight_strides[0]
    top, left = origin(row, column, FORM)
    held = ()
    if KEPT:
        for a in tl.static_range(DOWN):
            held += filter_row(weight, a, ok, weight_strides, FORM)
    sums = ()
    for _ in tl.static_range(ROWS * COLUMNS):
        sums += (blank(0.0, tl.float32, FORM),)
    for i in tl.static_range(len(lines(FORM))):
        seen = line(source, top + lines(FORM)[i], left, x_strides, x_size, ok, 0.0, FORM)
        fresh = ()
        for r in tl.static_range(ROWS):
            if tap(FORM, i, r) >= 0:
                if KEPT:
                    filters = held[tap(FORM, i, r) * ACROSS : (tap(FORM, i, r) + 1) * ACROSS]
                else:
                    filters = filter_row(weight, tap(FORM, i, r), ok, weight_strides, FORM)
            for v in tl.static_range(COLUMNS):
                total = sums[r * COLUMNS + v]
                if tap(FORM, i, r) >= 0:
                    for b in tl.static_range(ACROSS):
                        if place(FORM, v, b) >= 0:
                            total += filters[b] * seen[place(FORM, v, b)]
                fresh += (total,)
        sums = fresh
        for r in tl.static_range(ROWS):
            if ends(FORM, i, r):
                done = sums[r * COLUMNS : (r + 1) * COLUMNS]
                put(target, row + r, column, done, out_strides, out_size, ok, FORM)


def bind(
    problem: Problem, window: Window, metas: Sequence[TensorMeta], tile: Tile | None, *, back: bool
) -> Callable[..., None]:
    """Return the launch that goes from sources to targets: ``launch(sources, weight, targets)``."""
    weight = problem["weight"]
    source, target = (Image.of(meta) for meta in metas)
    chosen = tile or choose(window, (target,), (source,), window.taps)
    if not chosen.rows:
        anyhow = any_window.bind("correlation", window, *metas, back=back, weight=weight)
        return lambda x, w, out: anyhow(x, w, out, None)
    strips = lay(window, chosen, (target,), (source,), back=back)
    form = strips.form
    launch = Launch(
        correlate,
        (strips.programs,),
        problem.device,
        strips.warps,
        FORM=form,
        KEPT=not form.inside or window.taps * form.vector <= HELD,
    )
    fixed = (
        strips.counts,
        source.strides,
        (weight.strides[0], *weight.strides[2:]),
        target.strides,
        source.shape[2:],
        target.shape[2:],
    )

    def run(x: Tensor, w: Tensor, out: Tensor) -> None:
        launch((x, w, out), x, w, out, *fixed)

    return run


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem: ``call(x, weight, stride, padding, dilation)``."""
    out = problem.outputs
    run = bind(problem, window_of(*problem.args), (problem["x"], out), tile, back=False)

    def call(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
        result = out.empty()
        run(x, weight, result)
        return result

    return call


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    window, target, source = window_of(*problem.args), Image.of(problem.outputs), Image.of(problem["x"])
    yield from variations(choose(window, (target,), (source,), window.taps), window.taps)
