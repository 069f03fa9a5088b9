"""argmin: the index of the smallest element along one axis, or of all elements.

    out[kept] = the first d where x[kept, d] is min over d

Semantics of ``torch.argmin``: NaN is smaller than anything, and the first of equals counts, also of NaN.
There is no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nxcore.ops.amax import mirror
from nxcore.ops.argmax import index_of
from nxcore.ops.argmax import reference as largest
from nxcore.plugin import OpSpec


@mirror(largest)
def reference(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the smallest element along ``dim``.

    Examples
    --------
    >>> nxcore.ops.argmin(torch.tensor([[1.0, 3.0], [2.0, 0.0]]), 1)
    tensor([0, 1])
    """
    return torch.argmin(x, dim, keepdim)


SPEC: OpSpec = index_of("argmin", reference)
