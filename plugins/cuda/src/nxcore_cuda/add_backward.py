"""add_backward: for each operand that was broadcast, one reduction of grad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from nxcore.plugin import Problem, Reduction, TensorMeta
from nxcore_cuda.sum import Tile, instances, plan_reduction, sweep

__all__ = ["instances", "plan", "sweep"]

Undo = Callable[[Tensor, float], Tensor | None]


def plan(problem: Problem, tile: Tile | None = None) -> Callable[..., tuple[Tensor | None, Tensor | None]]:
    """Return the launches for one problem; ``tile`` is that of each reduction.

    It is called as ``call(grad, x_size, y_size, alpha, output_mask)``, which returns ``(x_grad, y_grad)``.
    """
    undo_x, undo_y = (
        _undo(problem["grad"], out, reduction, tile)
        for out, reduction in zip(problem.outputs, Reduction.of_add_backward(problem), strict=True)
    )

    def call(grad: Tensor, x_size: Any, y_size: Any, alpha: float, output_mask: Any) -> Any:
        return undo_x(grad, 1.0), undo_y(grad, float(alpha))

    return call


def _undo(grad: TensorMeta, out: TensorMeta | None, reduction: Reduction | None, tile: Tile | None) -> Undo:
    if out is None:
        return lambda grad, alpha: None
    size = out.shape

    def view(grad: Tensor, alpha: float) -> Tensor:
        return grad.view(size) if alpha == 1 else grad.view(size) * alpha

    if reduction is None:
        return view
    run = plan_reduction(grad, reduction, tile)

    def total(grad: Tensor, alpha: float) -> Tensor:
        result = out.empty()
        run(grad, result, alpha)
        return result

    return total
