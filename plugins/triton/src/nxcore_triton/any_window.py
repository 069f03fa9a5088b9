"""Any window: one target a lane, and loops over the taps, for windows too large to be unrolled."""

# mypy: ignore-errors

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from nxcore.plugin import TensorMeta, Window
from nxcore_triton import tile
from nxcore_triton.launch import Launch
from nxcore_triton.places import counted, first_tap, index_of
from nxcore_triton.rounding import narrow, widen
from nxcore_triton.strips import NARROW, Image


@triton.jit
def _target(sizes, INSIDE: tl.constexpr, WIDE: tl.constexpr, LANES: tl.constexpr):
    """Return which lanes have work, and the image, channel, row and column of each lane's target."""
    total, channels, height, width = sizes
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    if WIDE:
        lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    ok = lane < total
    if INSIDE:
        channel = lane % channels
        rest = lane // channels
        column = rest % width
        rest = rest // width
        row = rest % height
        image = rest // height
    else:
        column = lane % width
        rest = lane // width
        row = rest % height
        rest = rest // height
        channel = rest % channels
        image = rest // channels
    return ok, image, channel, row, column


@triton.jit
def _at(pointer, image, channel, row, column, strides):
    at = image.to(tl.int64) * strides[0] + channel.to(tl.int64) * strides[1]
    return pointer + at + row.to(tl.int64) * strides[2] + column.to(tl.int64) * strides[3]


@triton.jit(do_not_specialize=["scale"])
def look(
    x,
    weight,
    out,
    places,
    scale,
    sizes,
    x_size,
    x_strides,
    weight_strides,
    out_strides,
    place_strides,
    kernel,
    stride,
    padding,
    dilation,
    KIND: tl.constexpr,
    PLACES: tl.constexpr,
    COUNTED: tl.constexpr,
    PADDED: tl.constexpr,
    INSIDE: tl.constexpr,
    WIDE: tl.constexpr,
    LANES: tl.constexpr,
):
    """Write LANES outputs of windows on x."""
    ok, image, channel, row, column = _target(sizes, INSIDE, WIDE, LANES)
    top = row * stride[0] - padding[0]
    left = column * stride[1] - padding[1]
    other: tl.constexpr = -float("inf") if KIND == "maximum" else 0.0
    total = tl.full([LANES], other, tl.float32)
    best = first_tap(top, left, kernel, dilation, x_size, PLACES)
    for a in range(kernel[0]):
        for b in range(kernel[1]):
            i = top + a * dilation[0]
            j = left + b * dilation[1]
            on = ok & (i >= 0) & (i < x_size[0]) & (j >= 0) & (j < x_size[1])
            value = widen(tl.load(_at(x, image, channel, i, j, x_strides), on, other=other))
            if KIND == "correlation":
                at = channel.to(tl.int64) * weight_strides[0] + a * weight_strides[1] + b * weight_strides[2]
                total += value * widen(tl.load(weight + at, on, other=0.0))
            elif KIND == "mean":
                total += value
            else:
                larger = (value > total) | (value != value)
                total = tl.where(larger, value, total)
                best = tl.where(larger, a * kernel[1] + b, best)
    if KIND == "mean":
        if COUNTED:
            down = counted(row, kernel[0], stride[0], padding[0], x_size[0], PADDED)
            total = total / (down * counted(column, kernel[1], stride[1], padding[1], x_size[1], PADDED))
        else:
            total = total * scale
    tl.store(_at(out, image, channel, row, column, out_strides), narrow(total, out.dtype.element_ty), ok)
    if PLACES != "nothing":
        if PLACES == "index":
            best = index_of(best, top, left, kernel[1], dilation, x_size[1])
        at = _at(places, image, channel, row, column, place_strides)
        tl.store(at, best.to(places.dtype.element_ty), ok)


@triton.jit(do_not_specialize=["scale"])
def look_back(
    grad,
    weight,
    out,
    places,
    scale,
    sizes,
    x_size,
    grad_size,
    grad_strides,
    weight_strides,
    out_strides,
    place_strides,
    kernel,
    stride,
    padding,
    dilation,
    KIND: tl.constexpr,
    COUNTED: tl.constexpr,
    PADDED: tl.constexpr,
    INSIDE: tl.constexpr,
    WIDE: tl.constexpr,
    LANES: tl.constexpr,
):
    """Write the gradient of LANES inputs of windows, from that of the outputs."""
    ok, image, channel, row, column = _target(sizes, INSIDE, WIDE, LANES)
    total = tl.zeros([LANES], tl.float32)
    for a in range(kernel[0]):
        for b in range(kernel[1]):
            down = row + padding[0] - a * dilation[0]
            across = column + padding[1] - b * dilation[1]
            i = down // stride[0]
            j = across // stride[1]
            on = ok & (down >= 0) & (down % stride[0] == 0) & (i < grad_size[0])
            on = on & (across >= 0) & (across % stride[1] == 0) & (j < grad_size[1])
            value = widen(tl.load(_at(grad, image, channel, i, j, grad_strides), on, other=0.0))
            if KIND == "correlation":
                at = channel.to(tl.int64) * weight_strides[0] + a * weight_strides[1] + b * weight_strides[2]
                total += value * widen(tl.load(weight + at, on, other=0.0))
            elif KIND == "mean":
                if COUNTED:
                    n = counted(i, kernel[0], stride[0], padding[0], x_size[0], PADDED)
                    total += value / (n * counted(j, kernel[1], stride[1], padding[1], x_size[1], PADDED))
                else:
                    total += value * scale
            else:
                taken = tl.load(_at(places, image, channel, i, j, place_strides), on, other=0)
                total += tl.where(taken.to(tl.int32) == a * kernel[1] + b, value, 0.0)
    tl.store(_at(out, image, channel, row, column, out_strides), narrow(total, out.dtype.element_ty), ok)


@triton.jit
def dots_of_tap(
    grad,
    x,
    parts,
    sizes,
    span,
    x_size,
    grad_strides,
    x_strides,
    kernel,
    stride,
    padding,
    dilation,
    LANES: tl.constexpr,
):
    """Write the part of one element of a filter's gradient that span outputs of its channel make."""
    total, channels, height, width = sizes
    job = tl.program_id(0)
    channel = job // (kernel[0] * kernel[1])
    a = job // kernel[1] % kernel[0]
    b = job % kernel[1]
    first = tl.program_id(1).to(tl.int64) * span
    sums = tl.zeros([LANES], tl.float32)
    for start in range(first, tl.minimum(first + span, total), LANES):
        lane = start + tl.arange(0, LANES)
        column = lane % width
        row = lane // width % height
        image = lane // width // height
        i = row * stride[0] - padding[0] + a * dilation[0]
        j = column * stride[1] - padding[1] + b * dilation[1]
        on = (
            (lane < tl.minimum(first + span, total)) & (i >= 0) & (i < x_size[0]) & (j >= 0) & (j < x_size[1])
        )
        one = widen(tl.load(_at(grad, image, channel, row, column, grad_strides), on, other=0.0))
        sums += one * widen(tl.load(_at(x, image, channel, i, j, x_strides), on, other=0.0))
    part = tl.program_id(1).to(tl.int64) * channels * (kernel[0] * kernel[1])
    tl.store(parts + part + job, tl.sum(sums, 0))


def bind(
    kind: str,
    window: Window,
    source: TensorMeta,
    target: TensorMeta,
    *,
    back: bool = False,
    weight: TensorMeta | None = None,
    places: TensorMeta | None = None,
    said: str = "nothing",
    mean: tuple[bool, bool, float] = (False, False, 1.0),
) -> Callable[..., None]:
    """Return the launch of any window: ``launch(source, weight, target, places)``, None for what isn't used.

    Parameters
    ----------
    kind : str
        ``correlation``, ``mean`` or ``maximum``.
    source, target : TensorMeta
        Forward the window's image and outputs; back its outputs and image.
    said : str
        Of where a maximum lies: ``nothing``, its ``tap``, or its ``index`` on the plane.
    mean : (bool, bool, float)
        Whether each window has a divisor of its own, whether that counts the padding, and else the scale.
    """
    read, written = Image.of(source), Image.of(target)
    total = math.prod(written.shape)
    lanes = min(tile.power_of_two(total), 4096) if tile.INTERPRETED else 4 * tile.WARP
    counts, padded, scale = mean
    constants = {
        "KIND": kind,
        "COUNTED": counts,
        "PADDED": padded,
        "INSIDE": written.inside,
        "WIDE": max(total, read.span, written.span) >= NARROW,
        "LANES": lanes,
    }
    if not back:
        constants["PLACES"] = said
    grid = (tile.cdiv(total, lanes),)
    launch = Launch(look_back if back else look, grid, target.device, **constants)
    size = (read.shape[2:], read.strides)
    fixed = (
        (total, *written.shape[1:]),
        window.image,
        *(size if back else size[1:]),
        (0, 0, 0) if weight is None else (weight.strides[0], *weight.strides[2:]),
        written.strides,
        (0, 0, 0, 0) if places is None else Image.of(places).strides,
        window.kernel,
        window.stride,
        window.padding,
        window.dilation,
    )

    def run(x: Tensor, w: Tensor | None, out: Tensor, where: Tensor | None) -> None:
        tensors = (x, x if w is None else w, out, out if where is None else where)
        launch(tensors, *tensors, scale, *fixed)

    return run


def bind_dots(
    window: Window, grad: TensorMeta, x: TensorMeta
) -> tuple[TensorMeta, Callable[[Tensor, Tensor, Tensor], None]]:
    """Return the partial sums (parts, elements of all filters), and the launch that makes them."""
    read, seen = Image.of(grad), Image.of(x)
    images, channels, height, width = read.shape
    total, jobs = images * height * width, channels * window.taps
    lanes = min(tile.power_of_two(total), 4096) if tile.INTERPRETED else 8 * tile.WARP
    count = min(tile.cdiv(2 * tile.FILL, jobs), tile.cdiv(total, lanes))
    span = tile.cdiv(tile.cdiv(total, lanes), count) * lanes
    count = tile.cdiv(total, span)
    launch = Launch(dots_of_tap, (jobs, count), grad.device, LANES=lanes)
    fixed: Any = (
        (total, channels, height, width),
        span,
        window.image,
        read.strides,
        seen.strides,
        window.kernel,
        window.stride,
        window.padding,
        window.dilation,
    )

    def run(g: Tensor, image: Tensor, parts: Tensor) -> None:
        launch((g, image, parts), g, image, parts, *fixed)

    return TensorMeta((count, jobs), (jobs, 1), torch.float32, grad.device), run
