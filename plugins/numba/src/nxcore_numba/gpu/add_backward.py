"""add_backward on CUDA: each gradient is the incoming one summed over what was broadcast."""

import torch

from nxcore.plugin import Reduction
from nxcore_numba.gpu import add, reduce


def _one(grad, meta, reduction):
    """Return ``undo(grad, alpha)`` for one operand."""
    if reduction:
        kernel = reduce.compiled(grad, reduction)

        def undo(grad, alpha):
            result = meta.empty()
            kernel(result, grad, float(alpha))
            return result

        return undo
    zero = torch.zeros((), dtype=torch.float32, device=meta.device)
    scaled = add.compiled(meta, type(meta).of(zero), grad)

    def view(grad, alpha):
        if alpha == 1:
            return grad.view(meta.shape)
        result = meta.empty()
        scaled(result, zero, grad, float(alpha))
        return result

    return view


def plan(problem):
    """Return a callable for calls like ``problem``."""
    x_undo, y_undo = (
        _one(problem["grad"], out, reduction) if out else None
        for out, reduction in zip(problem.outputs, Reduction.of_add_backward(problem), strict=True)
    )

    def call(grad, x_size, y_size, alpha, output_mask):  # noqa: ARG001  all but alpha are part of the plan
        return (x_undo(grad, 1) if x_undo else None), (y_undo(grad, alpha) if y_undo else None)

    return call
