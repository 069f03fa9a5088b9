"""rms_norm, layer_norm: a line is read once and kept in shared memory; the factors' gradients by columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Lines, Problem, TensorMeta, factors_of
from nxcore_cuda import lines
from nxcore_cuda.candidates import KINDS, TYPES
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch

BLOCKS = 264
"""Blocks of a gradient, on every device, so that sums have the same bits."""

THREADS = 256


def _instance(entry: str, dtype: torch.dtype, width: int, *, centred: bool) -> Instance:
    arguments = (TYPES[dtype], width, centred)
    return Instance(entry, arguments, "norms", f"{entry}_args", threads=lines.MOST)


def _kind(problem: Problem) -> int:
    """Return the number of the dtype of the factors; 0 where there are none."""
    return max((KINDS[meta.dtype] for meta in factors_of(problem).values()), default=0)


FOLD = Instance("norms_fold", (), "norms", "norms_fold_args", threads=THREADS)


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(x, normalized_shape, weight, [bias,] eps)``."""
    out, x, biased = problem.outputs, problem["x"], "bias" in factors_of(problem)
    found = Lines.rows(problem)
    assert found is not None  # noqa: S101  accepts looked
    run = lines.launch(
        lambda width: _instance("norms", x.dtype, width, centred=problem.op == "layer_norm"),
        problem.device,
        found,
        (found.steps[1], found.steps[0]),
        (x, out),
        kept=1,
        pointers=4,
        head="fi",
        values=(float(problem["eps"]), _kind(problem)),
    )

    def call(x: Tensor, _shape: Any, weight: Tensor | None, *more: Any) -> Tensor:
        result: Tensor = out.empty()
        run(x, weight, more[0] if biased else None, result)
        return result

    return call


def plan_backward(problem: Problem) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launches for one problem, ``call(grad, x, normalized_shape, weight, [bias,] eps, mask)``."""
    (out, *wanted), x = problem.outputs, problem["x"]
    found, kind = Lines.rows(problem), _kind(problem)
    assert found is not None  # noqa: S101  accepts looked
    flags = [meta is not None for meta in (*wanted, None)][:2]
    run = lines.launch(
        lambda width: _instance(
            "norms_backward", x.dtype, width, centred=problem.op == "layer_norm_backward"
        ),
        problem.device,
        found,
        (*found.steps[1:], found.steps[0]),
        (problem["grad"], x, x),
        kept=2,
        pointers=5,
        head="f3i",
        values=(float(problem["eps"]), kind, *flags),
        most=BLOCKS,
        summed=sum(flags),
    )
    rows = lines.groups(found, x.dtype, BLOCKS)
    columns = sum(flags) * found.length
    parts = TensorMeta.row_major((rows, columns), torch.float32, problem.device)
    fold: Any = columns and Launch(
        FOLD,
        problem.device,
        -(-columns // lines.WARP),
        shared=4 * THREADS,
        pointers=3,
        layout="3qi",
        values=(rows, columns, found.length, kind),
    )

    def call(
        grad: Tensor, x: Tensor, _shape: Any, weight: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        result = None if out is None else out.empty()
        work = parts.empty() if fold else None
        run(grad, x, weight, result, work)
        totals = [None if meta is None else meta.empty() for meta in wanted]
        if fold:
            made = [total for total in totals if total is not None]
            fold(work, made[0], made[-1])
        return result, *totals

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield FOLD
    for dtype in FLOATS:
        for width in (1, lines.VECTOR // dtype.itemsize):
            for entry in ("norms", "norms_backward"):
                for centred in (False, True):
                    yield _instance(entry, dtype, width, centred=centred)
