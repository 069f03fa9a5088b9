"""sep_conv2d: a block computes a band of one image; the tensor in between stays in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem
from nxcore_cuda import parts_forward, planes_forward, separable, strided_planes_forward
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch
from nxcore_cuda.parts_forward import Part
from nxcore_cuda.planes_forward import Outputs
from nxcore_cuda.separable import Layer, Tile
from nxcore_cuda.strided_planes_forward import Lines

SOURCE = "sep_conv2d"


def instance(
    dtype: torch.dtype, window: tuple[int, int, int], threads: int = 256, *, moments: bool = False
) -> Instance:
    """Return the kernel of an element type and a window's size, stride and dilation."""
    arguments = (TYPES[dtype], *window, *((True,) if moments else ()))
    return Instance(SOURCE, arguments, threads=threads, blocks=512 // threads if window[0] < 7 else 0)


def choose(problem: Problem) -> Tile | Outputs | Part | Lines | None:
    """Return the tile for a problem, None where none fits."""
    layer = Layer.of(problem, problem.outputs)
    if planes_forward.fits(layer, problem.device):
        return planes_forward.choose(layer)
    if parts_forward.fits(layer, problem.device, relu=problem["relu"]):
        return parts_forward.choose(layer)
    if strided_planes_forward.fits(layer, problem.device, relu=problem["relu"]):
        return strided_planes_forward.choose(layer)
    return separable.choose(layer, problem.device, back=False)


def sweep(problem: Problem) -> Iterator[Tile | Outputs | Part | Lines]:
    """Yield the tiles worth timing, the chosen one first."""
    layer = Layer.of(problem, problem.outputs)
    if planes_forward.fits(layer, problem.device):
        yield from planes_forward.tiles(layer)
    if parts_forward.fits(layer, problem.device, relu=problem["relu"]):
        yield from parts_forward.tiles(layer)
    if strided_planes_forward.fits(layer, problem.device, relu=problem["relu"]):
        yield from strided_planes_forward.tiles(layer)
    if chosen := separable.choose(layer, problem.device, back=False):
        yield from separable.candidates(layer, chosen, back=False)


def plan(problem: Problem, tile: Tile | Outputs | Part | Lines | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem.

    It is called as ``call(x, dw_weight, pw_weight, stride, padding, dilation, relu)``.
    """
    fresh = problem.outputs
    launch, _ = launched(problem, tile)

    def call(x: Tensor, dw_weight: Tensor, pw_weight: Tensor, *_: Any) -> Tensor:
        out = fresh.empty()
        launch(x, dw_weight, pw_weight, out, None)
        return out

    return call


def launched(
    problem: Problem, tile: Tile | Outputs | Part | Lines | None = None, *, moments: bool = False
) -> tuple[Any, int]:
    """Return the launch of ``(x, dw_weight, pw_weight, out, shares)``, and how many blocks it has.

    Each of them leaves the ``moments`` of every channel in ``shares``, where these are requested.
    """
    layer, chosen = Layer.of(problem, problem.outputs), tile or choose(problem)
    if chosen is None:
        raise ValueError("no tile fits")
    if isinstance(chosen, Outputs):
        of_planes = planes_forward.launch(layer, chosen, problem.device, relu=problem["relu"])
        return of_planes, planes_forward.blocks(layer, chosen)
    if isinstance(chosen, Part):
        of_parts = parts_forward.launch(layer, chosen, problem.device)
        return of_parts, parts_forward.blocks(layer, chosen)
    if isinstance(chosen, Lines):
        at_stride = strided_planes_forward.launch(layer, chosen, problem.device)
        return at_stride, strided_planes_forward.blocks(layer, chosen)
    floats, blocks = separable.forward(layer, chosen), layer.x.images * layer.bands(chosen.band)
    window = (layer.size, layer.stride, layer.dilation)
    launch = Launch(
        instance(problem.dtype, window, chosen.threads, moments=moments),
        problem.device,
        blocks,
        chosen.threads,
        floats.bytes,
        pointers=5,
        layout=separable.BAND,
        values=separable.values(layer, chosen, floats, relu=problem["relu"]),
    )
    return launch, blocks


WINDOWS = tuple(product((3, 5), (1, 2), (1, 2)))
"""Size, stride and dilation of what ordinary calls want."""


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for dtype, window in product(FLOATS, WINDOWS):
        yield instance(dtype, window)
    yield from planes_forward.instances(planes_forward.FORWARD)
    yield from parts_forward.instances("")
    yield from strided_planes_forward.instances(strided_planes_forward.FORWARD)
