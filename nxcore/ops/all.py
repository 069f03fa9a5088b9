"""all: whether every element along some axes is other than 0.

    out[kept] = every element over reduced of x[kept, reduced] != 0

Semantics of ``torch.all``: NaN isn't 0, and over nothing it is True. There is no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nxcore.ops.amax import mirror
from nxcore.ops.any import flag_of
from nxcore.ops.any import reference as some
from nxcore.ops.sum import Dim
from nxcore.plugin import OpSpec


@mirror(some, {"elements, False": "elements, True"})
def reference(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return whether every element along ``dim`` is other than 0.

    Examples
    --------
    >>> nxcore.ops.all(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), 1)
    tensor([False, False])
    """
    return torch.all(x, dim=dim, keepdim=keepdim)


SPEC: OpSpec = flag_of("all", reference, "holes")
