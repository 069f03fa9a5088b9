"""The kernels of cut-cross-entropy for nxcore. Importing this module doesn't import cut_cross_entropy."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from nxcore.plugin import YES, Backend, Check, Code, Problem, Verdict, foreign, hookimpl, kernels, no

LIBRARY = foreign.Library("cut-cross-entropy", "25.1.1")
HALF = (torch.float16, torch.bfloat16)


def _plain(problem: Problem) -> Verdict:
    """Take the loss without bias, weights and smoothing, of contiguous memory."""
    for name in ("linear_bias", "weight"):
        if problem[name] is not None:
            return no(f"takes no {name}", code=Code.ARGUMENT)
    if problem["label_smoothing"] != 0 or problem["target"].dtype is not torch.int64:
        return no("takes targets of int64, without smoothing", code=Code.ARGUMENT)
    for name in ("input", "linear_weight"):
        if not problem[name].is_contiguous():
            return no(f"needs contiguous memory of {name}", code=Code.LAYOUT)
        if problem[name].dtype not in HALF:
            return no(f"needs float16 or bfloat16, got {problem[name].dtype}", code=Code.DTYPE)
    return YES


KERNELS = kernels(
    "nxcore_cce",
    {
        "linear_cross_entropy": {
            "accepts": LIBRARY.accepts(_plain, dtypes=(*HALF, torch.int64), ranks=(0, 2)),
            "target": "losses:plan",
        }
    },
    dtypes=HALF,
)


@hookimpl
def nxcore_backend() -> Backend:
    """Return this backend."""
    return Backend("cce", LIBRARY.probe, KERNELS, api=1, toolkit=LIBRARY.toolkit)


@hookimpl
def nxcore_doctor() -> Iterable[Check]:
    """Return a check of the library."""
    found = LIBRARY.probe()
    yield Check("cut-cross-entropy", True, found.reason or LIBRARY.version, found.hint)  # none is no fault
