"""Requirements of the kernels on a call. Imports no toolkit."""

from __future__ import annotations

import math
import os
from functools import partial
from typing import Any

import torch

from nxcore.plugin import (
    FLOATS,
    YES,
    Code,
    Need,
    Place,
    Problem,
    Reduction,
    TensorMeta,
    Verdict,
    alike,
    at_most,
    few_channels,
    fits,
    last_axes,
    needs,
    no,
    of_classes,
    one_axis,
    turned_rows,
    whole_groups,
)
from nxcore_numba import dims

CANDIDATES = 16
"""The most candidates of the CUDA kernels, whose tensors are parameters of their own."""

CHANNELS, TAPS = 16, 49
"""The most channels of a group of conv2d, in and out, and taps of a filter: more is torch's."""

SIMULATED_ELEMENTS = 100_000
"""The most elements for Numba's CUDA simulator, which needs microseconds for each."""

CUDA_FLOATS = (torch.float32, torch.float16)


def simulator() -> bool:
    """Return whether Numba's CUDA simulator is to run the CUDA kernels."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"


def _cpu() -> Place:
    return Place("cpu")


def _cuda() -> Place:
    return Place("cpu", " under NUMBA_ENABLE_CUDASIM=1") if simulator() else Place("cuda")


def _simulated(problem: Problem) -> Verdict:
    elements = max(t.numel() for t in problem.tensors)
    if simulator() and elements > SIMULATED_ELEMENTS:
        why = f"the CUDA simulator takes at most {SIMULATED_ELEMENTS} elements a tensor, got {elements}"
        return no(why, code=Code.SIZE)
    return YES


def _walked(problem: Problem) -> list[TensorMeta]:
    """Return the tensors of a blend that are as large as a candidate."""
    metas, _ = dims.candidates_of(problem["xs"])
    if not problem.op.endswith("_backward"):
        return [*metas, problem.outputs]
    given: Any = problem.outputs[0]
    grads = dims.candidates_of(given)[0] if isinstance(given, TensorMeta) else given or ()
    return [problem["grad"], *metas, *(m for m in grads if m is not None)]


def _dims(problem: Problem) -> int:
    walked = _walked(problem)
    return len(dims.collapse(walked[0].shape, [m.strides for m in walked]))


def _one_layout(problem: Problem) -> Verdict:
    """Take a blend of memory that all tensors run through alike; a gradient may be one number."""
    walked = _walked(problem)
    if problem.op.endswith("_backward") and dims.is_one_number(problem["grad"]):
        walked = walked[1:]
    if alike(*walked):
        return YES
    layouts = ", ".join(sorted({str(m.strides) for m in walked}))
    return no(f"needs one dense memory layout of all tensors, got strides {layouts}", code=Code.LAYOUT)


def _copied_dims(problem: Problem) -> int:
    """Return how many dimensions a gradient of ``add`` has that is no sum."""
    if problem.op != "add_backward" or all(
        r or out is None for r, out in zip(Reduction.of_add_backward(problem), problem.outputs, strict=True)
    ):
        return 0
    return len(dims.collapse(problem["grad"].shape, [problem["grad"].strides]))


def _numbered(problem: Problem) -> int:
    """Return how many terms of an output are numbered."""
    if problem.op not in ("max", "min", "argmax", "argmin"):
        return 0
    return Reduction.of_numbered(problem).terms


_terms = at_most(2**31 - 1, "terms of an output to number", _numbered)
_copies = at_most(dims.DIMS, "dimensions that can't be merged", _copied_dims)


_on_cpu = partial(needs, device=_cpu)
_on_cuda = partial(needs, _simulated, device=_cuda, dtypes=CUDA_FLOATS)


def _table(takes: Any, *blend: Need, numbers: bool) -> dict[str, Need]:
    """Return what both devices have kernels of."""
    return {
        "blend": takes(*blend),
        "add": takes(tensors=not numbers, alike_numbers=True, rank=dims.DIMS),
        "sums": takes(_copies, sums=dims.KINDS),
        "pools": takes(integers=("offsets",)),
    }


CPU = _table(_on_cpu, at_most(dims.DIMS, "dimensions that can't be merged", _dims), numbers=True) | {
    "folds": _on_cpu(_terms, sums=dims.KINDS),
    "convolution": _on_cpu(few_channels(CHANNELS, TAPS)),
    "filters": _on_cpu(),
    "axis": _on_cpu(one_axis),
    "last": _on_cpu(last_axes),
    "losses": _on_cpu(of_classes, dtypes=(*FLOATS, torch.int64)),
    "groups": _on_cpu(whole_groups),
    "turned": _on_cpu(turned_rows, one_gradient=True),
    "rows": _on_cpu(rows=math.inf, one_gradient=True),
    "norm": _on_cpu(channels=dims.KINDS),
}
"""The requirements on a CPU call, by the family of its operator: any floating dtypes and numbers."""

CUDA = _table(
    _on_cuda,
    at_most(CANDIDATES, "candidates", lambda p: len(dims.candidates_of(p["xs"])[0])),
    _one_layout,
    numbers=False,
)
"""The same on CUDA."""

expressions = _on_cpu(fits(FLOATS, dims.DIMS), dtypes=(*FLOATS, torch.bool))
"""The requirement on a call of an expression's operator."""

GENERATED = (
    *(
        f"nxcore_numba.functions:{name}"
        for name in (
            *("choose", "exp", "expm1", "log", "log1p", "tanh", "erf", "sigmoid", "sign"),
            *("minimum", "maximum"),
        )
    ),
    *(f"nxcore_numba.memory:{name}" for name in ("items", "item_of", "offset")),
    "nxcore_numba.half:flag",
    "nxcore_numba.half:load",
    "nxcore_numba.half:store",
)
"""The functions that generated code uses, by names in its text."""

FAMILIES = {
    "blend": ("softmax_sum", "softmax_sum_backward", "weighted_sum", "weighted_sum_backward"),
    "add": ("add",),
    "sums": ("add_backward", "sum", "sum_to_size", "mean"),
    "folds": ("amax", "amin", "any", "all", "max", "min", "argmax", "argmin"),
    "pools": (
        "max_pool2d",
        "max_pool2d_with_offsets",
        "max_pool2d_backward",
        "avg_pool2d",
        "avg_pool2d_backward",
        "global_avg_pool2d",
        "global_max_pool2d",
        "global_max_pool2d_with_offsets",
        "global_max_pool2d_backward",
    ),
    "filters": ("depthwise_conv2d", "depthwise_conv2d_backward"),
    "convolution": ("conv2d", "conv2d_backward"),
    "axis": tuple(f"{op}{back}" for op in ("softmax", "log_softmax") for back in ("", "_backward")),
    "last": tuple(f"{op}{back}" for op in ("rms_norm", "layer_norm") for back in ("", "_backward")),
    "losses": ("cross_entropy", "cross_entropy_backward"),
    "groups": ("group_norm", "group_norm_backward"),
    "turned": ("rope", "rope_backward"),
    "rows": ("entropy", "entropy_backward", "gumbel_softmax", "gumbel_softmax_backward"),
    "norm": ("batch_norm", "batch_norm_backward"),
}
"""The operators by family; the gradients of sums and of global_avg_pool2d are views, and need no kernel."""

TARGETS = {
    **{op: f"{op[:-9]}:plan_backward" for ops in FAMILIES.values() for op in ops if op.endswith("_backward")},
    **{op: f"{op}:plan" for op in ("conv2d_backward", "softmax_sum_backward")},
    "global_avg_pool2d": "sum:plan",
    "sum_to_size": "sum:plan",
    "mean": "sum:plan",
    **dict.fromkeys(FAMILIES["folds"], "fold:plan"),
    **dict.fromkeys(FAMILIES["axis"], "softmaxes:plan"),
    **{op: "norms:plan_backward" if "back" in op else "norms:plan" for op in FAMILIES["last"]},
    "rope_backward": "rope:plan",
    "max_pool2d_with_offsets": "max_pool2d:plan_with_offsets",
    "global_max_pool2d_with_offsets": "global_max_pool2d:plan_with_offsets",
    "weighted_sum": "softmax_sum:plan",
    "weighted_sum_backward": "softmax_sum_backward:plan",
}
"""Where the planner is, of operators that have no file of their own."""

CUDA_TARGETS = TARGETS | {
    "softmax_sum_backward": "softmax_sum:plan_backward",
    "weighted_sum_backward": "softmax_sum:plan_backward",
}
