"""Requirements of the kernels on a call. Imports no toolkit."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from nxcore.plugin import (
    FLOATS,
    YES,
    Code,
    Place,
    Problem,
    Verdict,
    at_most,
    collapse,
    few_channels,
    fits,
    last_axes,
    merged,
    needs,
    no,
    of_classes,
    one_axis,
    summed_rows,
    turned_rows,
    whole_groups,
)
from nxcore_triton import tile
from nxcore_triton.candidates import candidate, gradient

MAX_CANDIDATES = 64  # each has a weight, and in the backward pass a sum, in registers
MAX_RANK = 4
CHANNELS, TAPS = 16, 49  # of a group of conv2d, in and out, and of a filter: more is cuDNN's
MAX_SUMMED = 3
PARTS = 110592  # bytes of shared memory: three steps of parts of 192 x 32 numbers


def _place() -> Place:
    return Place("cpu", " under TRITON_INTERPRET=1") if tile.INTERPRETED else Place("cuda")


def _blend(problem: Problem) -> Verdict:
    """Take candidates of one layout, whatever it is, up to a count, and a gradient of any."""
    xs = problem["xs"]
    one, count, _ = candidate(xs)
    if count > MAX_CANDIDATES:
        return no(f"takes at most {MAX_CANDIDATES} candidates, got {count}", code=Code.SIZE)
    for x in xs if isinstance(xs, tuple) else ():
        if x.strides_of_extent != one.strides_of_extent:
            why = f"needs one layout for all candidates, got strides {one.strides} and {x.strides}"
            return no(why, code=Code.LAYOUT)
    backward = problem.op.endswith("_backward")
    out = gradient(problem)[0] if backward else problem.outputs
    if not out.is_dense():
        return no(f"needs results without gaps, got strides {out.strides}", code=Code.LAYOUT)
    walked = (problem["grad"], one) if backward else (one,)
    return merged(collapse(out.shape, out.strides, *(m.strides for m in walked))[0], MAX_RANK)


def _pixels(problem: Problem) -> int:
    """Return the pixels of an image that a convolution, or its gradient, writes."""
    out = problem["x"] if problem.op.endswith("_backward") else problem.outputs
    return math.prod(out.shape[-2:])


def _ample(problem: Problem) -> Verdict:
    """Take devices whose blocks may hold the steps of a product of parts in shared memory."""
    if problem.device.type != "cuda":  # the interpreter has as much as anyone wants
        return YES
    properties: Any = torch.cuda.get_device_properties(problem.device)
    found = getattr(properties, "shared_memory_per_block_optin", 0)  # ROCm doesn't say
    if found >= PARTS:
        return YES
    return no(f"needs {PARTS} bytes of shared memory, the device has {found}", code=Code.DEVICE)


takes = partial(needs, device=_place)
images = takes()
blend = takes(_blend)
add = takes(tensors=True, alike_numbers=True, rank=MAX_RANK)
expressions = takes(fits(FLOATS, MAX_RANK), dtypes=(*FLOATS, torch.bool))
GENERATED = (
    *(
        f"nxcore_triton.functions:{name}"
        for name in ("expm1", "log1p", "tanh", "sigmoid", "sign", "minimum", "maximum")
    ),
    "nxcore_triton.index:offset",
    "nxcore_triton.rounding:narrow",
    "nxcore_triton.rounding:widen",
)
"""The functions that generated code uses, by names in its text."""

direct_convolution = takes(
    few_channels(CHANNELS, TAPS),
    at_most(2**30, "pixels of an output", _pixels),
)
product = takes(products=MAX_RANK)
parts = takes(_ample, products=MAX_RANK)
sums = takes(sums=MAX_SUMMED)
offsets = takes(integers=("offsets",))
rows = takes(rows=tile.LONGEST_ROW, one_gradient=True)
axis = takes(one_axis)
scan = takes(one_axis)
last = takes(last_axes)
losses = takes(of_classes, dtypes=(*FLOATS, torch.int64))
groups = takes(whole_groups)
looked_up = takes(summed_rows, dtypes=(*FLOATS, torch.int32, torch.int64))
turned = takes(turned_rows, one_gradient=True)
norm = takes(
    at_most(2**16 - 1, "channels", lambda problem: problem["x"].shape[1]),
    at_most(2**30 - 1, "values of a channel", lambda problem: problem["x"].numel() // problem["x"].shape[1]),
    channels=MAX_RANK,
)
