"""depthwise_conv2d_backward: one pass over the output's gradient makes both gradients where the stride is 1.

The window stands where x's elements are. The filter's gradient is added up by each thread, then by its block,
and the last block of a channel to arrive adds up what the channel's blocks found, in fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from types import ModuleType
from typing import Any

from torch import Tensor

from nxcore.plugin import FLOATS, Problem, TensorMeta, Window
from nxcore_cuda import depthwise_any, depthwise_pixels, depthwise_strips
from nxcore_cuda.depthwise import (
    BOTH,
    FILTER,
    IMAGE,
    SUMS,
    TURNED,
    Image,
    Slide,
    Tile,
    forward,
    turned,
    usual,
    window,
)
from nxcore_cuda.machine.instance import Instance

SOURCE = "depthwise_conv2d_backward"
Run = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], None]


def _way(problem: Problem) -> tuple[ModuleType, Slide] | None:
    """Return the module that plans a slide, and the slide; None where the window doesn't slide.

    The slide makes both gradients where the stride is 1, and the filter's where it is 2.
    """
    x, grad, weight, seen = (
        Image.of(problem["x"]),
        Image.of(problem["grad"]),
        problem["weight"],
        window(problem),
    )
    if seen.stride == (1, 1):
        x_grad = problem.outputs[0]
        out = x if x_grad is None else Image.of(x_grad)
        slide = turned(seen, weight, grad, x, out)
        if (x_grad is None or out.packed_rows) and depthwise_strips.fits(seen, weight, x, grad, out):
            return depthwise_strips, slide
    else:
        slide, out = forward(seen, weight, x, grad), grad
        if depthwise_strips.fits(seen, weight, x, grad):
            return depthwise_strips, slide
    return (depthwise_pixels, slide) if depthwise_pixels.fits(seen, weight, x, grad, out) else None


def _passes(problem: Problem, slide: Slide) -> list[int]:
    """Return what each pass of the slide is for where none makes two gradients."""
    x_grad, weight_grad = problem.outputs
    if slide.stride != 1:  # the image's gradient has a kernel of its own
        return [FILTER]
    return [IMAGE] * (x_grad is not None) + [SUMS | TURNED] * (weight_grad is not None)


def _choose(problem: Problem, module: ModuleType, slide: Slide) -> tuple[Tile, int]:
    """Return the tile, and what the passes are for between them."""
    passes = _passes(problem, slide)
    role = BOTH if len(passes) == 2 else passes[0]
    return module.choose(slide, problem.dtype.itemsize, role), role


def choose(problem: Problem) -> Tile | None:
    """Return the tile for a problem, None where there is nothing to choose."""
    way = _way(problem)
    return _choose(problem, *way)[0] if way else None


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    if way := _way(problem):
        yield from way[0].candidates(*_choose(problem, *way))


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., tuple[Tensor | None, Tensor | None]]:
    """Return the launches for one problem.

    It is called as ``call(grad, x, weight, stride, padding, dilation, output_mask)``.
    """
    x_fresh, weight_fresh = problem.outputs
    runs = list(_runs(problem, tile, x_fresh, weight_fresh))

    def call(grad: Tensor, x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor | None, Tensor | None]:
        x_grad = None if x_fresh is None else x_fresh.empty()
        weight_grad = None if weight_fresh is None else weight_fresh.empty()
        for run in runs:
            run(grad, x, weight, x_grad, weight_grad)
        return x_grad, weight_grad

    return call


def _runs(
    problem: Problem, tile: Tile | None, x_grad: TensorMeta | None, weight_grad: TensorMeta | None
) -> Iterator[Run]:
    """Yield the launches that make the requested gradients."""
    way, seen = _way(problem), window(problem)
    if way is None:
        if x_grad is not None:
            yield _image_by_any(problem, x_grad, seen)
        if weight_grad is not None:
            yield _filter_by_any(problem, weight_grad, seen)
        return
    module, slide = way
    if slide.stride == 1:
        yield from _by_turning(problem, module, slide, tile)
    else:
        tile = tile or module.choose(slide, problem.dtype.itemsize, FILTER)
        if x_grad is not None:
            yield _image_by_spreading(problem, slide, tile, x_grad, seen)
        if weight_grad is not None:
            sums = module.plan(problem.device, problem.dtype, slide, tile, FILTER, weight_grad)
            yield lambda grad, x, weight, x_grad, weight_grad: sums(x, None, grad, None, weight_grad)


def _by_turning(
    problem: Problem,
    module: ModuleType,
    slide: Slide,
    tile: Tile | None,
) -> Iterator[Run]:
    device, dtype = problem.device, problem.dtype
    passes = _passes(problem, slide)
    if len(passes) == 2 and (tile or _choose(problem, module, slide)[0]).together != "apart":
        passes = [BOTH]
    for role in passes:
        each = tile or module.choose(slide, dtype.itemsize, role)
        made = problem.outputs[1] if role & SUMS else None
        run = module.plan(device, dtype, slide, each, role, made)
        yield _turning(run, image=role != SUMS | TURNED, filters=bool(role & SUMS))


def _turning(run: Callable[..., None], *, image: bool, filters: bool) -> Run:
    def call(
        grad: Tensor, x: Tensor, weight: Tensor, x_grad: Tensor | None, weight_grad: Tensor | None
    ) -> None:
        run(grad, weight, x if filters else None, x_grad if image else None, weight_grad if filters else None)

    return call


def _image_by_spreading(problem: Problem, slide: Slide, tile: Tile, x_grad: TensorMeta, seen: Window) -> Run:
    grad, out = Image.of(problem["grad"]), Image.of(x_grad)
    if not depthwise_strips.spreads(seen, problem["weight"], grad, out):
        return _image_by_any(problem, x_grad, seen)
    run: Callable[..., None] = depthwise_strips.plan_spread(
        problem.dtype, problem.device, slide, grad, out, tile
    )
    return lambda grad, x, weight, x_grad, weight_grad: run(grad, weight, x_grad)


def _image_by_any(problem: Problem, x_grad: TensorMeta, seen: Window) -> Run:
    run: Callable[..., None] = depthwise_any.plan_outputs(
        SOURCE, problem["grad"], problem["weight"], x_grad, seen, image=True
    )
    return lambda grad, x, weight, x_grad, weight_grad: run(grad, weight, x_grad)


def _filter_by_any(problem: Problem, weight_grad: TensorMeta, seen: Window) -> Run:
    run: Callable[..., None] = depthwise_any.plan_filter(problem["x"], problem["grad"], weight_grad, seen)
    return lambda grad, x, weight, x_grad, weight_grad: run(x, grad, weight_grad)


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield from depthwise_any.instances(SOURCE)
    for dtype, slide in product(FLOATS, usual()):
        module = depthwise_pixels if slide.out.in_pixels else depthwise_strips
        yield from module.usual(dtype, BOTH, slide)
