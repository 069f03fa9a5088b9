"""The average pools, forward and backward: their shared sums, and the launch of a strip."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import Problem, Window
from nxcore_triton import any_window
from nxcore_triton.launch import Launch
from nxcore_triton.schedule import of, place, tap, taps
from nxcore_triton.strip import blank
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


def described(problem: Problem, *, back: bool) -> tuple[Window, Image, Image]:
    """Return the window of a problem, what is read and what is written."""
    read, written = problem.args[0], problem.outputs
    image = written if back else read
    steps = (problem["kernel_size"], problem["stride"], problem["padding"])
    window = Window.of_pool(image.shape, *steps, 1, problem["ceil_mode"])
    return window, Image.of(read), Image.of(written)


def bind(kernel: Any, problem: Problem, tile: Tile | None, *, back: bool = False) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    Parameters
    ----------
    kernel : JITFunction
        Writes strips.
    tile : Tile, optional
        The one to use in place of the chosen one.
    back : bool
        The outputs' gradient is read, the image's written.

    Returns
    -------
    callable
        It takes the operator's arguments, all positional.
    """
    out = problem.outputs
    window, source, target = described(problem, back=back)
    mean = divided(window, problem["count_include_pad"], problem["divisor_override"])
    chosen = tile or choose(window, (target,), (source,), sum(window.kernel))
    if not chosen.rows:
        anyhow = any_window.bind("mean", window, problem.args[0], out, back=back, mean=mean)

        def call_anyhow(x: Tensor, *_: Any) -> Tensor:
            result = out.empty()
            anyhow(x, None, result, None)
            return result

        return call_anyhow
    strips = lay(window, chosen, (target,), (source,), back=back)
    launch = Launch(
        kernel,
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


def tiles(problem: Problem, *, back: bool = False) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    window, source, target = described(problem, back=back)
    yield from variations(choose(window, (target,), (source,), sum(window.kernel)), sum(window.kernel))
