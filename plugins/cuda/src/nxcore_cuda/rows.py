"""Operators on short rows: the kernel for their length, and its launch. A row is a few lanes' of one warp."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from nxcore.plugin import Problem, Rows, TensorMeta
from nxcore_cuda.candidates import KINDS
from nxcore_cuda.layout import single
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch

THREADS = 128
WARP = 32
SHAPES = ((4, 1), (8, 1), (16, 1), (WARP, 1), (WARP, 4), (WARP, 32))
"""Lanes of a row and entries of a lane, for which there are kernels: the last for the longest rows."""


def shape_for(length: int) -> tuple[int, int]:
    """Return the lanes of a row of so many entries, and the entries of a lane."""
    return next(shape for shape in SHAPES if shape[0] * shape[1] >= length)


def launch(
    problem: Problem, *, pointers: int, head: str = "", values: tuple[Any, ...] = ()
) -> tuple[Any, Any]:
    """Return the launch of an operator's kernel, and all its values.

    Parameters
    ----------
    problem : Problem
    pointers : int
        Of the kernel's struct.
    head, values
        What follows the pointers there, before the rows.
    """
    found = Rows.of(problem)
    assert found is not None  # noqa: S101  accepts looked
    lanes, items = shape_for(found.length)
    count = len(found.tensors)
    of_rows = (found.count, *(s for s, _ in found.steps), *(s for _, s in found.steps))
    kinds = (KINDS[meta.dtype] for meta in found.tensors)
    values = (*values, *of_rows, *kinds, found.length)
    made = Launch(
        Instance(problem.op, (lanes, items), threads=THREADS),
        problem.device,
        -(-found.count * lanes // THREADS),
        pointers=pointers,
        layout=f"{head}{1 + 2 * count}q{count + 1}i",
        values=values,
    )
    return made, values


def tempered(problem: Problem, *hard: int) -> Callable[..., None]:
    """Return the launch of an operator that has a temperature: ``run(tau, *inputs, out)``.

    Parameters
    ----------
    problem : Problem
    *hard : int
        What follows the temperature in the kernel's struct.
    """
    tau = problem["tau"]
    kind = KINDS[tau.dtype] if isinstance(tau, TensorMeta) else 0
    pointers = sum(p.kind == "tensor" for p in problem.spec.params) + 2
    fixed, values = launch(problem, pointers=pointers, head=f"f{1 + len(hard)}i", values=(1.0, kind, *hard))
    rest = values[1:]

    def run(tau: Any, *tensors: Tensor) -> None:
        if isinstance(tau, Tensor):
            fixed(*tensors[:-1], tau, tensors[-1])
        elif tau == 1:
            fixed(*tensors[:-1], None, tensors[-1])
        else:
            fixed(*tensors[:-1], None, tensors[-1], tail=(single(tau), *rest))

    return run


def instances(op: str) -> Iterator[Instance]:
    """Yield an operator's kernels, which take every call."""
    for shape in SHAPES:
        yield Instance(op, shape, threads=THREADS)
