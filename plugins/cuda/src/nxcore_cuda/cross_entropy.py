"""cross_entropy: a line is read once and kept in shared memory; blocks add up the losses in one order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Lines, Problem, TensorMeta
from nxcore_cuda import lines
from nxcore_cuda.candidates import KINDS, TYPES
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, Launcher, ticket

THREADS, BLOCKS, EACH = 256, 264, 2048
"""Threads of a block that adds up losses, the most blocks on every device, and the losses of one."""

WHOLE = torch.float32


def _instance(entry: str, dtype: torch.dtype, width: int) -> Instance:
    return Instance(entry, (TYPES[dtype], width), "cross_entropy", f"{entry}_args", threads=lines.MOST)


def _total(dtype: torch.dtype) -> Instance:
    return Instance("cross_entropy_total", (TYPES[dtype],), "cross_entropy", threads=THREADS)


def _launch(
    problem: Problem, entry: str, metas: tuple[TensorMeta, ...], pointers: int, **how: Any
) -> Launcher:
    """Return the launch on lines of logits; vectors are read where the logits, and a gradient, lie so."""
    found, x = _found(problem), problem["input"]
    of_logits = replace(found, steps=tuple(found.steps[k] for k in (0, 3)[: len(metas)]))
    return lines.launch(
        lambda width: _instance(entry, x.dtype, width),
        problem.device,
        of_logits,
        found.steps,
        metas,
        kept=1,
        pointers=pointers,
        **how,
    )


def _found(problem: Problem) -> Lines:
    found = Lines.classes(problem)
    assert found is not None  # noqa: S101  accepts looked
    return found


def _adding(problem: Problem, mean: bool, kind: int) -> Callable[..., None]:
    """Return ``run(losses, target, weight, out)``: the sum of losses or, without losses, of weights."""
    found, dtype = _found(problem), problem["input"].dtype
    blocks = min(-(-found.count // EACH), BLOCKS)
    parts = TensorMeta.row_major((blocks, 2), WHOLE, problem.device)
    sizes = (found.count, found.inner, *found.steps[1], 1, 1, 1)
    add_up = Launch(
        _total(dtype),
        problem.device,
        blocks,
        pointers=6,
        layout="2q2i6q2i",
        values=(problem["ignore_index"], found.length, int(mean), kind, *sizes),
    )

    def run(losses: Tensor | None, target: Tensor, weight: Tensor | None, out: Tensor) -> None:
        add_up(losses, target, weight, out, parts.empty(), ticket(problem.device, 1))

    return run


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launches for one problem, ``call(input, target, weight, ...)``."""
    out, x, target = problem.outputs, problem["input"], problem["target"]
    each, kind = problem["reduction"] == "none", KINDS[x.dtype]
    smoothing, ignored = float(problem["label_smoothing"]), problem["ignore_index"]
    values = (ignored, _found(problem).length, smoothing, kind if each else 0)
    losses = _launch(problem, "cross_entropy", (x,), 4, head="2qfi", values=values)
    total = None if each else _adding(problem, problem["reduction"] == "mean", kind)
    work = TensorMeta.row_major(target.shape, WHOLE, problem.device)

    def call(x: Tensor, target: Tensor, weight: Tensor | None, *_: Any) -> Tensor:
        result: Tensor = out.empty()
        if total is None:
            losses(x, target, weight, result)
            return result
        made = work.empty()
        losses(x, target, weight, made)
        total(made, target, weight, result)
        return result

    return call


def plan_backward(problem: Problem) -> Callable[..., tuple[Tensor, None, None]]:
    """Return the launches for one problem, ``call(grad, input, target, weight, ...)``."""
    out, x = problem.outputs[0], problem["input"]
    values = (problem["ignore_index"], _found(problem).length, float(problem["label_smoothing"]))
    run = _launch(problem, "cross_entropy_backward", (x, out), 6, head="2qf", values=values)
    share = _adding(problem, False, 0) if problem["reduction"] == "mean" else None
    one = TensorMeta((), (), WHOLE, problem.device)

    def call(
        grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, *_: Any
    ) -> tuple[Tensor, None, None]:
        result: Tensor = out.empty()
        weights = None
        if share is not None:
            weights = one.empty()
            share(None, target, weight, weights)
        run(x, grad, target, weight, weights, result)
        return result, None, None

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for dtype in FLOATS:
        yield _total(dtype)
        for width in (1, lines.VECTOR // dtype.itemsize):
            for entry in ("cross_entropy", "cross_entropy_backward"):
                yield _instance(entry, dtype, width)
