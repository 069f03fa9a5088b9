"""Depthwise convolution where neighbours in memory are of one row: a window slides down strips of a plane."""

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
    FILL,
    FORWARD,
    NARROW,
    SUMS,
    TARGET,
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
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher, ticket

WARP = 32
SLIDE = f"7q{TARGET}9i5I{3 * DIVISOR}"  # what follows the pointers of depthwise_slide_args
SPREAD = f"5q6i3I{3 * DIVISOR}"  # and of depthwise_spread_args
ROWS = (8, 7, 4)  # of a thread, most first


def load_of(slide: Slide, columns: int) -> int:
    """Return the most elements, up to ``columns``, of a vector that every row is whole ones of."""
    if slide.pads[1] != slide.dilation * (slide.size - 1) // 2:
        return 1
    images = (slide.over, slide.own, slide.out)
    return next((n for n in (8, 4, 2) if n <= columns and all(i.divides(n) for i in images)), 1)


def units(slide: Slide, tile: Tile) -> tuple[int, int]:
    """Return the strips across and down a plane."""
    across = ceil_div(slide.out.width, tile.columns)
    return across, slide.apart * ceil_div(slide.out.height, slide.apart * tile.rows)


def fits(seen: Window, weight: TensorMeta, *images: Image) -> bool:
    """Return whether there are kernels for this window over these images."""
    return (
        square(seen) is not None
        and dense_filter(weight)
        and all(i.in_rows and abs(i.steps[2]) < NARROW for i in images)
        and all(i.images * i.height * i.width < NARROW for i in images)
    )


def rows_of(height: int, threads: int) -> int:
    """Return how many rows of ``height`` a thread takes where one row each would make so many threads."""
    if threads < 16 * FILL * WARP * WARP:  # too few threads to hide how long memory takes
        return 4
    return min(ROWS, key=lambda rows: (ceil_div(height, rows) * rows, -rows))


def choose(slide: Slide, itemsize: int, role: int) -> Tile:
    """Return the tile of a pass."""
    out, k, both = slide.out, slide.size, role == BOTH
    wide = itemsize == 2 and out.width % 8 == 0 and not both and not (k == 7 and role & SUMS)
    columns = 8 if wide else 4
    threads = out.images * out.channels * out.height * ceil_div(out.width, columns)
    rows = rows_of(ceil_div(out.height, slide.apart), threads)
    # More rows take so many registers that too few warps are left to hide how long memory takes.
    if (k == 7 and (wide or role & SUMS)) or (k == 5 and both and itemsize == 4):
        rows = 4
    ahead = {3: 3, 5: 2, 7: 2} if both else {3: 4, 5: 4 if slide.stride == 1 else 3, 7: 2}
    resident = 3 if k == 7 and itemsize == 2 and role & SUMS and not both else 0
    return Tile(columns, rows, ahead[k], resident=resident, together="pair" if k == 7 else "both")


def candidates(first: Tile, role: int) -> Iterator[Tile]:
    """Yield the tiles worth timing, ``first`` before all others."""
    seen = [first]
    changes: list[dict[str, Any]] = [{"rows": rows} for rows in (4, 8, 7)]
    changes += [{"ahead": ahead} for ahead in (2, 3, 4, 6)]
    changes += [{"columns": 12 - first.columns, "rows": 4}]
    if role == BOTH:
        changes += [{"together": how} for how in ("both", "pair", "apart")]
        changes += [{"together": "both", "resident": 4}]
    for change in changes:
        tile = replace(first, **change)
        if tile not in seen:
            seen.append(tile)
    yield from seen


def instance(
    dtype: torch.dtype, role: int, slide: Slide, tile: Tile, load: int, *, pair: bool = False
) -> Instance:
    """Return the kernel of a pass."""
    return Instance(
        "depthwise_slide_pair" if pair else "depthwise_slide",
        (
            *(TYPES[dtype], role, slide.size, slide.stride, slide.dilation),
            *(tile.columns, load, tile.rows, tile.ahead),
        ),
        source="depthwise_conv2d" if role == FORWARD else "depthwise_conv2d_backward",
        args="depthwise_slide_args",
        threads=tile.threads,
        blocks=tile.resident,
    )


def usual(dtype: torch.dtype, role: int, slide: Slide) -> Iterator[Instance]:
    """Yield the kernel of a slide."""
    tile = choose(slide, dtype.itemsize, role)
    yield instance(dtype, role, slide, tile, load_of(slide, tile.columns))


def by_elements(tile: Tile, ahead: int = 1, resident: int = 0) -> Tile:
    """Return what a tile becomes where each element in flight takes a register of its own."""
    return replace(tile, columns=4, ahead=ahead, resident=resident)


def _threads(count: int, most: int) -> int:
    return min(most, ceil_div(count, WARP) * WARP)


def _launch(
    device: torch.device,
    dtype: torch.dtype,
    slide: Slide,
    tile: Tile,
    role: int,
    load: int,
    weight_grad: TensorMeta | None,
) -> tuple[Launcher, int]:
    pair = role == BOTH and tile.together == "pair"
    over, own, out = slide.over, slide.own, slide.out
    shares = 0
    if role & SUMS:  # of both launches, whose sums take the same memory
        vectors = out.images * math.prod(units(slide, tile))
        shares = share(
            ceil_div(vectors, _threads(vectors, tile.threads)),
            out.channels * (2 if pair else 1),
            tile.resident or 4,
        )
    if load == 1:
        tile = by_elements(tile)
    across, down = units(slide, tile)
    count = out.images * across * down
    threads = _threads(count, tile.threads)
    chunks = ceil_div(count, threads)
    splits = shares or chunks
    launch = Launch(
        instance(dtype, role, slide, tile, load, pair=pair),
        device,
        out.channels * splits * (2 if pair else 1),
        threads,
        pointers=7,
        layout=SLIDE,
        values=(
            *(*over.steps[:2], *own.steps[:2], *out.steps[:2], slide.channel_step),
            *target(weight_grad),
            *(over.steps[2], own.steps[2], out.channels),
            *(over.height, over.width, out.height, out.width, *slide.pads),
            *(count, across * down, across, chunks, splits),
            *(*divisor(out.channels), *divisor(across * down), *divisor(across)),
        ),
    )
    return launch, splits


def plan(
    device: torch.device,
    dtype: torch.dtype,
    slide: Slide,
    tile: Tile,
    role: int,
    weight_grad: TensorMeta | None = None,
) -> Callable[[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None], None]:
    """Return ``call(over, weight, own, out, weight_grad)``."""
    load = load_of(slide, tile.columns)
    scalar, splits = _launch(device, dtype, slide, tile, role, 1, weight_grad)
    vector, most = _launch(device, dtype, slide, tile, role, load, weight_grad) if load > 1 else (None, 1)
    run = Guarded(vector, scalar)
    size, channels = slide.out.channels * max(splits, most) * slide.size**2, slide.out.channels

    def call(
        over: Tensor,
        weight: Tensor | None,
        own: Tensor | None,
        out: Tensor | None,
        weight_grad: Tensor | None,
    ) -> None:
        if weight_grad is None:
            run(over, weight, own, out, None, None, None)
        else:
            partials = torch.empty(size, dtype=torch.float32, device=device)
            run(over, weight, own, out, weight_grad, partials, ticket(device, channels))

    return call


def spreads(seen: Window, weight: TensorMeta, grad: Image, x_grad: Image) -> bool:
    """Return whether there is a kernel for the image's gradient at this stride, which is 2."""
    k, s, d = square(seen) or (0, 0, 0)
    return (
        s == 2
        and fits(seen, weight, grad, x_grad)
        and x_grad.packed_rows
        and seen.padding == (d * (k - 1) // 2,) * 2
    )


def spread_instance(dtype: torch.dtype, size: int, dilation: int, tile: Tile, load: int) -> Instance:
    """Return the kernel of the image's gradient at stride 2."""
    return Instance(
        "depthwise_spread",
        (TYPES[dtype], size, dilation, 4, load, 4, tile.ahead),
        source="depthwise_conv2d_backward",
        threads=tile.threads,
        blocks=tile.resident,
    )


def plan_spread(
    dtype: torch.dtype, device: torch.device, slide: Slide, grad: Image, x_grad: Image, tile: Tile
) -> Callable[[Tensor, Tensor, Tensor], None]:
    """Return ``call(grad, weight, x_grad)``; the slide is that of the filter's gradient."""
    across, down = ceil_div(grad.width, 4), ceil_div(grad.height, 4)
    # An image of even size ends beside the last output that sees it.
    across, down = max(across, ceil_div(x_grad.width, 8)), max(down, ceil_div(x_grad.height, 8))
    count = grad.images * across * down
    threads = _threads(count, tile.threads)
    tile = replace(tile, resident=0)  # chosen for the filter's gradient
    values = (
        *(*grad.steps[:2], *x_grad.steps[:2], slide.channel_step),
        *(grad.steps[2], grad.channels, grad.height, grad.width, x_grad.height, x_grad.width),
        *(count, across * down, across),
        *(*divisor(grad.channels), *divisor(across * down), *divisor(across)),
    )

    single = by_elements(tile, 2, 1)

    def launch(load: int) -> Launcher:
        return Launch(
            spread_instance(dtype, slide.size, slide.dilation, tile if load > 1 else single, load),
            device,
            grad.channels * ceil_div(count, threads),
            threads,
            pointers=3,
            layout=SPREAD,
            values=values,
        )

    load = next((n for n in (4, 2) if grad.divides(n) and x_grad.divides(n)), 1)
    return Guarded(launch(load) if load > 1 else None, launch(1))
