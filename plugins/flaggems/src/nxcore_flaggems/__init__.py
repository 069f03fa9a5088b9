"""FlagGems' Triton kernels for nxcore. Importing this module doesn't import flag_gems.

``flag_gems.enable`` is never called: it would replace torch's own kernels in the whole process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nxcore.plugin import FLOATS, YES, Backend, Check, Code, Problem, Verdict, foreign, hookimpl, kernels, no

LIBRARY = foreign.Library("flag-gems", "5.0.2", needs=("sqlalchemy", "pyyaml", "packaging"))

FOLDS, ROWS = ("sum", "mean", "amax", "argmax", "cumsum"), ("softmax", "log_softmax")


def _one_axis(problem: Problem) -> Verdict:
    """Take one axis, of contiguous memory: strides are ignored by some of its kernels."""
    x, dim = problem.tensors[0], problem["dim"]
    if not isinstance(dim, int):
        return no(f"needs one axis, got {dim}", code=Code.ARGUMENT)
    if problem.op in ROWS and problem["dtype"] not in (None, x.dtype):
        return no(f"returns the dtype of its input, got {problem['dtype']}", code=Code.ARGUMENT)
    if not x.is_contiguous():
        return no(f"needs contiguous memory, got strides {x.strides}", code=Code.LAYOUT)
    return YES


accepts = LIBRARY.accepts(_one_axis, ranks=(0, 5))

KERNELS = kernels(
    "nxcore_flaggems",
    {op: {"accepts": accepts, "target": f"calls:{op}"} for op in (*FOLDS, *ROWS)},
    dtypes=FLOATS,
)


@hookimpl
def nxcore_backend() -> Backend:
    """Return this backend."""
    return Backend("flaggems", LIBRARY.probe, KERNELS, api=1, toolkit=LIBRARY.toolkit)


@hookimpl
def nxcore_doctor() -> Iterable[Check]:
    """Return a check of the library."""
    found: Any = LIBRARY.probe()
    yield Check("flag-gems", True, found.reason or LIBRARY.version, found.hint)  # to have none is no fault
