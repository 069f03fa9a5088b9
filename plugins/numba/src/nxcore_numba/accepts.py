"""Which calls the kernels take. Imports no toolkit."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from nxcore.ops.sep_conv2d_batch_norm import accepted
from nxcore.ops.sep_conv2d_batch_norm_backward import accepted as accepted_backward
from nxcore.ops.sep_conv2d_with_stats import part
from nxcore.plugin import (
    FLOATS,
    YES,
    Problem,
    Reduction,
    Rows,
    TensorMeta,
    Verdict,
    alike,
    broadcast_strides,
    collapse,
    no,
)
from nxcore_numba import dims

CANDIDATES = 16
"""The most candidates of the CUDA kernels, whose tensors are parameters of their own."""

SIMULATED_ELEMENTS = 100_000
"""The most elements for Numba's CUDA simulator, which needs microseconds for each."""

CUDA_FLOATS = (torch.float32, torch.float16)


def simulator() -> bool:
    """Tell whether Numba's CUDA simulator is to run the CUDA kernels."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"


def _common(problem: Problem, device: str, floats: tuple[torch.dtype, ...]) -> Verdict:
    """Answer for what every kernel asks of its tensors."""
    for t in problem.tensors:
        if t.device.type != device:
            return no(f"needs {_spelled(device)} tensors, got {t.device.type}")
        if t.dtype not in floats:
            return no(f"needs {_names(floats)}, got {_names((t.dtype,))}")
    return YES


def _spelled(device: str) -> str:
    return "CPU" if device == "cpu" else "CUDA"


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(str(d).removeprefix("torch.") for d in dtypes)


def _common_cuda(problem: Problem) -> Verdict:
    verdict = _common(problem, "cpu" if simulator() else "cuda", CUDA_FLOATS)
    elements = max(t.numel() for t in problem.tensors)
    if verdict and simulator() and elements > SIMULATED_ELEMENTS:
        return no(f"the CUDA simulator takes at most {SIMULATED_ELEMENTS} elements a tensor, got {elements}")
    return verdict


def _few_dims(shape: tuple[int, ...], strides: list[tuple[int, ...]]) -> Verdict:
    count = len(dims.collapse(shape, strides))
    if count > dims.DIMS:
        return no(f"takes at most {dims.DIMS} dimensions that can't be merged, got {count}")
    return YES


def accepts_softmax_sum(problem: Problem) -> Verdict:
    """Answer for a call on the CPU, forward or backward: any layout of few dimensions."""
    if not (verdict := _common(problem, "cpu", FLOATS)):
        return verdict
    metas, _ = dims.candidates_of(problem["xs"])
    if problem.op.endswith("_backward"):
        metas = [problem["grad"], *metas]
    walked = [*metas, *_outputs(problem)]
    return _few_dims(metas[0].shape, [m.strides for m in walked])


def accepts_softmax_sum_cuda(problem: Problem) -> Verdict:
    """Answer for a call on CUDA, forward or backward: memory that all tensors run through alike."""
    if not (verdict := _common_cuda(problem)):
        return verdict
    metas, _ = dims.candidates_of(problem["xs"])
    if len(metas) > CANDIDATES:
        return no(f"takes at most {CANDIDATES} candidates, got {len(metas)}")
    if problem.op.endswith("_backward") and not dims.is_one_number(problem["grad"]):
        metas = [problem["grad"], *metas]
    walked = [*metas, *_outputs(problem)]
    if not alike(*walked):
        layouts = sorted({str(m.strides) for m in walked})
        return no(f"needs one dense memory layout of all tensors, got strides {', '.join(layouts)}")
    return YES


def _outputs(problem: Problem) -> list[TensorMeta]:
    """Return the outputs that are as large as a candidate."""
    if not problem.op.endswith("_backward"):
        return [problem.outputs]
    given: Any = problem.outputs[0]
    if isinstance(given, TensorMeta):
        return dims.candidates_of(given)[0]
    return [m for m in given or () if m is not None]


def _add(problem: Problem, floats: tuple[torch.dtype, ...]) -> Verdict:
    x, y, out = problem["x"], problem["y"], problem["out"] or problem.outputs
    if out.dtype not in floats:
        return no(f"needs a result of {_names(floats)}, got {_names((out.dtype,))}")
    scalars = [t for t in (x, y) if isinstance(t, TensorMeta) and t.ndim == 0]
    if any(t.dtype != out.dtype for t in scalars):  # torch rounds it to the result's type first
        return no(f"needs a 0-d operand of the result's dtype, {_names((out.dtype,))}")
    operands = [out, x, *([y] if isinstance(y, TensorMeta) else [])]
    return _few_dims(out.shape, [broadcast_strides(m, out.shape) for m in operands])


def accepts_add(problem: Problem) -> Verdict:
    """Answer for a call on the CPU: any floating types, numbers, broadcasting over few dimensions."""
    return _common(problem, "cpu", FLOATS) and _add(problem, FLOATS)


def accepts_add_cuda(problem: Problem) -> Verdict:
    """Answer for a call on CUDA: as on the CPU, but for numbers."""
    if isinstance(problem["y"], type):
        return no(f"needs a tensor y, got {problem['y'].__name__}")
    return _common_cuda(problem) and _add(problem, CUDA_FLOATS)


def _reductions(problem: Problem) -> Verdict:
    if problem.op == "sum":
        found: list[Any] = [Reduction.of_sum(problem)]
    elif problem.op == "sum_to_size":
        found = [Reduction.of_sum_to_size(problem)]
    else:
        grad, reductions = problem["grad"], Reduction.of_add_backward(problem)
        found = [r for out, r in zip(problem.outputs, reductions, strict=True) if out is not None]
        if any(r is None for r in found) and not (verdict := _few_dims(grad.shape, [grad.strides])):
            return verdict
    for r in found:
        if r is not None and max(len(r.kept), len(r.reduced)) > dims.KINDS:
            return no(
                f"takes at most {dims.KINDS} dimensions that stay and {dims.KINDS} that are summed, "
                f"got {len(r.kept)} and {len(r.reduced)}"
            )
    return YES


def accepts_sum(problem: Problem) -> Verdict:
    """Answer for a sum, one to a size, or the backward of add, on the CPU: any strides."""
    return _common(problem, "cpu", FLOATS) and _reductions(problem)


def accepts_sum_cuda(problem: Problem) -> Verdict:
    """Answer for a sum, one to a size, or the backward of add, on CUDA."""
    return _common_cuda(problem) and _reductions(problem)


def _images(problem: Problem, common: Callable[[Problem], Verdict]) -> Verdict:
    """Answer for a pool, a convolution or the gradient of one: any window, any strides."""
    if problem.op.endswith("max_pool2d_backward"):
        taps = problem["offsets"]
        if taps.dtype not in (torch.uint8, torch.int32):
            return no(f"needs uint8 or int32 offsets, got {_names((taps.dtype,))}")
        floating = tuple(None if arg is taps else arg for arg in problem.args)
        problem = dataclasses.replace(problem, args=floating)
    return common(problem)


def accepts_images(problem: Problem) -> Verdict:
    """Answer for an operator on images on the CPU."""
    return _images(problem, lambda rest: _common(rest, "cpu", FLOATS))


def accepts_images_cuda(problem: Problem) -> Verdict:
    """Answer for an operator on images on CUDA."""
    return _images(problem, _common_cuda)


def _rows(problem: Problem) -> Verdict:
    if problem.op == "gumbel_softmax_backward" and any((problem["output_mask"] or ())[1:]):
        return no("computes the gradient of the logits alone, and output_mask asks for more")
    return YES if Rows.of(problem) else no("needs rows that lie at one step from each other in every tensor")


def accepts_rows(problem: Problem) -> Verdict:
    """Answer for an operator on rows on the CPU: rows of any length that lie evenly in memory."""
    return _common(problem, "cpu", FLOATS) and _rows(problem)


def accepts_rows_cuda(problem: Problem) -> Verdict:
    """Answer for an operator on rows on CUDA: the same."""
    return _common_cuda(problem) and _rows(problem)


def _norm(problem: Problem) -> Verdict:
    """Answer for batch_norm or its gradients: images whose channels aren't innermost."""
    images = [name for name in ("x", "grad") if any(p.name == name for p in problem.spec.params)]
    factors = [p.name for p in problem.spec.params if p.kind == "tensor" and p.name not in images]
    shape = problem["x"].shape
    for name in images:
        strides = problem[name].strides
        if shape[1] > 1 and strides[1] == 1:
            return no(f"needs each channel's elements side by side, and {name} has strides {strides}")
    for name in factors:
        meta = problem[name]
        if meta is not None and not meta.is_contiguous():
            return no(f"needs {name} without gaps, got strides {meta.strides}")
    rest = [(m.strides[0], *m.strides[2:]) for m in (problem[name] for name in images)]
    rank = len(collapse((shape[0], *shape[2:]), *rest)[0])
    if rank > dims.KINDS:
        return no(f"takes at most {dims.KINDS} dimensions beside the channels after merging, got {rank}")
    return YES


def accepts_norm(problem: Problem) -> Verdict:
    """Answer for batch_norm or its gradients on the CPU."""
    return _common(problem, "cpu", FLOATS) and _norm(problem)


def accepts_norm_cuda(problem: Problem) -> Verdict:
    """Answer for batch_norm or its gradients on CUDA."""
    return _common_cuda(problem) and _norm(problem)


Accepts = Callable[[Problem], Verdict]


def accepts_with_stats(images: Accepts, norm: Accepts, problem: Problem) -> Verdict:  # noqa: ARG001
    """Answer for sep_conv2d with its statistics, which torch computes."""
    return images(part(problem))


def accepts_block(images: Accepts, norm: Accepts, problem: Problem) -> Verdict:
    """Answer for sep_conv2d and a batch norm behind it."""
    return accepted(problem, images, norm)


def accepts_block_backward(images: Accepts, norm: Accepts, problem: Problem) -> Verdict:
    """Answer for the gradients of both."""
    return accepted_backward(problem, norm, images)
