"""square_relu and its gradient: memory as it lies, an element a thread and step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nxcore_cuda.candidates import TYPES
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem

THREADS, BLOCKS = 256, 2112


def _launch(problem: Problem, *, back: bool) -> Any:
    count = problem.outputs.numel()
    instance = Instance("square_relu", (TYPES[problem.dtype], back))
    grid = min(-(-count // THREADS), BLOCKS)
    return Launch(instance, problem.device, grid, pointers=3, layout="q", values=(count,))


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(x)``."""
    out, launch = problem.outputs, _launch(problem, back=False)

    def call(x: Tensor) -> Tensor:
        result: Tensor = out.empty()
        launch(None, x, result)
        return result

    return call


def plan_backward(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(grad, x)``."""
    out, launch = problem.outputs, _launch(problem, back=True)

    def call(grad: Tensor, x: Tensor) -> Tensor:
        result: Tensor = out.empty()
        launch(grad, x, result)
        return result

    return call


def instances() -> Iterator[Instance]:
    """Yield what calls want."""
    for dtype in FLOATS:
        for back in (False, True):
            yield Instance("square_relu", (TYPES[dtype], back))
