"""Triton kernels for nxcore: what this machine and each call must be like for them.

Importing this module doesn't import triton; each kernel's own file does, on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import torch

from nxcore.ops.sep_conv2d_batch_norm import accepted
from nxcore.ops.sep_conv2d_batch_norm_backward import accepted as accepted_backward
from nxcore.ops.sep_conv2d_with_stats import part
from nxcore.plugin import (
    FLOATS,
    YES,
    Backend,
    Check,
    Kernel,
    Problem,
    Reduction,
    Rows,
    TensorMeta,
    Verdict,
    alike,
    broadcast_strides,
    collapse,
    hookimpl,
    no,
    overlaps,
    simulated,
)
from nxcore_triton import tile
from nxcore_triton.candidates import candidate, gradient

API = 1
SINGLE = (torch.float32,)
TRITON = (3, 6)  # kernels take tuples of pointers and keep tuples of sums across a loop
MAX_CANDIDATES = 64  # each has a weight, and in the backward pass a sum, in registers
MAX_RANK = 4
MAX_KEPT = MAX_REDUCED = 3


def _installed() -> str | None:
    try:
        return version("triton")  # not find_spec: any folder of that name would satisfy it
    except PackageNotFoundError:
        return None


def _triton() -> Verdict:
    found, needed = _installed(), ".".join(map(str, TRITON))
    if found is None:
        return no("triton is not installed", hint=f"pip install 'triton>={needed}'")
    release = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if release < TRITON:
        return no(f"needs triton >= {needed}, found {found}", hint=f"pip install 'triton>={needed}'")
    return YES


def probe() -> Verdict:
    """Answer whether Triton can run on this machine."""
    toolkit = _triton()
    if not toolkit:
        return toolkit
    if tile.INTERPRETED:
        return simulated("TRITON_INTERPRET=1: Triton's interpreter runs it on the CPU")
    if not torch.cuda.is_available():
        return no(
            "torch sees no CUDA device",
            hint="install a torch built for the GPU, or set TRITON_INTERPRET=1 to run on the CPU, slowly",
        )
    return YES


def _tensors(problem: Problem) -> Verdict:
    """Refuse tensors elsewhere, or of other dtypes."""
    place, kind = ("CPU", "cpu") if tile.INTERPRETED else ("CUDA", "cuda")
    for meta in problem.tensors:
        if meta.device.type != kind:
            condition = " under TRITON_INTERPRET=1" if tile.INTERPRETED else ""
            return no(f"needs {place} tensors{condition}, got {meta.device}")
        if meta.dtype not in FLOATS:
            return no(f"needs float32, float16 or bfloat16, got {_name(meta.dtype)}")
    return YES


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _rank(sizes: tuple[int, ...], what: str) -> Verdict:
    if len(sizes) > MAX_RANK:
        return no(f"takes {what} of at most {MAX_RANK} dimensions after merging, got {len(sizes)}: {sizes}")
    return YES


def _candidates(problem: Problem) -> Verdict:
    if not (found := _tensors(problem)):
        return found
    xs = problem["xs"]
    one, count, _ = candidate(xs)
    if count > MAX_CANDIDATES:
        return no(f"takes at most {MAX_CANDIDATES} candidates, got {count}")
    if isinstance(xs, tuple):
        for x in xs:
            if x.strides_of_extent != one.strides_of_extent:
                return no(f"needs one layout for all candidates, got strides {one.strides} and {x.strides}")
    return YES


def accepts_softmax_sum(problem: Problem) -> Verdict:
    """Take candidates of one layout, whatever it is, up to a count."""
    if not (found := _candidates(problem)):
        return found
    one, _, _ = candidate(problem["xs"])
    out = problem.outputs
    if not out.is_dense():
        return no(f"needs an output without gaps, got strides {out.strides}")
    sizes, _ = collapse(out.shape, out.strides, one.strides)
    return _rank(sizes, "candidates and output")


def accepts_softmax_sum_backward(problem: Problem) -> Verdict:
    """Take candidates of one layout and a gradient of any."""
    if not (found := _candidates(problem)):
        return found
    one, _, _ = candidate(problem["xs"])
    out, _ = gradient(problem)
    if not out.is_dense():
        return no(f"needs a gradient of each candidate without gaps, got strides {out.strides}")
    sizes, _ = collapse(out.shape, out.strides, problem["grad"].strides, one.strides)
    return _rank(sizes, "grad and candidates")


def accepts_add(problem: Problem) -> Verdict:
    """Take two tensors that broadcast in few dimensions, of any two float dtypes."""
    if not (found := _tensors(problem)):
        return found
    x, y, out = problem["x"], problem["y"], problem["out"]
    if not isinstance(y, TensorMeta):
        return no(f"needs a tensor for y, got a number ({y.__name__})")
    if x.dtype != y.dtype and 0 in (x.ndim, y.ndim):
        return no(f"needs a 0-d operand of the other's dtype, got {_name(x.dtype)} and {_name(y.dtype)}")
    out = problem.outputs if out is None else out
    if overlaps(out):
        return no(f"needs an out whose elements don't share memory, got strides {out.strides}")
    if alike(out, x, y):
        return YES
    sizes, _ = collapse(out.shape, out.strides, *(broadcast_strides(m, out.shape) for m in (x, y)))
    return _rank(sizes, "operands")


def _reduction(reduction: Reduction) -> Verdict:
    kept, reduced = len(reduction.kept), len(reduction.reduced)
    if kept > MAX_KEPT or reduced > MAX_REDUCED:
        return no(
            f"takes at most {MAX_KEPT} kept and {MAX_REDUCED} summed dimensions after merging, "
            f"got {kept} and {reduced}"
        )
    return YES


def accepts_sum(problem: Problem) -> Verdict:
    """Take sums over any axes that merge to few."""
    if not (found := _tensors(problem)):
        return found
    return _reduction(Reduction.of_sum(problem))


def accepts_add_backward(problem: Problem) -> Verdict:
    """Take gradients of which at least one is a sum."""
    if not (found := _tensors(problem)):
        return found
    needed = [r for r in Reduction.of_add_backward(problem) if r is not None]
    return next((v for v in map(_reduction, needed) if not v), YES)


def accepts_sum_to_size(problem: Problem) -> Verdict:
    """Take sums over any axes that merge to few, of which there is at least one."""
    if not (found := _tensors(problem)):
        return found
    reduction = Reduction.of_sum_to_size(problem)
    return YES if reduction is None else _reduction(reduction)


def accepts_window(problem: Problem) -> Verdict:
    """Take any window on images of any layout, or no window."""
    return _tensors(problem)


def accepts_max_pool2d_backward(problem: Problem) -> Verdict:
    """Take any window, and a gradient and offsets of any layouts."""
    offsets = problem["offsets"]
    if offsets.dtype not in (torch.uint8, torch.int32):
        return no(f"needs uint8 or int32 offsets, got {_name(offsets.dtype)}")
    if offsets.device != problem["grad"].device:
        return no(f"needs offsets on the device of grad, {problem['grad'].device}, got {offsets.device}")
    floating = tuple(None if arg is offsets else arg for arg in problem.args)
    return _tensors(replace(problem, args=floating))


def accepts_rows(problem: Problem) -> Verdict:
    """Take short rows that lie evenly in memory."""
    if not (found := _tensors(problem)):
        return found
    if (length := problem["logits"].shape[-1]) > tile.LONGEST_ROW:
        return no(f"takes rows of at most {tile.LONGEST_ROW} entries, got {length}")
    if problem.op == "gumbel_softmax_backward" and any((problem["output_mask"] or ())[1:]):
        return no("computes the gradient of the logits alone, and output_mask asks for more")
    return YES if Rows.of(problem) else no("needs rows that lie at one step from each other in every tensor")


def _channels(problem: Problem, images: tuple[str, ...], factors: tuple[str, ...]) -> Verdict:
    if not (found := _tensors(problem)):
        return found
    metas = [problem[name] for name in images]
    shape = metas[0].shape
    if shape[1] >= 2**16:
        return no(f"takes fewer than 2^16 channels, got {shape[1]}")
    if metas[0].numel() // shape[1] >= 2**30:
        return no(f"takes channels of fewer than 2^30 values, got {metas[0].numel() // shape[1]}")
    for name, meta in zip(images, metas, strict=True):
        if shape[1] > 1 and meta.strides[1] == 1:
            return no(f"needs each channel's elements side by side, and {name} has strides {meta.strides}")
    for name in factors:
        meta = problem[name]
        if meta is not None and not meta.is_contiguous():
            return no(f"needs {name} without gaps, got strides {meta.strides}")
    rest = [(m.strides[0], *m.strides[2:]) for m in metas]
    return _rank(collapse((shape[0], *shape[2:]), *rest)[0], "a channel's images")


def accepts_batch_norm(problem: Problem) -> Verdict:
    """Take images whose channels aren't innermost, of any other layout."""
    return _channels(problem, ("x",), ("weight", "bias"))


def accepts_batch_norm_backward(problem: Problem) -> Verdict:
    """Take images and gradients whose channels aren't innermost, and at least one gradient to make."""
    return _channels(problem, ("x", "grad"), ("mean", "var", "weight"))


def accepts_sep_conv2d_with_stats(problem: Problem) -> Verdict:
    """Take what sep_conv2d takes."""
    return accepts_window(part(problem))


def accepts_sep_conv2d_batch_norm(problem: Problem) -> Verdict:
    """Take what sep_conv2d and batch_norm take."""
    return accepted(problem, accepts_window, accepts_batch_norm)


def accepts_sep_conv2d_batch_norm_backward(problem: Problem) -> Verdict:
    """Take what batch_norm_backward and sep_conv2d_backward take."""
    return accepted_backward(problem, accepts_batch_norm_backward, accepts_window)


def _kernel(
    op: str,
    accepts: Callable[[Problem], Verdict],
    *,
    dtypes: tuple[torch.dtype, ...] = FLOATS,
    in_place_safe: bool = False,
) -> Kernel:
    return Kernel(
        op,
        f"nxcore_triton.{op}:plan",
        accepts,
        dtypes=dtypes,
        deterministic=True,
        graph_safe=True,
        in_place_safe=in_place_safe,
    )


KERNELS = (
    _kernel("softmax_sum", accepts_softmax_sum),
    _kernel("softmax_sum_backward", accepts_softmax_sum_backward),
    _kernel("weighted_sum", accepts_softmax_sum),
    _kernel("weighted_sum_backward", accepts_softmax_sum_backward),
    _kernel("add", accepts_add, in_place_safe=True),
    _kernel("add_backward", accepts_add_backward),
    _kernel("sum", accepts_sum),
    _kernel("sum_to_size", accepts_sum_to_size),
    _kernel("batch_norm", accepts_batch_norm),
    _kernel("batch_norm_backward", accepts_batch_norm_backward),
    _kernel("max_pool2d", accepts_window),
    _kernel("max_pool2d_with_offsets", accepts_window),
    _kernel("max_pool2d_backward", accepts_max_pool2d_backward),
    _kernel("avg_pool2d", accepts_window),
    _kernel("avg_pool2d_backward", accepts_window),
    _kernel("global_avg_pool2d", accepts_window),
    _kernel("global_max_pool2d", accepts_window),
    _kernel("global_max_pool2d_with_offsets", accepts_window),
    _kernel("global_max_pool2d_backward", accepts_max_pool2d_backward),
    _kernel("depthwise_conv2d", accepts_window),
    _kernel("depthwise_conv2d_backward", accepts_window),
    _kernel("sep_conv2d", accepts_window),
    _kernel("sep_conv2d_backward", accepts_window),
    _kernel("sep_conv2d_with_stats", accepts_sep_conv2d_with_stats, dtypes=SINGLE),
    _kernel("sep_conv2d_batch_norm", accepts_sep_conv2d_batch_norm, dtypes=SINGLE),
    _kernel("sep_conv2d_batch_norm_backward", accepts_sep_conv2d_batch_norm_backward, dtypes=SINGLE),
    _kernel("entropy", accepts_rows),
    _kernel("entropy_backward", accepts_rows),
    _kernel("gumbel_softmax", accepts_rows),
    _kernel("gumbel_softmax_backward", accepts_rows),
)


@hookimpl
def nxcore_backend() -> Backend:
    """Hand over this backend."""
    return Backend("triton", probe, KERNELS, api=API)


@hookimpl
def nxcore_doctor() -> Iterable[Check]:
    """Show Triton's version, and what would run the kernels."""
    toolkit, machine = _triton(), probe()
    needed = torch.cuda.is_available()  # what is for a device that isn't here is no fault
    yield Check("triton", toolkit.ok or not needed, _installed() or "not installed", toolkit.hint)
    if toolkit:
        device = torch.cuda.get_device_name() if machine and not machine.simulated else machine.reason
        yield Check("triton device", True, device, machine.hint)  # to have none is no fault
