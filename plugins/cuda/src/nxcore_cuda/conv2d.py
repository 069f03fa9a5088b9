"""conv2d: a block has a tile of one image in shared memory; a thread, some pixels of some filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, Window
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.depthwise import STEPS, Image, ceil_div
from nxcore_cuda.direct import WARP, Floats, Layer, Tile, candidates, choose
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, Launcher


def instance(dtype: torch.dtype, layer: Layer, tile: Tile, op: str = "conv2d") -> Instance:
    """Return the kernel of a tile; a gradient's is of another operator."""
    kernel = layer.seen.kernel if layer.slides else (0, 0)
    threads = WARP * tile.slices * tile.rows * ceil_div(layer.made, tile.filters)
    arguments = (TYPES[dtype], *kernel, tile.pixels, tile.filters, tile.slices)
    entry = "conv2d" if op == "conv2d" else "conv2d_image"
    return Instance(entry, arguments, source=op, threads=max(128, 1 << (threads - 1).bit_length()))


def bind(problem: Problem, layer: Layer, tile: Tile | None, bias_step: int = 0) -> Launcher:
    """Return the launch of a direct convolution: ``launch(x, weight, bias, out)``."""
    chosen, seen, out = tile or choose(layer), layer.seen, layer.out
    floats = Floats.of(layer, chosen)
    down, across = ceil_div(out.height, floats.tall), ceil_div(out.width, WARP)
    whole = out.steps[3] == 1 and out.divides(chosen.pixels)
    return Launch(
        instance(problem.dtype, layer, chosen, problem.op),
        problem.device,
        out.images * layer.groups * down * across,
        WARP * chosen.slices * chosen.rows * floats.lots,
        shared=floats.bytes,
        pointers=4,
        layout=f"{3 * STEPS}4q23i",
        values=(
            *(*layer.x.steps, *layer.filters.steps, *out.steps),
            *(bias_step, layer.filters.start, layer.filters.group, layer.out_start),
            *(layer.groups, layer.channels, layer.made, *seen.kernel),
            *(*seen.image, *seen.outputs, *seen.stride, *seen.padding, *seen.dilation),
            *(down, across, floats.tall, floats.deep, floats.pitch, floats.lots, floats.filter_pitch),
            int(whole),
        ),
    )


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., Tensor]:
    """Return the launch for one problem: ``call(x, weight, bias, stride, padding, dilation, groups)``."""
    fresh, bias = problem.outputs, problem["bias"]
    launch = bind(problem, Layer.of(problem), tile, 0 if bias is None else bias.strides[0])

    def call(x: Tensor, weight: Tensor, bias: Tensor | None = None, *_: Any) -> Tensor:
        made = fresh.empty()
        launch(x, weight, bias, made)
        return made

    return call


def sweep(problem: Problem) -> Iterator[Tile]:
    """Yield the tiles worth timing."""
    yield from candidates(Layer.of(problem))


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time: squares of 3, 5 and 7, four to eight."""
    for dtype, size, side in product(FLOATS, (3, 5, 7), (32, 64, 128)):
        image = Image(2, 4, side, side, (4 * side * side, side * side, side, 1))
        made = replace(image, channels=8)
        seen = Window.of_convolution((2, 4, side, side), (size, size), 1, size // 2)
        layer = Layer(image, made, seen, 1, 4, 8)
        yield instance(dtype, layer, choose(layer))
