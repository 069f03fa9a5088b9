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


def plan(problem: Problem) -> Callable[..., Any]:
    """Return the launch for one problem, of an operator on rows or of its gradient.

    It takes the operator's arguments, all positional.
    """
    outputs, names = problem.outputs, [p.name for p in problem.spec.params]
    alone = isinstance(outputs, TensorMeta)
    out, *others = (outputs,) if alone else outputs
    if "tau" not in names:
        fixed, _ = launch(problem)

        def call(*tensors: Tensor) -> Tensor:
            result = out.empty()
            fixed(*tensors, result)
            return result

        return call
    run, at, noise = tempered(problem), names.index("tau"), names.index("noise")

    def call_tempered(*args: Any) -> Any:
        result = out.empty()
        run(args[at], *args[:at], args[noise], result)
        return result if alone else (result, *others)

    return call_tempered


def launch(problem: Problem, head: str = "", values: tuple[Any, ...] = ()) -> tuple[Any, Any]:
    """Return the launch of an operator's kernel, and all its values.

    Parameters
    ----------
    head, values
        What follows the pointers in the kernel's struct, before the rows: with a temperature, which is a
        pointer too.
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
        pointers=count + bool(head),
        layout=f"{head}{1 + 2 * count}q{count + 1}i",
        values=values,
    )
    return made, values


def tempered(problem: Problem) -> Callable[..., None]:
    """Return the launch of an operator that has a temperature: ``run(tau, *inputs, out)``."""
    tau = problem["tau"]
    kind = KINDS[tau.dtype] if isinstance(tau, TensorMeta) else 0
    hard = [int(problem[p.name]) for p in problem.spec.params if p.name == "hard"]
    fixed, values = launch(problem, f"f{1 + len(hard)}i", (1.0, kind, *hard))
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
    """Yield the kernels of an operator and of its gradient, which take every call."""
    for name in (op, f"{op}_backward"):
        for shape in SHAPES:
            yield Instance(name, shape, threads=THREADS)
