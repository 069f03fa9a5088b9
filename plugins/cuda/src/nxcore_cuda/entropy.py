"""entropy: one launch for all rows: a few lanes of a warp hold a row in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from nxcore.plugin import Problem
from nxcore_cuda import rows
from nxcore_cuda.machine.instance import Instance


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(logits)``."""
    out = problem.outputs
    launch, _ = rows.launch(problem, pointers=2)

    def call(logits: Tensor) -> Tensor:
        result = out.empty()
        launch(logits, result)
        return result

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield from rows.instances("entropy")
    yield from _instances_backward()


def plan_backward(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(grad, logits)``."""
    out = problem.outputs
    launch, _ = rows.launch(problem, pointers=3)

    def call(grad: Tensor, logits: Tensor) -> Tensor:
        result = out.empty()
        launch(grad, logits, result)
        return result

    return call


def _instances_backward() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    yield from rows.instances("entropy_backward")
