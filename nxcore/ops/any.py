"""any: whether any element along some axes is other than 0.

    out[kept] = any element over reduced of x[kept, reduced] != 0

Semantics of ``torch.any``: NaN isn't 0, and over nothing it is False. There is no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from nxcore.ops.amax import AXES, SAMPLES, flag_cost, of_axes
from nxcore.ops.sum import SMOKE, Dim, described
from nxcore.plugin import (
    DEGENERATE,
    ErrorCase,
    InvalidInputError,
    OpSpec,
    Sample,
    TensorMeta,
    canonical_dims,
    rand,
    require_flag,
    require_tensor,
)


def reference(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return whether any element along ``dim`` is other than 0.

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
        bool; uint8 where ``x`` is. Over no elements, False.

    Raises
    ------
    InvalidInputError
        If an axis is out of range or named twice, or none is named.

    Examples
    --------
    >>> nxcore.ops.any(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), 1)
    tensor([ True, False])
    """
    return torch.any(x, dim=dim, keepdim=keepdim)


def check(x: Any, dim: Any, keepdim: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "x", floating=False)
    if isinstance(dim, tuple | list) and not dim:  # for which torch reduces nothing, unlike a sum
        raise InvalidInputError(f"dim must name an axis, or be None for all, got {dim}", argument="dim")
    canonical_dims(dim, x.ndim)
    require_flag(keepdim, "keepdim")


def flags(x: Any, dim: Any, keepdim: Any) -> TensorMeta | None:
    """Describe the results."""
    return described(x, dim, keepdim, torch.bool)


Values = Literal["sparse", "holes"]


def flag_of(name: str, reference: Callable[..., Any], values: Values) -> OpSpec:
    """Return the spec of ``any`` or ``all``, whose samples have such ``values``."""
    return of_axes(
        name,
        reference,
        check=check,
        cost=flag_cost,
        samples=(
            Sample("inner_axis", (rand(23, 90, values=values), -1), tags=SMOKE),
            Sample("outer_axis", (rand(90, 23, values=values), 0), tags=SMOKE),
            Sample("middle_axis", (rand(5, 39, 7, values=values), 1), {"keepdim": True}, SMOKE),
            Sample("around_the_middle", (rand(6, 25, 30, values=values), (0, 2))),
            Sample("all_axes", (rand(7, 11, 13, values=values),), tags=DEGENERATE),
            Sample("long_rows", (rand(3, 5001, values="zeros"), 1), tags=DEGENERATE),
            Sample("nan", (rand(5, 257, values="nan"), 0), tags=DEGENERATE),
            Sample("denormal", (rand(40, values="denormal", dtype=torch.float32),), tags=DEGENERATE),
            Sample("zero_dimensions", (rand(),), tags=DEGENERATE),
            Sample("over_nothing", (rand(3, 0), 1), tags=DEGENERATE),
            Sample("transposed", (rand(17, 47, 5, layout="transposed", values=values), 1)),
            Sample("odd_storage_offset", (rand(257, 9, layout="sliced", values=values), 0)),
            Sample("channels_last", (rand(3, 40, 5, 6, layout="channels_last", values=values), 1)),
            Sample("expanded", (rand(6, 80, layout="expanded", values=values), 0)),
            Sample("gaps_in_memory", (rand(33, 40, layout="strided", values=values), 1)),
            *(s for s in SAMPLES if "bench" in s.tags),
        ),
        errors=(
            *AXES,
            ErrorCase("axis_twice", (rand(3, 4), (0, -2)), match=r"name each axis once, got \(0, -2\)"),
            ErrorCase("no_axis", (rand(3, 4), ()), match=r"or be None for all, got \(\)"),
        ),
        outputs=flags,
    )


SPEC = flag_of("any", reference, "sparse")
