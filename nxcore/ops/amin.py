"""amin: the smallest element along some axes.

    out[kept] = min over reduced of x[kept, reduced]

Semantics of ``torch.amin``: NaN is smaller than anything. Elements that are all the smallest share the
gradient evenly, as torch has it; an output that is NaN has a gradient of NaN.

    grad_x[kept, reduced] = grad[kept] / ties[kept] where x[kept, reduced] is out[kept], else 0
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nxcore.ops.amax import backward_shared, of_axes, shared_evenly
from nxcore.ops.sum import Dim
from nxcore.plugin import Gradient


def reference(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return the smallest element along ``dim``.

    Parameters
    ----------
    x : Tensor
        Any shape and strides, any dtype but complex ones.
    dim : int, sequence of int or None
        The axes; all where None or empty.
    keepdim : bool, default False
        Whether to keep the axes, with size 1.

    Returns
    -------
    Tensor
        The dtype of ``x``.

    Raises
    ------
    InvalidInputError
        If an axis is out of range, named twice or of size 0.

    Examples
    --------
    >>> nxcore.ops.amin(torch.tensor([[1.0, 3.0], [2.0, 0.0]]), 1)
    tensor([1., 0.])
    """
    return torch.amin(x, dim=() if dim is None else dim, keepdim=keepdim)


def _backward(grad: Any, mask: tuple[bool, ...], x: Any, dim: Any, keepdim: Any) -> tuple[Any, ...]:
    return grad, x, dim, keepdim


SPEC = of_axes("amin", reference, gradient=Gradient("amin_backward", _backward, saves=("x",)))


def gradient(grad: Tensor, x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return ``grad`` where ``x`` is smallest, divided by the number of such elements, and 0 elsewhere.

    Parameters
    ----------
    grad : Tensor
        The gradient of the minima, with their shape for ``dim`` and ``keepdim``.
    x, dim, keepdim
        As in ``amin``.

    Returns
    -------
    Tensor
        The shape of ``x``, dtype of ``grad``.

    Raises
    ------
    InvalidInputError
        As ``amin``, or if ``grad`` isn't of the minima's shape.

    Examples
    --------
    >>> nxcore.ops.amin_backward(torch.ones(2), torch.tensor([[1.0, 1.0], [2.0, 0.0]]), 1)
    tensor([[0.5000, 0.5000],
            [0.0000, 1.0000]])
    """
    return shared_evenly(torch.amin, grad, x, dim, keepdim)


BACKWARD = backward_shared(SPEC, gradient)
