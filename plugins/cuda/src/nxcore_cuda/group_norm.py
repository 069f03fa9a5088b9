"""group_norm: a group of an image is read once and kept in shared memory; a block adds up a channel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Lines, Problem, TensorMeta, factors_of
from nxcore_cuda import lines
from nxcore_cuda.candidates import KINDS, TYPES
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, Launcher

THREADS = 256


def _instance(entry: str, dtype: torch.dtype, width: int) -> Instance:
    arguments = (TYPES[dtype], width)
    return Instance(entry, arguments, "group_norm", f"{entry}_args", threads=lines.MOST)


def _factors(dtype: torch.dtype) -> Instance:
    return Instance("group_norm_factors", (TYPES[dtype],), "group_norm", threads=THREADS)


def _kind(problem: Problem) -> int:
    return max((KINDS[meta.dtype] for meta in factors_of(problem).values()), default=0)


def _launch(problem: Problem, tensors: int, pointers: int) -> tuple[Lines, tuple[int, ...], Launcher]:
    """Return the lines, channels of a group and entries of one, and the launch on the first ``tensors``."""
    x, groups = problem["x"], problem["num_groups"]
    channels, pixels = x.shape[1] // groups, math.prod(x.shape[2:])
    length = channels * pixels
    found = Lines(x.shape[0] * groups, 1, length, ((length, 0, 1),) * tensors)
    run = lines.launch(
        lambda width: _instance(problem.op, x.dtype, width),
        problem.device,
        found,
        found.steps,
        (x,) * tensors,
        kept=tensors - 1,
        pointers=pointers,
        head="f3iq",
        values=(float(problem["eps"]), _kind(problem), groups, channels, pixels),
    )
    return found, (channels, pixels), run


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(x, num_groups, weight, bias, eps)``."""
    out, (_, _, run) = problem.outputs, _launch(problem, 2, 4)

    def call(x: Tensor, _groups: int, weight: Tensor | None, bias: Tensor | None, _eps: Any) -> Tensor:
        result: Tensor = out.empty()
        run(x, weight, bias, result)
        return result

    return call


def plan_backward(problem: Problem) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launches for one problem, ``call(grad, x, num_groups, weight, bias, eps, mask)``."""
    (out, *wanted), x = problem.outputs, problem["x"]
    found, (channels, pixels), run = _launch(problem, 3, 5)
    work = TensorMeta.row_major((2, found.count), torch.float32, problem.device)
    add_up: Any = any(wanted) and Launch(
        _factors(x.dtype),
        problem.device,
        x.shape[1],
        THREADS,
        pointers=5,
        layout="3q2i",
        values=(x.shape[0], found.count, pixels, _kind(problem), channels),
    )

    def call(
        grad: Tensor, x: Tensor, _groups: int, weight: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        result, moments = None if out is None else out.empty(), work.empty()
        run(grad, x, weight, result, moments)
        totals = [None if meta is None else meta.empty() for meta in wanted]
        if add_up:
            add_up(grad, x, moments, *totals)
        return result, *totals

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for dtype in FLOATS:
        yield _factors(dtype)
        for width in (1, lines.VECTOR // dtype.itemsize):
            for entry in ("group_norm", "group_norm_backward"):
                yield _instance(entry, dtype, width)
