"""conv2d_backward: the image's gradient by conv2d's tiles, the filters' and the bias's in two launches.

Blocks leave shares of the sums over pixels, and a second launch adds them up in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, Window
from nxcore_cuda import conv2d, direct, direct_filters
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.depthwise import STEPS, Image, ceil_div
from nxcore_cuda.direct import Layer
from nxcore_cuda.direct_filters import Block, Shape, Sums
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch

SOURCE = "conv2d_backward"
COLUMNS, THREADS = 16, 256  # of a block that adds up shares


@dataclass(frozen=True)
class Tiles:
    """The tile of the image's gradient, and the sums of the filters'; None: as the shapes say."""

    image: direct.Tile | None = None
    filters: Sums | None = None


def instance(dtype: torch.dtype, shape: Shape, sums: Sums) -> Instance:
    """Return the kernel of the filters' shares."""
    arguments = (TYPES[dtype], shape.span, sums.filters)
    return Instance("conv2d_filters", arguments, source=SOURCE, threads=sums.threads)


def totals(dtype: torch.dtype) -> Instance:
    """Return the kernel that adds up shares."""
    return Instance("conv2d_totals", (TYPES[dtype],), source=SOURCE)


def plan(problem: Problem, tiles: Tiles | None = None) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launches for one problem.

    It is called as ``call(grad, x, weight, stride, padding, dilation, groups, output_mask)``.
    """
    fresh, chosen = problem.outputs, tiles or Tiles()
    layers = () if fresh[0] is None else Layer.turned(problem)
    images = [conv2d.bind(problem, layer, chosen.image) for layer in layers]
    sums = None if fresh[1] is fresh[2] is None else _bind_sums(problem, chosen.filters)

    def call(grad: Tensor, x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        made = tuple(None if out is None else out.empty() for out in fresh)
        for image in images:
            image(grad, weight, None, made[0])
        if sums is not None:
            sums(grad, x, made[1], made[2])
        return made

    return call


def _bind_sums(problem: Problem, sums: Sums | None) -> Callable[..., None]:
    """Return the launches of the filters' and the bias's gradients."""
    shape, device = Shape.of(problem), problem.device
    sums = sums or direct_filters.choose(shape)
    block, seen, span = Block.of(shape, sums), shape.seen, max(shape.span, 1)
    launch = Launch(
        instance(problem.dtype, shape, sums),
        device,
        (block.parts * shape.groups, ceil_div(block.units, block.lanes)),
        block.threads,
        shared=block.bytes,
        pointers=3,
        layout=f"{2 * STEPS}25i",
        values=(
            *(*shape.grad.steps, *shape.x.steps, shape.channels, shape.made, *seen.kernel),
            *(*seen.image, *seen.outputs, *seen.stride, *seen.padding, *seen.dilation),
            *(*direct_filters.grid_of(shape, sums), direct_filters.tiles_of(shape, sums), sums.rows),
            *(block.deep, block.pitch, block.lots, block.units, block.of_filters, block.lanes, block.parts),
        ),
    )
    width = shape.groups * sums.filters * span * block.units
    weight_steps = problem.outputs[1].strides if shape.of_filters else (0, 0, 0, 0)
    add_up = Launch(
        totals(problem.dtype),
        device,
        ceil_div(width, COLUMNS),
        THREADS,
        4 * THREADS,
        pointers=3,
        layout=f"{STEPS}q9i",
        values=(
            *(*weight_steps, width, block.parts, sums.filters, span, block.lots, block.units),
            *(block.of_filters, shape.made, *seen.kernel),
        ),
    )

    def call(grad: Tensor, x: Tensor, weight_grad: Tensor | None, bias_grad: Tensor | None) -> None:
        shares = torch.empty((block.parts, width), dtype=torch.float32, device=device)
        launch(grad, x, shares)
        add_up(shares, weight_grad, bias_grad)

    return call


def sweep(problem: Problem) -> Iterator[Tiles]:
    """Yield the tiles worth timing, of one gradient at a time."""
    yield Tiles()
    if problem.outputs[0] is not None:
        yield from (Tiles(image=tile) for tile in direct.candidates(next(Layer.turned(problem))))
    if problem.outputs[1] is not None or problem.outputs[2] is not None:
        yield from (Tiles(filters=sums) for sums in direct_filters.candidates(Shape.of(problem)))


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time: squares of 3, 5 and 7, four to eight."""
    yield from map(totals, FLOATS)
    for dtype, size, side in product(FLOATS, (3, 5, 7), (32, 64, 128)):
        image = Image(2, 4, side, side, (4 * side * side, side * side, side, 1))
        made = Image(2, 8, side, side, (8 * side * side, side * side, side, 1))
        seen = Window.of_convolution((2, 4, side, side), (size, size), 1, size // 2)
        layer = Layer(made, image, seen, 1, 8, 4)
        yield conv2d.instance(dtype, layer, direct.choose(layer), SOURCE)
        shape = Shape(made, image, seen, 1, 4, 8, of_filters=True, of_bias=True)
        yield instance(dtype, shape, direct_filters.choose(shape))
