"""add_backward: for each operand that was broadcast, one reduction of grad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nxcore.plugin import Problem, Reduction, TensorMeta
from nxcore_triton.sum import plan_reduction

Undo = Callable[[Tensor, float], Tensor]


def plan(problem: Problem) -> Callable[..., tuple[Tensor | None, Tensor | None]]:
    """Return the launches for one problem.

    Returns
    -------
    callable
        ``call(grad, x_size, y_size, alpha, output_mask)``, which returns ``(x_grad, y_grad)``.
    """
    reductions = Reduction.of_add_backward(problem)
    undo_x, undo_y = (
        None if out is None else _undo(problem, out, reduction, scaled=i == 1)
        for i, (out, reduction) in enumerate(zip(problem.outputs, reductions, strict=True))
    )

    def call(grad: Tensor, x_size: Any, y_size: Any, alpha: float, output_mask: Any) -> Any:  # noqa: ARG001
        return (
            None if undo_x is None else undo_x(grad, 1.0),
            None if undo_y is None else undo_y(grad, float(alpha)),
        )

    return call


def _undo(problem: Problem, out: TensorMeta, reduction: Reduction | None, *, scaled: bool) -> Undo:
    size = out.shape

    def view(grad: Tensor, alpha: float) -> Tensor:
        return grad.view(size) if alpha == 1 else grad.view(size) * alpha

    if reduction is None:
        return view
    run = plan_reduction(reduction, problem.device, scaled=scaled)

    def total(grad: Tensor, alpha: float) -> Tensor:
        result = out.empty()
        run(grad, result, alpha)
        return result

    return total
