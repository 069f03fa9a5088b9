"""max_pool2d: strips down each plane, which find the largest of a row of taps first, and compare rows then.

The first of equals counts, and the last NaN: rows are compared from top to bottom and taps from left to
right, and a later one wins only where it is larger, or NaN.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, TensorMeta, Window
from nxcore_triton import any_window
from nxcore_triton.launch import Launch
from nxcore_triton.places import first_tap, index_of
from nxcore_triton.schedule import ends, lines, of, place, tap, taps, window
from nxcore_triton.strip import abreast, blank, line, origin, plane, put, stand
from nxcore_triton.strips import Image, Tile, choose, lay, variations


@triton.jit
def larger_of(value, tap_of, best, best_tap, SAID: tl.constexpr):
    """Return the larger of the best and of what comes later, and its tap."""
    if SAID == "nothing":
        return tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL), best_tap
    else:
        larger = (value > best) | (value != value)
        return tl.where(larger, value, best), tl.where(larger, tap_of, best_tap)


@triton.jit
def largest_across(seen, V: tl.constexpr, SAID: tl.constexpr, FORM: tl.constexpr):
    """Return the largest of a row of taps for the targets of column V, and its tap."""
    ACROSS: tl.constexpr = taps(FORM)[1]
    best = seen[place(FORM, V, 0)]
    best_tap = blank(0, tl.int32, FORM)
    for b in tl.static_range(1, ACROSS):
        best, best_tap = larger_of(seen[place(FORM, V, b)], b, best, best_tap, SAID)
    return best, best_tap


@triton.jit
def pool(
    x,
    out,
    places,
    counts,
    x_strides,
    out_strides,
    place_strides,
    x_size,
    out_size,
    FORM: tl.constexpr,
    SAID: tl.constexpr,
):
    """Write the strips of LANES lanes."""
    ROWS: tl.constexpr = of(FORM, "rows")
    COLUMNS: tl.constexpr = of(FORM, "columns")
    KERNEL: tl.constexpr = taps(FORM)
    DILATION: tl.constexpr = (window(FORM, "down")[3], window(FORM, "across")[3])
    ABOVE: tl.constexpr = window(FORM, "down")[2]
    BEFORE: tl.constexpr = window(FORM, "across")[2]
    DOWN: tl.constexpr = window(FORM, "down")[1]
    ACROSS: tl.constexpr = window(FORM, "across")[1]
    ok, image, channel, row, column = stand(counts, FORM)
    source = plane(x, image, channel, x_strides, FORM, False)
    target = plane(out, image, channel, out_strides, FORM, True)
    said = plane(places, image, channel, place_strides, FORM, True)
    top, left = origin(row, column, FORM)
    best = ()
    best_taps = ()
    for i in tl.static_range(ROWS * COLUMNS):
        best += (blank(-float("inf"), tl.float32, FORM),)
        first = blank(0, tl.int32, FORM)
        if SAID != "nothing" and ABOVE + BEFORE > 0:
            y = top + (i // COLUMNS * DOWN - ABOVE)
            first += abreast(
                first_tap(y, left + (i % COLUMNS * ACROSS - BEFORE), KERNEL, DILATION, x_size, SAID), FORM
            )
        best_taps += (first,)
    for i in tl.static_range(len(lines(FORM))):
        seen = line(source, top + lines(FORM)[i], left, x_strides, x_size, ok, -float("inf"), FORM)
        row_best = ()
        row_taps = ()
        for v in tl.static_range(COLUMNS):
            value, tap_of = largest_across(seen, v, SAID, FORM)
            row_best += (value,)
            row_taps += (tap_of,)
        fresh = ()
        fresh_taps = ()
        for r in tl.static_range(ROWS):
            for v in tl.static_range(COLUMNS):
                value = best[r * COLUMNS + v]
                tap_of = best_taps[r * COLUMNS + v]
                if tap(FORM, i, r) >= 0:
                    later = row_taps[v] + tap(FORM, i, r) * KERNEL[1]
                    value, tap_of = larger_of(row_best[v], later, value, tap_of, SAID)
                fresh += (value,)
                fresh_taps += (tap_of,)
        best = fresh
        best_taps = fresh_taps
        for r in tl.static_range(ROWS):
            if ends(FORM, i, r):
                done = best[r * COLUMNS : (r + 1) * COLUMNS]
                put(target, row + r, column, done, out_strides, out_size, ok, FORM)
                if SAID != "nothing":
                    where = ()
                    for v in tl.static_range(COLUMNS):
                        each = best_taps[r * COLUMNS + v]
                        if SAID == "index":
                            y = abreast(top + (r * DOWN - ABOVE), FORM)
                            z = abreast(left + (v * ACROSS - BEFORE), FORM)
                            each = index_of(each, y, z, KERNEL[1], DILATION, x_size[1])
                        where += (each,)
                    put(said, row + r, column, where, place_strides, out_size, ok, FORM)


def cost(window: Window, said: str) -> int:
    """Return the unrolled steps of one target."""
    return sum(window.kernel) * (1 if said == "nothing" else 2)


def bind(problem: Problem, out: TensorMeta, places: TensorMeta | None, said: str, tile: Tile | None) -> Any:
    """Return the launch for one problem: ``launch(x, out, places)``, places may be None."""
    window = describe(problem)
    source, target = Image.of(problem["x"]), Image.of(out)
    told = target if places is None else Image.of(places)
    chosen = tile or choose(window, (target, told), (source,), cost(window, said))
    if not chosen.rows:
        anyhow = any_window.bind("maximum", window, problem["x"], out, places=places, said=said)
        return lambda x, result, where: anyhow(x, None, result, where)
    strips = lay(window, chosen, (target, told), (source,))
    launch = Launch(pool, (strips.programs,), problem.device, strips.warps, FORM=strips.form, SAID=said)
    fixed = (
        strips.counts,
        source.strides,
        target.strides,
        told.strides,
        source.shape[2:],
        target.shape[2:],
    )

    def run(x: Tensor, result: Tensor, where: Tensor | None) -> None:
        tensors = (x, result, result if where is None else where)
        launch(tensors, *tensors, *fixed)

    return run


def describe(problem: Problem) -> Window:
    """Return the window of a problem."""
    return Window.of_pool(problem["x"].shape, *problem.args[1:6])


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Any]:
    """Return the launch for one problem: ``call(x, ...)``, with the operator's arguments."""
    outputs = problem.outputs
    if isinstance(outputs, TensorMeta):
        run = bind(problem, outputs, None, "nothing", tile)

        def call(x: Tensor, *_: Any) -> Tensor:
            result = outputs.empty()
            run(x, result, None)
            return result

        return call
    out, places = outputs  # where each maximum lies: by its index on the plane, or by its tap
    run = bind(problem, out, places, "index" if problem.op == "max_pool2d" else "tap", tile)

    def call_for_both(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        results = out.empty(), places.empty()
        run(x, *results)
        return results

    return call_for_both


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    outputs, window, source = problem.outputs, describe(problem), Image.of(problem["x"])
    both = not isinstance(outputs, TensorMeta)
    targets = tuple(Image.of(meta) for meta in (outputs if both else (outputs,)))
    steps = cost(window, "tap" if both else "nothing")
    yield from variations(choose(window, targets, (source,), steps), steps)


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


def describe_backward(problem: Problem) -> Window:
    """Return the window of a problem."""
    return Window.of_pool(*problem.args[2:])


def _images(problem: Problem) -> tuple[tuple[Image, Image], Image]:
    return (Image.of(problem["grad"]), Image.of(problem["offsets"])), Image.of(problem.outputs)


def plan_backward(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    It is called as ``call(grad, offsets, size, kernel_size, stride, padding, dilation, ceil_mode)``.
    """
    out, window = problem.outputs, describe_backward(problem)
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


def sweep_backward(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    sources, target = _images(problem)
    window = describe_backward(problem)
    yield from variations(choose(window, (target,), sources, window.taps), window.taps)
