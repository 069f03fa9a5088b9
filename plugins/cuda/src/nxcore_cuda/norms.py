"""rms_norm: a line is read once and kept in shared memory; blocks add up the weight's gradient by columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Lines, Problem, TensorMeta
from nxcore_cuda import lines
from nxcore_cuda.candidates import KINDS, TYPES
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch

BLOCKS = 264
"""Blocks of a gradient, on every device, so that sums have the same bits."""

THREADS = 256


def _instance(entry: str, dtype: torch.dtype, width: int) -> Instance:
    return Instance(entry, (TYPES[dtype], width), "norms", f"{entry}_args", threads=lines.MOST)


FOLD = Instance("norms_fold", (), "norms", "norms_fold_args", threads=THREADS)


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(x, normalized_shape, weight, eps)``."""
    out, x, weight = problem.outputs, problem["x"], problem["weight"]
    found = Lines.rows(problem)
    assert found is not None  # noqa: S101  accepts looked
    run = lines.launch(
        lambda width: _instance("norms", x.dtype, width),
        problem.device,
        found,
        (found.steps[1], found.steps[0]),
        (x, out),
        kept=1,
        pointers=3,
        head="fi",
        values=(float(problem["eps"]), 0 if weight is None else KINDS[weight.dtype]),
    )

    def call(x: Tensor, _shape: Any, weight: Tensor | None, _eps: Any) -> Tensor:
        result: Tensor = out.empty()
        run(x, weight, result)
        return result

    return call


def plan_backward(problem: Problem) -> Callable[..., tuple[Tensor | None, Tensor | None]]:
    """Return the launches for one problem, ``call(grad, x, normalized_shape, weight, eps, mask)``."""
    (out, scaled), x, weight = problem.outputs, problem["x"], problem["weight"]
    found = Lines.rows(problem)
    assert found is not None  # noqa: S101  accepts looked
    kind = 0 if weight is None else KINDS[weight.dtype]
    run = lines.launch(
        lambda width: _instance("norms_backward", x.dtype, width),
        problem.device,
        found,
        (*found.steps[1:], found.steps[0]),
        (problem["grad"], x, x),
        kept=2,
        pointers=5,
        head="fi",
        values=(float(problem["eps"]), kind),
        most=BLOCKS,
        summed=scaled is not None,
    )
    rows = lines.groups(found, x.dtype, BLOCKS)
    parts = TensorMeta.row_major((rows, found.length), torch.float32, problem.device)
    fold: Any = scaled and Launch(
        FOLD,
        problem.device,
        -(-found.length // lines.WARP),
        shared=4 * THREADS,
        pointers=2,
        layout="2qi",
        values=(rows, found.length, kind),
    )

    def call(
        grad: Tensor, x: Tensor, _shape: Any, weight: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, Tensor | None]:
        result = None if out is None else out.empty()
        work = parts.empty() if fold else None
        run(grad, x, weight, result, work)
        if not fold:
            return result, None
        total = scaled.empty()
        fold(work, total)
        return result, total

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield FOLD
    for dtype in FLOATS:
        for width in (1, lines.VECTOR // dtype.itemsize):
            for entry in ("norms", "norms_backward"):
                yield _instance(entry, dtype, width)
