"""log_softmax: the logarithm of the softmax of each row.

    y[i] = x[i] - max x - log(sum_j exp(x[j] - max x)), for the rows along one axis

Semantics of ``torch.log_softmax``. The gradient needs the result alone, ``log_softmax_backward``:

    grad_x[i] = grad[i] - exp(y[i]) sum_j grad[j]
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.softmax import along, apart, backward_spec_of, differentiated, rounded, spec_of


def reference(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return the logarithm of the softmax along ``dim``, accumulating in float32 or wider.

    Parameters
    ----------
    x, dim, dtype
        As in ``softmax``.

    Returns
    -------
    Tensor
        Shape of ``x``, row-major. A row with NaN or plus infinity is NaN, and one of minus infinities alone.

    Raises
    ------
    InvalidInputError
        As ``softmax``.

    Examples
    --------
    >>> nxcore.ops.log_softmax(torch.zeros(4), 0)
    tensor([-1.3863, -1.3863, -1.3863, -1.3863])
    """
    return rounded(torch.log_softmax, x, dim, dtype)


def magnitude(x: Tensor, dim: int, dtype: Any) -> Tensor:
    """Return the scale of the errors of distances, of their exponentials' sum and of its logarithm."""
    d = apart(x, dim)
    return 1 + math.log(max(along(x, dim), 1)) + d + (torch.softmax(x, dim) * d).sum(dim, keepdim=True)


SPEC = spec_of("log_softmax", reference, magnitude, flops=5)


def gradient(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return the gradient of ``log_softmax``, accumulating in float32 or wider.

    Parameters
    ----------
    grad, y, dim, dtype
        As in ``softmax_backward``.

    Returns
    -------
    Tensor
        Shape of ``y``, row-major.

    Raises
    ------
    InvalidInputError
        As ``softmax_backward``.

    Examples
    --------
    >>> nxcore.ops.log_softmax_backward(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]).log(), 0)
    tensor([ 0.5000, -0.5000])
    """
    return differentiated("log_softmax", grad, y, dim, dtype)


def gradient_magnitude(grad: Tensor, y: Tensor, dim: int, dtype: Any) -> Tensor:
    """Return the gradient with positive terms, and the errors of exponentials."""
    p = y.exp() * (1 + y.abs())
    return grad.abs() + p.nan_to_num(nan=0.0, posinf=0.0) * grad.abs().sum(dim, keepdim=True)


BACKWARD = backward_spec_of(SPEC, gradient, gradient_magnitude, flops=4)
