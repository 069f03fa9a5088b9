"""min: the smallest element along one axis, and its index.

    values[kept] = min over d of x[kept, d];  indices[kept] = the first d where it is

Semantics of ``torch.min`` with an axis: NaN is smaller than anything, and the first of equals counts, also of
NaN. The gradient goes to that element alone.

    grad_x[kept, d] = grad[kept] where d is indices[kept], else 0
"""

from __future__ import annotations

import torch
from torch import Tensor

from nxcore.ops.max import at_indices, backward_at_indices, with_indices
from nxcore.plugin import OpSpec


def reference(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the smallest element along ``dim``, and its index.

    Parameters
    ----------
    x : Tensor
        Any shape and strides, any dtype but complex ones.
    dim : int
        The axis.
    keepdim : bool, default False
        Whether to keep the axis, with size 1.

    Returns
    -------
    values : Tensor
        The dtype of ``x``.
    indices : Tensor
        int64, with the shape of ``values``.

    Raises
    ------
    InvalidInputError
        If the axis is out of range or of size 0.

    Examples
    --------
    >>> nxcore.ops.min(torch.tensor([[1.0, 3.0], [2.0, 0.0]]), 1)
    (tensor([1., 0.]), tensor([0, 1]))
    """
    values, indices = torch.min(x, dim, keepdim)
    return values, indices


SPEC: OpSpec = with_indices("min", reference)


def gradient(grad: Tensor, indices: Tensor, size: tuple[int, ...], dim: int, keepdim: bool = False) -> Tensor:
    """Return ``grad`` at ``indices`` along ``dim``, and 0 elsewhere.

    Parameters
    ----------
    grad : Tensor
        The gradient of the minima, with their shape for ``dim`` and ``keepdim``.
    indices : Tensor
        As ``min`` returns them.
    size : tuple of int
        The shape of the input.
    dim, keepdim
        As in ``min``.

    Returns
    -------
    Tensor
        Shape ``size``, row-major, dtype of ``grad``.

    Raises
    ------
    InvalidInputError
        If the axis is out of range, or ``grad`` or ``indices`` isn't of the minima' shape.

    Examples
    --------
    >>> nxcore.ops.min_backward(torch.ones(2), torch.tensor([1, 0]), (2, 2), 1)
    tensor([[0., 1.],
            [1., 0.]])
    """
    return at_indices(grad, indices, size, dim, keepdim)


BACKWARD = backward_at_indices(SPEC, gradient)
