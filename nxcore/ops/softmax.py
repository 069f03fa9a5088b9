"""softmax: the exponentials of each row, divided by their sum.

    y[i] = exp(x[i] - max x) / sum_j exp(x[j] - max x), for the rows along one axis

Semantics of ``torch.softmax``. The gradient needs the result alone, ``softmax_backward``:

    grad_x[i] = y[i] (grad[i] - sum_j grad[j] y[j])

The maximum and the sum in one pass: Milakov and Gimelshein 2018, arXiv:1805.02867.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nxcore.ops.softmaxes import apart, backward_spec_of, spec_of


def reference(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return the softmax along ``dim``, accumulating in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Any shape and strides, floating.
    dim : int
        The axis of the rows, each of which adds up to 1.
    dtype : torch.dtype, optional
        That of the result, floating; ``x`` is converted to it first.

    Returns
    -------
    Tensor
        Shape of ``x``, row-major. A row with NaN or plus infinity is NaN, and one of minus infinities alone.

    Raises
    ------
    InvalidInputError
        If ``dim`` isn't an axis of ``x``, or a dtype isn't floating.

    Examples
    --------
    >>> nxcore.ops.softmax(torch.zeros(2, 4), 1)
    tensor([[0.2500, 0.2500, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.2500, 0.2500]])
    """
    return torch.softmax(x, dim, dtype=dtype)


def magnitude(x: Tensor, dim: int, dtype: Any) -> Tensor:
    """Return the softmax, each entry times its sensitivity to the rounding of distances."""
    p, d = torch.softmax(x, dim), apart(x, dim)
    return p * (1 + d + (p * d).sum(dim, keepdim=True))


SPEC = spec_of("softmax", reference, magnitude, flops=5)


def gradient(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return the gradient of ``softmax``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the result, of its shape and dtype.
    y : Tensor
        The result.
    dim : int
        As in ``softmax``.
    dtype : torch.dtype, optional
        That of the gradient; by default that of ``y``.

    Returns
    -------
    Tensor
        Shape of ``y``, row-major.

    Raises
    ------
    InvalidInputError
        As ``softmax``; or if ``grad`` isn't of the shape, dtype and device of ``y``.

    Examples
    --------
    >>> nxcore.ops.softmax_backward(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]), 0)
    tensor([ 0.2500, -0.2500])
    """
    wide = torch.promote_types(y.dtype, dtype or y.dtype)
    of_torch = torch._softmax_backward_data  # noqa: SLF001  it has no public name
    found: Tensor = of_torch(grad.to(wide), y.to(wide), dim, wide)
    return found.to(dtype or y.dtype)


def gradient_magnitude(grad: Tensor, y: Tensor, dim: int, dtype: Any) -> Tensor:
    """Return the gradient with positive terms."""
    p, g = y.abs(), grad.abs()
    return p * (g + (p * g).sum(dim, keepdim=True))


BACKWARD = backward_spec_of(SPEC, gradient, gradient_magnitude, flops=4)
