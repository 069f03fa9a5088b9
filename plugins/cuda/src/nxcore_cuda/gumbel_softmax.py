"""gumbel_softmax: one launch for all rows: a few lanes of a warp hold a row in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from nxcore.plugin import Problem
from nxcore_cuda import rows
from nxcore_cuda.machine.instance import Instance


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(logits, tau, hard, noise)``."""
    out = problem.outputs
    run = rows.tempered(problem, int(problem["hard"]))

    def call(logits: Tensor, tau: Any, hard: bool, noise: Tensor) -> Tensor:
        result = out.empty()
        run(tau, logits, noise, result)
        return result

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield from rows.instances("gumbel_softmax")
    yield from _instances_backward()


def plan_backward(problem: Problem) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the launch for one problem, ``call(grad, logits, tau, noise, output_mask)``."""
    out, *others = problem.outputs
    run = rows.tempered(problem)

    def call(grad: Tensor, logits: Tensor, tau: Any, noise: Tensor, mask: Any) -> tuple[Tensor | None, ...]:
        result = out.empty()
        run(tau, grad, logits, noise, result)
        return result, *others

    return call


def _instances_backward() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield from rows.instances("gumbel_softmax_backward")
