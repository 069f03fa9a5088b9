"""amin: the smallest element along some axes.

    out[kept] = min over reduced of x[kept, reduced]

Semantics of ``torch.amin``: NaN is smaller than anything. Elements that are all the smallest share the
gradient evenly, as torch has it; an output that is NaN has a gradient of NaN.

    grad_x[kept, reduced] = grad[kept] / ties[kept] where x[kept, reduced] is out[kept], else 0
"""

from __future__ import annotations

import torch
from torch import Tensor

from nxcore.ops.amax import backward_shared, mirror, of_extremes, shared_evenly
from nxcore.ops.amax import gradient as gradient_of_largest
from nxcore.ops.amax import reference as largest
from nxcore.ops.sum import Dim


@mirror(largest)
def reference(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return the smallest element along ``dim``.

    Examples
    --------
    >>> nxcore.ops.amin(torch.tensor([[1.0, 3.0], [2.0, 0.0]]), 1)
    tensor([1., 0.])
    """
    return torch.amin(x, dim=() if dim is None else dim, keepdim=keepdim)


SPEC = of_extremes("amin", reference)


@mirror(gradient_of_largest, {"amax": "amin", "maxima": "minima"})
def gradient(grad: Tensor, x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return ``grad`` where ``x`` is smallest, divided by the number of such elements, and 0 elsewhere.

    Examples
    --------
    >>> nxcore.ops.amin_backward(torch.ones(2), torch.tensor([[1.0, 1.0], [2.0, 0.0]]), 1)
    tensor([[0.5000, 0.5000],
            [0.0000, 1.0000]])
    """
    return shared_evenly(torch.amin, grad, x, dim, keepdim)


BACKWARD = backward_shared(SPEC, gradient)
