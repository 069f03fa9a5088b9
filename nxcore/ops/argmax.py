"""argmax: the index of the largest element along one axis, or of all elements.

    out[kept] = the first d where x[kept, d] is max over d

Semantics of ``torch.argmax``: NaN is larger than anything, and the first of equals counts, also of NaN.
There is no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.amax import (
    AXES,
    OF_ONE_AXIS,
    OVER_NOTHING,
    SAMPLES,
    index_cost,
    of_axes,
    require_real,
    require_terms,
)
from nxcore.ops.max import require_axis
from nxcore.ops.sum import described
from nxcore.plugin import ErrorCase, InvalidInputError, OpSpec, Sample, TensorMeta, rand, require_flag


def reference(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return the index of the largest element along ``dim``.

    Parameters
    ----------
    x : Tensor
        Any shape and strides, any dtype but bool and complex ones.
    dim : int or None
        The axis; None for the index among all elements, in torch's order.
    keepdim : bool, default False
        Whether to keep the axes, with size 1.

    Returns
    -------
    Tensor
        int64.

    Raises
    ------
    InvalidInputError
        If the axis is out of range or of size 0, or ``x`` is bool.

    Examples
    --------
    >>> nxcore.ops.argmax(torch.tensor([[1.0, 3.0], [2.0, 0.0]]), 1)
    tensor([1, 0])
    """
    return torch.argmax(x, dim, keepdim)


def check(x: Any, dim: Any, keepdim: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_real(x)
    if x.dtype is torch.bool:
        raise InvalidInputError("x must not be bool, as torch has it", argument="x")
    if dim is not None:
        require_axis(dim, x.ndim)
    require_terms(x, dim)
    require_flag(keepdim, "keepdim")


def indices(x: Any, dim: Any, keepdim: Any) -> TensorMeta | None:
    """Describe the indices."""
    return described(x, dim, keepdim, torch.int64)


def index_of(name: str, reference: Callable[..., Any]) -> OpSpec:
    """Return the spec of ``argmax`` or ``argmin``."""
    return of_axes(
        name,
        reference,
        check=check,
        cost=index_cost,
        samples=(
            *OF_ONE_AXIS,
            *(s for s in SAMPLES if len(s.args) == 1),
            Sample("all_axes_of_another_order", (rand(7, 5, 3, layout="transposed"),)),
            Sample("all_axes_with_gaps", (rand(7, 5, 3, layout="strided"),), {"keepdim": True}),
        ),
        errors=(
            *AXES,
            *OVER_NOTHING,
            ErrorCase("several_axes", (rand(3, 4), (0, 1)), match=r"dim must be an integer, got \(0, 1\)"),
            ErrorCase("bool", (rand(3, dtype=torch.bool),), match="x must not be bool"),
        ),
        outputs=indices,
    )


SPEC = index_of("argmax", reference)
