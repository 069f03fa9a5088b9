"""Depthwise convolution where neighbours in memory are channels: a window slides down strips of pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import TensorMeta, Window
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.depthwise import (
    BOTH,
    DIVISOR,
    FORWARD,
    NARROW,
    SUMS,
    TARGET,
    TURNED,
    Image,
    Slide,
    Tile,
    ceil_div,
    dense_filter,
    divisor,
    share,
    square,
    target,
)
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher

LANES = 32  # groups of channels that a block takes, at most
FINISHERS = 1024  # threads of a block that adds up splits
PIXELS = f"4q7i6i6I{3 * DIVISOR}"  # what follows the pointers of depthwise_pixels_args
FINISH = f"2q{TARGET}5i6i2i"  # and of depthwise_pixels_finish_args


def fits(seen: Window, weight: TensorMeta, *images: Image) -> bool:
    """Return whether there are kernels for this window over these images."""
    return (
        square(seen) is not None
        and dense_filter(weight)
        and all(i.in_pixels and abs(i.steps[2]) < NARROW and abs(i.steps[3]) < NARROW for i in images)
        and all(i.images * i.height * i.width < NARROW for i in images)
    )


def channels_of(slide: Slide, channels: int) -> int:
    """Return the most, up to ``channels``, that are one whole vector everywhere."""
    filters = slide.channel_step == slide.size**2  # of a thread's channels, one after the other
    images = (slide.over, slide.own, slide.out)
    steps = [step for i in images for step in (i.steps[0], *i.steps[2:])]
    if not filters:
        return 1
    whole = math.gcd(channels, slide.out.channels, *steps)
    return whole & -whole  # a power of two


def choose(slide: Slide, itemsize: int, role: int) -> Tile:
    """Return the tile of a pass; as many blocks are resident as the registers just suffice for."""
    out, k, dilated = slide.out, slide.size, slide.dilation == 2
    small = out.images * out.height * out.width * out.channels < 1 << 23
    rows = 4 if small or slide.stride == 2 else 7 if dilated else 8
    if k == 7:
        return Tile(4, rows, 1, together="apart")
    if k == 5:
        columns, resident = 2 if role & SUMS else 4, 0 if slide.stride == 2 else 3
        return Tile(columns, rows, 1, channels=2, resident=resident, together="apart")
    if role != BOTH:
        return Tile(2, rows, 2, channels=4)
    resident = (4 if small else 5) if itemsize == 2 else 3 if dilated else 4
    return Tile(2, rows, 1, channels=2, resident=resident)


def candidates(first: Tile, role: int) -> Iterator[Tile]:
    """Yield the tiles worth timing, ``first`` before all others."""
    seen = [first]
    changes: list[dict[str, Any]] = [{"columns": n} for n in (2, 4)]
    changes += [{"ahead": n} for n in (1, 2, 3)]
    changes += [{"channels": 6 - first.channels, "columns": n, "resident": 0} for n in (2, 4)]
    changes += [{"rows": n} for n in (4, 14)] + [{"resident": 0}]
    if role == BOTH:
        changes += [{"together": how, "resident": 0} for how in ("both", "apart")]
    for change in changes:
        tile = replace(first, **change)
        if tile not in seen:
            seen.append(tile)
    yield from seen


def instance(dtype: torch.dtype, role: int, slide: Slide, tile: Tile) -> Instance:
    """Return the kernel of a pass."""
    return Instance(
        "depthwise_pixels",
        (
            *(TYPES[dtype], role, slide.size, slide.stride, slide.dilation),
            *(tile.channels, tile.columns, tile.rows, tile.ahead),
        ),
        source="depthwise_conv2d" if role == FORWARD else "depthwise_conv2d_backward",
        threads=tile.threads,
        blocks=tile.resident,
    )


def finish_instance(dtype: torch.dtype, role: int, slide: Slide) -> Instance:
    """Return the kernel that adds up the filter's gradient."""
    return Instance(
        "depthwise_pixels_finish",
        (TYPES[dtype], slide.size, slide.stride, slide.dilation, bool(role & TURNED)),
        source="depthwise_conv2d_backward",
        threads=FINISHERS,
    )


def usual(dtype: torch.dtype, role: int, slide: Slide) -> Iterator[Instance]:
    """Yield the kernels of a slide."""
    yield instance(dtype, role, slide, choose(slide, dtype.itemsize, role))
    if role & SUMS:
        yield finish_instance(dtype, role, slide)


def _launch(
    device: torch.device, dtype: torch.dtype, slide: Slide, tile: Tile, role: int, splits: int = 0
) -> tuple[Launcher, int]:
    over, own, out = slide.over, slide.own, slide.out
    groups = ceil_div(out.channels, tile.channels)
    tiles = ceil_div(groups, LANES)
    lanes = ceil_div(groups, tiles)
    places = max(tile.threads // lanes, 1)
    across, down = (
        slide.apart * ceil_div(n, slide.apart * each)
        for n, each in ((out.width, tile.columns), (out.height, tile.rows))
    )
    count = out.images * across * down
    places = min(places, count)
    chunks = ceil_div(count, places)
    splits = splits or share(chunks, tiles, tile.resident or 4)
    launch = Launch(
        instance(dtype, role, slide, tile),
        device,
        tiles * splits,
        (lanes, places),
        shared=4 * slide.size * lanes * places * tile.channels if role & SUMS else 0,
        pointers=5,
        layout=PIXELS,
        values=(
            *(over.steps[0], own.steps[0], out.steps[0], slide.channel_step),
            *(*over.steps[2:], *own.steps[2:], *out.steps[2:], out.channels),
            *(over.height, over.width, out.height, out.width, *slide.pads),
            *(count, across * down, across, chunks, splits, tiles),
            *(*divisor(tiles), *divisor(across * down), *divisor(across)),
        ),
    )
    return launch, splits


def _finish(
    device: torch.device, dtype: torch.dtype, slide: Slide, role: int, splits: int, weight_grad: TensorMeta
) -> Launcher:
    over, own, out = slide.over, slide.own, slide.out
    return Launch(
        finish_instance(dtype, role, slide),
        device,
        ceil_div(slide.size**2 * out.channels, LANES),
        FINISHERS,
        pointers=4,
        layout=FINISH,
        values=(
            *(over.steps[0], own.steps[0], *target(weight_grad)),
            *(*over.steps[2:], *own.steps[2:], out.channels),
            *(over.height, over.width, out.height, out.width, *slide.pads, out.images, splits),
        ),
    )


def plan(
    device: torch.device,
    dtype: torch.dtype,
    slide: Slide,
    tile: Tile,
    role: int,
    weight_grad: TensorMeta | None = None,
) -> Callable[[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None], None]:
    """Return ``call(over, weight, own, out, weight_grad)``."""
    tile = replace(tile, channels=channels_of(slide, tile.channels))
    vector, splits = _launch(device, dtype, slide, tile, role)
    if tile.channels > 1:
        scalar, _ = _launch(device, dtype, slide, replace(tile, channels=1), role, splits)
        run = Guarded(vector, scalar)
    else:
        run = vector
    if weight_grad is None:

        def convolve(
            over: Tensor, weight: Tensor | None, own: Tensor | None, out: Tensor | None, _: Tensor | None
        ) -> None:
            run(over, weight, own, out, None)

        return convolve
    finish = _finish(device, dtype, slide, role, splits, weight_grad)
    size = splits * slide.size**2 * slide.out.channels

    def call(
        over: Tensor,
        weight: Tensor | None,
        own: Tensor | None,
        out: Tensor | None,
        weight_grad: Tensor | None,
    ) -> None:
        partials = torch.empty(size, dtype=torch.float32, device=device)
        run(over, weight, own, out, partials)
        finish(partials, over, own, weight_grad)

    return call
