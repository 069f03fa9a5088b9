"""all: whether every element along some axes is other than 0.

    out[kept] = every element over reduced of x[kept, reduced] != 0

Semantics of ``torch.all``: NaN isn't 0, and over nothing it is True. There is no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nxcore.ops.any import flag_of
from nxcore.ops.sum import Dim
from nxcore.plugin import OpSpec


def reference(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return whether every element along ``dim`` is other than 0.

    Parameters
    ----------
    x : Tensor
        Any shape, strides and dtype.
    dim : int, sequence of int or None
        The axes, one at least; all where None.
    keepdim : bool, default False
        Whether to keep the axes, with size 1.

    Returns
    -------
    Tensor
        bool; uint8 where ``x`` is. Over no elements, True.

    Raises
    ------
    InvalidInputError
        If an axis is out of range or named twice, or none is named.

    Examples
    --------
    >>> nxcore.ops.all(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), 1)
    tensor([False, False])
    """
    return torch.all(x, dim=dim, keepdim=keepdim)


SPEC: OpSpec = flag_of("all", reference, "holes")
