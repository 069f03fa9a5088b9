"""add_backward on the CPU: each gradient is the incoming one summed over what was broadcast."""

import numpy as np
import torch

from nxcore.plugin import Reduction
from nxcore_numba import add, reduce

ZERO = np.zeros((), np.float32)


def _one(grad, meta, reduction):
    """Return ``undo(grad, alpha)`` for one operand."""
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
            return grad_now.view(meta.shape)
        if scaled is None:
            scaled = add.compiled(meta, type(meta)((), (), torch.float32, meta.device), grad)
        result = meta.empty()
        scaled(result.data_ptr(), ZERO.ctypes.data, grad_now.data_ptr(), float(alpha))
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
