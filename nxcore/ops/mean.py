"""mean: the mean of a tensor over some axes.

    out[kept] = sum over reduced of x[kept, reduced] / n

Semantics of ``torch.mean``. The gradient is a view with stride 0: no element of the input's size is written,
so no kernel can be faster.

    grad_x[kept, reduced] = grad[kept] / n
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.amax import of_axes
from nxcore.ops.sum import ERRORS, SMOKE, Dim, cost, described, gradient_check, summed, terms
from nxcore.ops.sum import SAMPLES as SUM_SAMPLES
from nxcore.ops.sum import gradient as expanded
from nxcore.plugin import (
    DEGENERATE,
    Cost,
    ErrorCase,
    Gradient,
    InvalidInputError,
    Param,
    Sample,
    backward_of,
    canonical_dims,
    rand,
    require_flag,
    require_tensor,
)


def reference(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return the mean over ``dim``, accumulating in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Any shape and strides, floating or complex.
    dim : int, sequence of int or None
        The axes; all where None or empty.
    keepdim : bool, default False
        Whether to keep the axes, with size 1.

    Returns
    -------
    Tensor
        The dtype of ``x``. A mean of no elements is NaN.

    Raises
    ------
    InvalidInputError
        If an axis is out of range or named twice, or ``x`` has integers.

    Examples
    --------
    >>> nxcore.ops.mean(torch.tensor([[1.0, 3.0], [2.0, 0.0]]), 1)
    tensor([2., 1.])
    """
    return torch.mean(x, dim=dim, keepdim=keepdim)


def check(x: Any, dim: Any, keepdim: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "x", floating=False)
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        raise InvalidInputError(f"x must have a floating dtype, got {x.dtype}", argument="x")
    canonical_dims(dim, x.ndim)
    require_flag(keepdim, "keepdim")


def magnitude(x: Tensor, dim: Any, keepdim: Any) -> Tensor:
    """Return the mean of absolute values."""
    return torch.mean(x.abs(), dim=dim, keepdim=keepdim)


def _backward(grad: Any, mask: tuple[bool, ...], x: Any, dim: Any, keepdim: Any) -> tuple[Any, ...]:
    return grad, tuple(x.shape), dim, keepdim


NAMES = (
    *("all_axes", "inner_axis", "outer_axis", "middle_axis", "around_the_middle", "zero_dimensions"),
    *("nothing_left", "transposed", "odd_storage_offset", "gaps_in_memory", "expanded", "channels_last"),
    *("nan", "accumulator_drift", "next_to_overflow"),
)
"""The samples of a sum that a mean has too: its kernels are those of sums."""

SPEC = of_axes(
    "mean",
    reference,
    check=check,
    cost=cost,
    samples=tuple(s for s in SUM_SAMPLES if s.name in NAMES or "bench" in s.tags),
    errors=(
        *ERRORS,
        ErrorCase("integers", (rand(3, dtype=torch.int64),), match="x must have a floating dtype, got"),
    ),
    outputs=described,
    magnitude=magnitude,
    terms=terms,
    exact=False,
    gradient=Gradient("mean_backward", _backward),
)


def gradient(grad: Tensor, size: tuple[int, ...], dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return ``grad`` divided by the number of terms, and expanded to ``size``.

    Parameters
    ----------
    grad : Tensor
        The gradient of the mean, with the mean's shape for ``dim`` and ``keepdim``.
    size : tuple of int
        The shape that was averaged.
    dim, keepdim
        As in ``mean``.

    Returns
    -------
    Tensor
        Shape ``size``, with stride 0 along the averaged axes.

    Raises
    ------
    InvalidInputError
        If an axis is out of range, or ``grad`` isn't of the mean's shape.

    Examples
    --------
    >>> nxcore.ops.mean_backward(torch.tensor([3.0, 6.0]), (2, 3), 1)
    tensor([[1., 1., 1.],
            [2., 2., 2.]])
    """
    count = math.prod([size[d] for d in canonical_dims(dim, len(size))])
    return expanded(grad / count, size, dim, keepdim)


def gradient_cost(grad: Any, size: Any, dim: Any, keepdim: Any) -> Cost:
    """Count grad read once, one value written for each mean."""
    return Cost(bytes=2 * grad.nbytes, flops=grad.numel())


def gradient_magnitude(grad: Tensor, size: Any, dim: Any, keepdim: Any) -> Tensor:
    """Return the gradient of absolute values."""
    return gradient(grad.abs(), size, dim, keepdim)


BACKWARD = backward_of(
    SPEC,
    gradient,
    params=(Param("size", "size"), *SPEC.params[1:]),
    check=gradient_check,
    shape=summed,
    cost=gradient_cost,
    magnitude=gradient_magnitude,
    given=lambda sample: None,  # a view of any gradient
    samples=(
        Sample("inner_axis", (rand(9), (9, 33), -1), tags=SMOKE),
        Sample("all_axes", (rand(), (7, 11)), tags=DEGENERATE),
        Sample("keepdim", (rand(6, 1, 7), (6, 5, 7), 1, True)),
    ),
    errors=(ErrorCase("axis", (rand(9), (9, 33), 5), match=r"dim must be in \[-2, 1\]"),),
    terms=lambda grad, size, dim, keepdim: 1,
    exact=False,
    view=lambda grad, size, dim, keepdim: True,
)
