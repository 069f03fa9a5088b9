"""The kernels of liger-kernel for nxcore. Importing this module doesn't import liger_kernel."""

from __future__ import annotations

from collections.abc import Iterable

from nxcore.plugin import FLOATS, YES, Backend, Check, Code, Problem, Verdict, foreign, hookimpl, kernels, no

LIBRARY = foreign.Library("liger-kernel", "0.8.5")
LONGEST = 65536
"""The most entries of a row: one block holds it."""


def _last_axis(problem: Problem) -> Verdict:
    """Take rows along the last axis of contiguous memory, in the dtype of the input."""
    x = problem.tensors[0]
    if problem["dim"] not in (-1, x.ndim - 1):
        return no(f"needs the last axis, got {problem['dim']}", code=Code.ARGUMENT)
    if problem["dtype"] not in (None, x.dtype):
        return no(f"returns the dtype of its input, got {problem['dtype']}", code=Code.ARGUMENT)
    if x.shape[-1] > LONGEST:
        return no(f"takes rows of at most {LONGEST} entries, got {x.shape[-1]}", code=Code.SIZE)
    if not all(meta.is_contiguous() for meta in problem.tensors):
        return no(f"needs contiguous memory, got strides {x.strides}", code=Code.LAYOUT)
    return YES


KERNELS = kernels(
    "nxcore_liger",
    {"softmax": LIBRARY.accepts(_last_axis, ranks=(1, 5))},
    dtypes=FLOATS,
)


@hookimpl
def nxcore_backend() -> Backend:
    """Return this backend."""
    return Backend("liger", LIBRARY.probe, KERNELS, api=1, toolkit=LIBRARY.toolkit)


@hookimpl
def nxcore_doctor() -> Iterable[Check]:
    """Return a check of the library."""
    found = LIBRARY.probe()
    yield Check("liger-kernel", True, found.reason or LIBRARY.version, found.hint)  # to have none is no fault
