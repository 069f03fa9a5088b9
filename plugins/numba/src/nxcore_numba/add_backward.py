"""add_backward on the CPU: each gradient is the incoming one summed over what was broadcast."""

import numpy as np
import torch

from nxcore_numba import add, reduce
from nxcore_numba.dims import reduction_to_size

ZERO = np.zeros((), np.float32)


def _one(grad, size, meta):
    """Return ``undo(grad, alpha)`` for one operand."""
    reduction = reduction_to_size(grad, size, meta)
    if reduction:
        kernel = reduce.compiled(grad, reduction)

        def undo(grad, alpha):
            result = meta.empty()
            kernel(result.data_ptr(), grad.data_ptr(), float(alpha))
            return result

        return undo
    scaled = None  # compiled only if some alpha isn't 1

    def view(grad_now, alpha):
        nonlocal scaled
        if alpha == 1:
            return grad_now.view(size)
        if scaled is None:
            scaled = add.compiled(meta, type(meta)((), (), torch.float32, meta.device), grad)
        result = meta.empty()
        scaled(result.data_ptr(), ZERO.ctypes.data, grad_now.data_ptr(), float(alpha))
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
