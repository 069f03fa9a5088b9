"""Requirements of the kernels on the machine and on a call. Imports no toolkit."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from nxcore.plugin import (
    FLOATS,
    YES,
    Code,
    Place,
    Problem,
    Reduction,
    TensorMeta,
    Verdict,
    Window,
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
    overlaps,
    simulated,
    summed_rows,
    turned_rows,
    whole_groups,
)
from nxcore_cuda import direct, direct_filters, separable
from nxcore_cuda.candidates import FEW, MANY, SOME, STACKED, Candidates, gradient, part
from nxcore_cuda.layout import MAX_RANK, NARROW
from nxcore_cuda.machine import host, load, toolkit
from nxcore_cuda.machine.compile import shipped
from nxcore_cuda.points import Points
from nxcore_cuda.points import choose as points_tile
from nxcore_cuda.separable import Layer

PACKAGES = "'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*'"
TOOLKIT = f"pip install {PACKAGES}, or install the CUDA toolkit and set CUDA_HOME"
LONGEST = 1024  # entries of a row that a warp holds in registers
CHANNELS, TAPS = 16, 49  # of a group of conv2d, in and out, and of a filter: more is cuDNN's
MOST = 65535  # blocks of a grid along y


def capable(index: int) -> Verdict:
    """Return whether a device and its driver are recent enough."""
    try:
        capability = load.capability(index)
    except (OSError, load.DriverError) as error:
        return no(f"the CUDA driver can't be used: {error}", hint="install a driver for CUDA 12 or later")
    spelt = ".".join(map(str, capability))
    if capability < toolkit.LEAST_CAPABILITY:
        least = ".".join(map(str, toolkit.LEAST_CAPABILITY))
        return no(f"needs a device of capability {least} or later, got {spelt}")
    return YES


@functools.cache
def device(index: int) -> Verdict:
    """Return whether kernels run on a device: its capability, and something to have images from."""
    if not (found := capable(index)):
        return found
    capability = load.capability(index)
    if any(toolkit.runs_on(image["archs"], capability) for image in shipped().values()):
        return YES
    if toolkit.nvcc():
        return YES
    spelt = ".".join(map(str, capability))
    return no(f"the wheel has no image for capability {spelt}, and no nvcc is {toolkit.PLACES}", hint=TOOLKIT)


def probe() -> Verdict:
    """Return whether this machine runs the kernels."""
    if toolkit.EMULATED:
        if toolkit.host_compiler() is None:
            return no("NXCORE_CUDA_EMULATOR needs a C++ compiler, and neither g++ nor c++ is on PATH")
        return simulated("NXCORE_CUDA_EMULATOR: g++ compiles the kernels, and the CPU runs them")
    if torch.version.hip is not None:
        return no("torch was built for ROCm, and these kernels are CUDA")
    if not torch.cuda.is_available():
        return no(
            "torch sees no CUDA device",
            hint="install a torch built for CUDA, or set NXCORE_CUDA_EMULATOR=1 to run on the CPU, slowly",
        )
    found = [device(index) for index in range(torch.cuda.device_count())]
    return next((verdict for verdict in found if verdict), found[0])


def _place() -> Place:
    if toolkit.EMULATED and host.current() is None:
        return Place("cpu", " under NXCORE_CUDA_EMULATOR")
    return Place("cuda")


def _capable(problem: Problem) -> Verdict:
    """Answer for the device of a call."""
    other = host.current()
    if other is None and toolkit.EMULATED:
        return YES
    answer = device if other is None else other.device
    return replace(answer(problem.device.index or 0), code=Code.MACHINE)


def _candidates(problem: Problem) -> Verdict:
    """Take candidates of any layouts, up to a count."""
    xs = Candidates.of(problem["xs"])
    alike = len(xs.layouts) == 1
    most = STACKED if xs.stacked else MANY if alike else SOME
    if xs.count <= max(most, FEW):
        return YES
    what = "stacked candidates" if xs.stacked else "candidates" if alike else "candidates of several layouts"
    return no(f"takes at most {most} {what}, got {xs.count}", code=Code.SIZE)


def _blended(problem: Problem) -> Verdict:
    """Take few dimensions, which candidates, results and the gradient have together."""
    backward = problem.op.endswith("_backward")
    out = gradient(problem)[0] if backward else problem.outputs
    if overlaps(out):
        why = f"needs results without elements that share memory, got strides {out.strides}"
        return no(why, code=Code.LAYOUT)
    walked = (*((problem["grad"],) if backward else ()), *Candidates.of(problem["xs"]).layouts)
    return merged(collapse(out.shape, out.strides, *(m.strides for m in walked))[0], MAX_RANK)


def _largest(problem: Problem) -> int:
    """Return the elements of the largest image."""
    outputs = problem.outputs if isinstance(problem.outputs, tuple) else (problem.outputs,)
    first: TensorMeta = problem["grad"] if problem.op.endswith("_backward") else problem["x"]
    metas: tuple[TensorMeta, ...] = (first, *outputs)
    return max(math.prod(meta.shape[-3:]) for meta in metas)


def _separable(problem: Problem) -> Verdict:
    """Take ordinary windows of any layout, where a row of outputs fits into shared memory."""
    back = problem.op == "sep_conv2d_backward"
    layer = Layer.of(problem, problem["grad"] if back else problem.outputs)
    return _banded(layer, separable.window(problem), problem.device, back=back)


def _banded(layer: Layer, seen: Window, device: torch.device, *, back: bool) -> Verdict:
    """Take ordinary windows, where a row of outputs fits into shared memory."""
    if separable.square(seen) is None:
        return no(
            "takes square filters of 1, 3, 5 or 7, a stride and a dilation of 1 or 2, got "
            f"{seen.kernel}, {seen.stride} and {seen.dilation}",
            code=Code.SIZE,
        )
    if back and max(layer.pads) > layer.reach:
        why = f"takes a padding of at most {layer.reach}, the reach of the filter, got {layer.pads}"
        return no(why, code=Code.SIZE)
    if separable.choose(layer, device, back=back) is None:
        x, made = layer.x, layer.y.channels
        return no(
            f"a row of outputs doesn't fit into {separable.memory(device)} bytes of shared memory: "
            f"x has shape {(x.images, x.channels, x.height, x.width)}, pw_weight {(made, x.channels, 1, 1)}",
            code=Code.SIZE,
        )
    return YES


def _shared(problem: Problem) -> Verdict:
    """Take windows of which a tile of one image fits into shared memory."""
    if (wanted := max(_tiles(problem))) <= direct.MOST:
        return YES
    window = f"the window stride {problem['stride']}, dilation {problem['dilation']}"
    why = f"a tile takes {wanted} of {direct.MOST} bytes of shared memory: x has shape {problem['x'].shape}"
    return no(f"{why}, {window}", code=Code.SIZE)


def _tiles(problem: Problem) -> Iterator[int]:
    """Yield the bytes that a tile of each launch of a direct convolution takes."""
    back = problem.op == "conv2d_backward"
    if not back or problem.outputs[0] is not None:
        for layer in direct.Layer.turned(problem) if back else [direct.Layer.of(problem)]:
            yield direct.Floats.of(layer, direct.choose(layer)).bytes
    if back and any(out is not None for out in problem.outputs[1:]):
        shape = direct_filters.Shape.of(problem)
        yield direct_filters.Block.of(shape, direct_filters.choose(shape)).bytes


def _weights_of_points(problem: Problem) -> Verdict:
    """Take filters that fit into a block's shared memory, channels out by channels out."""
    back = problem.op.endswith("_backward")
    if back and problem.outputs[0] is None:
        return YES
    made = Points.turned_of(problem) if back else Points.of(problem)
    if (wanted := made.bytes(points_tile(made))) <= direct.MOST:
        return YES
    why = f"a block's filters take {wanted} of {direct.MOST} bytes of shared memory"
    return no(f"{why}: weight has shape {problem['weight'].shape}", code=Code.SIZE)


def _pixels(problem: Problem) -> int:
    """Return how many pixels the images have."""
    x = problem["x"]
    return math.prod((x.shape[0], *x.shape[2:]))


def _tensor_cores(problem: Problem) -> Verdict:
    """Take devices whose tensor cores multiply numbers of 11 bits."""
    if toolkit.EMULATED and host.current() is None:
        return YES
    found = load.capability(problem.device.index or 0)
    if found >= (8, 0):
        return YES
    spelt = ".".join(map(str, found))
    return no(f"needs a device of capability 8.0 or later, got {spelt}", code=Code.MACHINE)


def _whole_rows(problem: Problem) -> Verdict:
    """Take matrices whose rows have their elements side by side."""
    xs = problem["xs"]
    for x in (part(xs),) if isinstance(xs, TensorMeta) else xs:
        if x.shape[1] > 1 and x.strides[1] != 1:
            why = f"needs rows of elements that are side by side, got strides {x.strides}"
            return no(why, code=Code.LAYOUT)
    return YES


def _bands_of_each(problem: Problem) -> Verdict:
    """Take convolutions that sep_conv2d or its gradient takes."""
    back = problem.op.endswith("_backward")
    for layer, seen in zip(separable.layers(problem), separable.windows(problem), strict=True):
        if not (answer := _banded(layer, seen, problem.device, back=back)):
            return answer
    return YES


def _norms_of_each(problem: Problem) -> Verdict:
    """Take results of one layout, channels not innermost, of few dimensions; statistics without gaps."""
    ys, normed = _norm_inputs(problem), separable.flags(problem)
    if not ys:
        return YES
    others = problem["grads"] if problem.op.endswith("_backward") else problem.outputs[0]
    lists = (ys, [other for other, norm in zip(others, normed, strict=True) if norm])
    for metas in lists:
        if len({meta.strides_of_extent for meta in metas}) > 1:
            why = f"needs normalised results of one layout, got strides {metas[0].strides} and others"
            return no(why, code=Code.LAYOUT)
        if metas[0].shape[1] > 1 and metas[0].strides[1] == 1:
            why = f"needs each channel's elements side by side, got strides {metas[0].strides}"
            return no(why, code=Code.LAYOUT)
    if not ys[0].is_dense():
        return no(f"needs inputs of norms without gaps, got strides {ys[0].strides}", code=Code.LAYOUT)
    for name in ("mean", "var") if problem.op.endswith("_backward") else ():
        if not problem[name].is_contiguous():
            return no(f"needs {name} without gaps, got strides {problem[name].strides}", code=Code.LAYOUT)
    shape, rest = ys[0].shape, [(m.strides[0], *m.strides[2:]) for m, *_ in lists]
    return merged(collapse((shape[0], *shape[2:]), *rest)[0], MAX_RANK)


def _norm_inputs(problem: Problem) -> tuple[TensorMeta, ...]:
    found: tuple[TensorMeta, ...] = problem["ys"] if problem.op.endswith("_backward") else problem.outputs[1]
    return found


def _channels_of_many(problem: Problem) -> Verdict:
    """Take tensors of one layout, channels not innermost, of few dimensions; statistics without gaps."""
    xs, back = problem["xs"], problem.op.endswith("_backward")
    if len({x.strides_of_extent for x in xs}) > 1:
        return no(f"needs tensors of one layout, got strides {xs[0].strides} and others", code=Code.LAYOUT)
    images = (xs[0], problem["grad"]) if back else (xs[0],)
    for meta in images:
        if meta.shape[1] > 1 and meta.strides[1] == 1:
            why = f"needs each channel's elements side by side, got strides {meta.strides}"
            return no(why, code=Code.LAYOUT)
    for name in ("mean", "var") if back else ():
        if not problem[name].is_contiguous():
            return no(f"needs {name} without gaps, got strides {problem[name].strides}", code=Code.LAYOUT)
    rest = [(m.strides[0], *m.strides[2:]) for m in images]
    shape = xs[0].shape
    return merged(collapse((shape[0], *shape[2:]), *rest)[0], MAX_RANK)


def _terms(problem: Problem) -> int:
    """Return how many terms of an output are numbered."""
    return Reduction.of_numbered(problem).terms


takes = partial(needs, _capable, device=_place)
_few = at_most(NARROW - 1, "elements of an image", _largest)
blend = takes(_candidates, _blended)
add = takes(cpu_numbers=True, rank=MAX_RANK)
product = takes(products=MAX_RANK)
split_product = takes(_tensor_cores, products=MAX_RANK)
sums = takes(sums=MAX_RANK)
numbered = takes(at_most(NARROW - 1, "terms of an output to number", _terms), sums=MAX_RANK)
expressions = takes(fits(FLOATS, MAX_RANK), dtypes=(*FLOATS, torch.bool))
planes = takes()
images = takes(_few)
offsets = takes(_few, integers=("offsets",))
matrices = takes(
    at_most(NARROW - 1, "columns", lambda problem: problem.outputs.shape[0]),
    at_most(NARROW - 1, "rows", lambda problem: max(x.shape[-2] for x in problem.tensors)),
    _whole_rows,
)
convolution = takes(distinct=True)
direct_convolution = takes(few_channels(CHANNELS, TAPS), _shared)
points = takes(at_most(NARROW - 1, "pixels", _pixels), _weights_of_points)
separable_convolution = takes(_separable, distinct=True)
convolutions = takes(
    at_most(MOST, "channels out", lambda problem: problem["pw_weights"][0].shape[0]),
    _bands_of_each,
    _norms_of_each,
    distinct=True,
    dtypes=(torch.float32,),
)
rows = takes(rows=LONGEST, one_gradient=True)
axis = takes(one_axis)
last = takes(last_axes)
losses = takes(of_classes, dtypes=(*FLOATS, torch.int64))
groups = takes(whole_groups)
turned = takes(turned_rows, one_gradient=True)
summed = takes(summed_rows, dtypes=(*FLOATS, torch.int32, torch.int64))
norm = takes(
    at_most(MOST, "channels", lambda problem: problem["x"].shape[1]),
    channels=MAX_RANK,
)

norms = takes(
    at_most(SOME, "tensors", lambda problem: len(problem["xs"])),
    at_most(MOST, "channels", lambda problem: problem["xs"][0].shape[1]),
    _channels_of_many,
)


def block(problem: Problem) -> Verdict:
    """Take what sep_conv2d and the batch norm behind it take."""
    convolution_part, norm_part = problem.parts
    assert convolution_part is not None  # noqa: S101  both always run
    assert norm_part is not None  # noqa: S101  likewise
    return separable_convolution(convolution_part) and norm(norm_part)
