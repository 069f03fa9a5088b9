"""min: the smallest element along one axis, and its index.

    values[kept] = min over d of x[kept, d];  indices[kept] = the first d where it is

Semantics of ``torch.min`` with an axis: NaN is smaller than anything, and the first of equals counts, also of
NaN. The gradient goes to that element alone.

    grad_x[kept, d] = grad[kept] where d is indices[kept], else 0
"""

from __future__ import annotations

import torch
from torch import Tensor

from nxcore.ops.amax import mirror
from nxcore.ops.max import at_indices, backward_at_indices, with_indices
from nxcore.ops.max import gradient as gradient_of_largest
from nxcore.ops.max import reference as largest
from nxcore.plugin import OpSpec


@mirror(largest)
def reference(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the smallest element along ``dim``, and its index.

    Examples
    --------
    >>> nxcore.ops.min(torch.tensor([[1.0, 3.0], [2.0, 0.0]]), 1)
    (tensor([1., 0.]), tensor([0, 1]))
    """
    values, indices = torch.min(x, dim, keepdim)
    return values, indices


SPEC: OpSpec = with_indices("min", reference)


@mirror(gradient_of_largest, {"max": "min", "maxima": "minima"})
def gradient(grad: Tensor, indices: Tensor, size: tuple[int, ...], dim: int, keepdim: bool = False) -> Tensor:
    """Return ``grad`` at ``indices`` along ``dim``, and 0 elsewhere.

    Examples
    --------
    >>> nxcore.ops.min_backward(torch.ones(2), torch.tensor([1, 0]), (2, 2), 1)
    tensor([[0., 1.],
            [1., 0.]])
    """
    return at_indices(grad, indices, size, dim, keepdim)


BACKWARD = backward_at_indices(SPEC, gradient)
