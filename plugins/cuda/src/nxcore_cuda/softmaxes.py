"""softmax, log_softmax: a line is read once and kept in shared memory; sums and the maximum in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Lines, Problem
from nxcore_cuda import lines
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.machine.instance import Instance


def _instance(entry: str, given: torch.dtype, made: torch.dtype, width: int, log: bool) -> Instance:
    types = (TYPES[given], TYPES[made])
    args = f"{entry}_args"
    return Instance(entry, (*types, width, log), "softmaxes", args, threads=lines.MOST)


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(x, dim, dtype)`` or ``call(grad, y, dim, dtype)``."""
    out, tensors = problem.outputs, problem.tensors
    found = Lines.along(problem)
    assert found is not None  # noqa: S101  accepts looked
    entry = "softmaxes_backward" if len(tensors) == 2 else "softmaxes"
    log, given = problem.op.startswith("log_"), tensors[0].dtype

    def instance(width: int) -> Instance:
        return _instance(entry, given, out.dtype, width, log)

    steps = (*found.steps[1:], found.steps[0])
    run = lines.launch(instance, problem.device, found, steps, (*tensors, out), kept=len(tensors))
    count = len(tensors)

    def call(*args: Any) -> Tensor:
        result: Tensor = out.empty()
        run(*args[:count], result)
        return result

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for dtype in FLOATS:
        for log in (False, True):
            for width in (1, lines.VECTOR // dtype.itemsize):
                for entry in ("softmaxes", "softmaxes_backward"):
                    yield _instance(entry, dtype, dtype, width, log)
