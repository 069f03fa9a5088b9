"""sep_conv2d_backward: a block computes all three gradients of a band of one image, for some channels.

It writes shares of the weights' gradients, which a second launch adds up in a fixed order: its own, or that
of all weights of a captured call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, sums_of
from nxcore_cuda import planes, separable, strided_planes
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.depthwise import FILL, ceil_div, filter_steps
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, Launcher
from nxcore_cuda.planes import Planes, Shape
from nxcore_cuda.sep_conv2d import WINDOWS
from nxcore_cuda.separable import Layer, Tile

SOURCE = "sep_conv2d_backward"
TOTALS, COLUMNS = "sep_conv2d_totals", 16
MOST_BLOCKS = 4 * FILL  # of a chunk, each of which leaves shares
PLANNERS = (planes, strided_planes)


def instance(dtype: torch.dtype, window: tuple[int, int, int], threads: int = 256) -> Instance:
    """Return the kernel of an element type and a window's size, stride and dilation."""
    return Instance(
        SOURCE, (TYPES[dtype], *window), threads=threads, blocks=512 // threads if window[0] < 7 else 0
    )


def totals(dtype: torch.dtype) -> Instance:
    """Return the kernel that adds up shares."""
    return Instance(TOTALS, (TYPES[dtype],), source=SOURCE)


def _layer(problem: Problem) -> Layer:
    return Layer.of(problem, problem["grad"], problem.outputs[0])


def known(problem: Problem) -> ModuleType | None:
    """Return the planner whose kernels of square planes take a call, if any: they make all gradients."""
    layer = _layer(problem)
    if None in problem.outputs:
        return None
    return next((p for p in PLANNERS if p.fits(layer, problem.device, relu=problem["relu"])), None)


def choose(problem: Problem) -> Tile | Planes | None:
    """Return the tile for a problem, None where none fits."""
    if planner := known(problem):
        tile: Planes = planner.choose(_layer(problem))
        return tile
    return separable.choose(_layer(problem), problem.device, back=True)


def sweep(problem: Problem) -> Iterator[Tile | Planes]:
    """Yield the tiles worth timing, the chosen one first."""
    layer = _layer(problem)
    if planner := known(problem):
        yield from dict.fromkeys((planner.choose(layer), *planner.tiles(Shape.of(layer))))
    if chosen := separable.choose(layer, problem.device, back=True):
        yield from separable.candidates(layer, chosen, back=True)


def _convolve(problem: Problem, layer: Layer, tile: Tile | Planes, wanted: int) -> tuple[Launcher, int]:
    """Return the launch of ``(grad, x, dw_weight, pw_weight, x_grad, shares)``, and its number of shares."""
    if isinstance(tile, Planes):
        planner: Any = strided_planes if layer.stride == 2 else planes
        rows, shape = planner.rows(layer, tile), Shape.of(layer)
        launch = Launch(
            planner.instance(planner.BACKWARD, shape, tile),
            problem.device,
            rows,
            tile.threads,
            planner.memory(shape, tile),
            pointers=6,
            layout="i",
            values=(planner.items(layer, tile),),
        )
        return launch, rows
    floats = separable.backward(layer, tile)
    rows = min(layer.x.images * layer.bands(tile.band), MOST_BLOCKS)
    launch = Launch(
        instance(problem.dtype, (layer.size, layer.stride, layer.dilation), tile.threads),
        problem.device,
        (rows, ceil_div(layer.x.channels, tile.chunk)),
        tile.threads,
        floats.bytes,
        pointers=6,
        layout=separable.BAND,
        values=separable.values(layer, tile, floats, relu=problem["relu"], wanted=wanted),
    )
    return launch, rows


def plan(problem: Problem, tile: Tile | Planes | None = None) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launches for one problem.

    It is called as ``call(grad, x, dw_weight, pw_weight, stride, padding, dilation, relu, output_mask)``.
    """
    fresh, layer, device = problem.outputs, _layer(problem), problem.device
    chosen = tile or choose(problem)
    if chosen is None:
        raise ValueError("no tile fits")
    wanted = sum(1 << i for i, out in enumerate(fresh) if out is not None)
    launch, rows = _convolve(problem, layer, chosen, wanted)
    channels, taps = layer.x.channels, layer.size**2
    split = channels * taps
    columns = split + channels * layer.y.channels
    image_fresh, filters_fresh, points_fresh = fresh
    first, last = 0 if filters_fresh else split, columns if points_fresh else split
    add_up = None
    if first < last:
        of_filters = (0, 0, 0) if filters_fresh is None else filter_steps(filters_fresh)
        of_points = (0, 0) if points_fresh is None else points_fresh.strides[:2]
        add_up = Launch(
            totals(problem.dtype),
            device,
            ceil_div(last - first, COLUMNS),
            256,
            4 * 256,
            pointers=3,
            layout="5q7i",
            values=(*of_filters, *of_points, rows, columns, taps, layer.size, channels, first, last),
        )

    whole = add_up is not None and (first, last) == (0, columns) and problem.dtype is torch.float32

    def call(
        grad: Tensor, x: Tensor, dw_weight: Tensor, pw_weight: Tensor, *_: Any
    ) -> tuple[Tensor | None, ...]:
        sums = sums_of(dw_weight, pw_weight) if whole else None
        x_grad = None if image_fresh is None else image_fresh.empty()
        made = None if sums is not None else empty()
        shares = None
        if add_up is not None:
            shares = torch.empty((rows, columns), dtype=torch.float32, device=device)
        launch(grad, x, dw_weight, pw_weight, x_grad, shares)
        if sums is not None and shares is not None:
            return x_grad, *sums.leave(shares, (dw_weight, pw_weight), lambda: finish(shares, *empty()))
        return x_grad, *finish(shares, *(made or empty()))

    def empty() -> tuple[Tensor | None, Tensor | None]:
        dw_grad, pw_grad = (None if out is None else out.empty() for out in (filters_fresh, points_fresh))
        return dw_grad, pw_grad

    def finish(shares: Any, dw_grad: Any, pw_grad: Any) -> tuple[Any, Any]:
        if add_up is not None:
            add_up(shares, dw_grad, pw_grad)
        return dw_grad, pw_grad

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for dtype in FLOATS:
        yield totals(dtype)
    for dtype, window in product(FLOATS, WINDOWS):
        yield instance(dtype, window)
    for planner in PLANNERS:
        yield from planner.instances(planner.BACKWARD)
