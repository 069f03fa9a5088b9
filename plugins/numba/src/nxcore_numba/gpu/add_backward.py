"""add_backward on CUDA: each gradient is the incoming one summed over what was broadcast."""

import torch

from nxcore_numba.dims import reduction_to_size
from nxcore_numba.gpu import add, reduce


def _one(grad, size, meta):
    """Return ``undo(grad, alpha)`` for one operand."""
    reduction = reduction_to_size(grad, size, meta)
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
            return grad.view(size)
        result = meta.empty()
        scaled(result, zero, grad, float(alpha))
        return result

    return view


def plan(problem):
    """Return a callable for calls like ``problem``."""
    grad, (x_out, y_out) = problem["grad"], problem.outputs
    x_undo = _one(grad, problem["x_size"], x_out) if x_out else None
    y_undo = _one(grad, problem["y_size"], y_out) if y_out else None

    def call(grad, x_size, y_size, alpha, output_mask):  # noqa: ARG001  all but alpha are part of the plan
        return (x_undo(grad, 1) if x_undo else None), (y_undo(grad, alpha) if y_undo else None)

    return call
