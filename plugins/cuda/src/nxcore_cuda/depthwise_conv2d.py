"""depthwise_conv2d: a window slides over planes or over pixels; any other call, an output a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from types import ModuleType
from typing import Any

from torch import Tensor

from nxcore.plugin import FLOATS, Problem
from nxcore_cuda import depthwise_any, depthwise_pixels, depthwise_strips
from nxcore_cuda.depthwise import FORWARD, Image, Slide, Tile, forward, usual, window
from nxcore_cuda.machine.instance import Instance

SOURCE = "depthwise_conv2d"


def _way(problem: Problem) -> tuple[ModuleType, Slide] | None:
    """Return the module that plans a slide, and the slide; None where the window doesn't slide."""
    x, out, weight, seen = (
        Image.of(problem["x"]),
        Image.of(problem.outputs),
        problem["weight"],
        window(problem),
    )
    if out.packed_rows and depthwise_strips.fits(seen, weight, x, out):
        return depthwise_strips, forward(seen, weight, x, out)
    if depthwise_pixels.fits(seen, weight, x, out):
        return depthwise_pixels, forward(seen, weight, x, out)
    return None


def choose(problem: Problem) -> Tile | None:
    """Return the tile for a problem, None where there is nothing to choose."""
    if way := _way(problem):
        return way[0].choose(way[1], problem.dtype.itemsize, FORWARD)
    return None


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    if way := _way(problem):
        yield from way[0].candidates(way[0].choose(way[1], problem.dtype.itemsize, FORWARD), FORWARD)


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem: ``call(x, weight, stride, padding, dilation)``."""
    fresh, way = problem.outputs, _way(problem)
    if way is None:
        seen = window(problem)
        run_any = depthwise_any.plan_outputs(
            SOURCE, problem["x"], problem["weight"], fresh, seen, image=False
        )

        def call_any(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
            out = fresh.empty()
            run_any(x, weight, out)
            return out

        return call_any

    module, slide = way
    run = module.plan(problem.device, problem.dtype, slide, tile or choose(problem), FORWARD)

    def call(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
        out = fresh.empty()
        run(x, weight, None, out, None)
        return out

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield from depthwise_any.instances(SOURCE)
    for dtype, slide in product(FLOATS, usual()):
        module = depthwise_pixels if slide.out.in_pixels else depthwise_strips
        yield from module.usual(dtype, FORWARD, slide)
