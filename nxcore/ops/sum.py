"""sum: the sum of a tensor over some axes.

    out[kept] = sum over reduced of x[kept, reduced]

Semantics of ``torch.sum``. Summation error: Higham 1993, "The accuracy of floating point summation". The
gradient is a view with stride 0: nothing is written, so no kernel can be faster.

    grad_x[kept, reduced] = grad[kept]
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import (
    DEGENERATE,
    Cost,
    ErrorCase,
    Gradient,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    Way,
    backward_of,
    canonical_dims,
    rand,
    require_flag,
    require_size,
    require_tensor,
)

Dim = int | tuple[int, ...] | list[int] | None


def reference(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return the sum over ``dim``, accumulating in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Any shape, strides and dtype.
    dim : int, sequence of int or None
        The axes to sum over; all where None or empty.
    keepdim : bool, default False
        Whether to keep the axes, with size 1.

    Returns
    -------
    Tensor
        The dtype of ``x``; int64 where ``x`` has an integer dtype or bool. A sum of no elements is 0.

    Raises
    ------
    InvalidInputError
        If an axis is out of range or named twice.

    Examples
    --------
    >>> nxcore.ops.sum(torch.ones(2, 3), 1)
    tensor([3., 3.])
    """
    return torch.sum(x, dim=dim, keepdim=keepdim)


def check(x: Any, dim: Any, keepdim: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "x", floating=False, strided=False)
    canonical_dims(dim, x.ndim)
    require_flag(keepdim, "keepdim")


def outputs(x: Any, dim: Any) -> int:
    """Return the number of outputs."""
    dims = canonical_dims(dim, x.ndim)
    return torch.Size([n for i, n in enumerate(x.shape) if i not in dims]).numel()


def described(x: Any, dim: Any, keepdim: Any, dtype: torch.dtype | None = None) -> TensorMeta | None:
    """Describe the results of a row-major tensor, of its own dtype or ``dtype``; None for others.

    Then torch runs.
    """
    # Comparing an unknown size would fix it. A stride of an axis of one element may be any number.
    if not x.dtype.is_floating_point or not all(type(n) is int and n for n in x.shape):
        return None
    if tuple(x.stride()) != TensorMeta.row_major(tuple(x.shape), x.dtype, x.device).strides:
        return None
    dims = canonical_dims(dim, x.ndim)
    shape = tuple(1 if i in dims else n for i, n in enumerate(x.shape) if keepdim or i not in dims)
    return TensorMeta.row_major(shape, dtype or x.dtype, x.device)


def ways(x: Any, dim: Any, keepdim: Any, joins: str = "sum") -> tuple[Way, ...]:
    """Divide along any axis that is kept; along others, results are joined so."""
    dims = canonical_dims(dim, x.ndim)
    kept = [d for d in range(x.ndim) if d not in dims]
    divided = (Way((d,), d if keepdim else i, audits=True) for i, d in enumerate(kept))
    return (*divided, *(Way((d,), None, audits=True, joins=joins) for d in dims if joins))


def cost(x: Any, dim: Any, keepdim: Any) -> Cost:
    """Count x read once, the sums written once."""
    return Cost(bytes=x.nbytes + outputs(x, dim) * x.element_size(), flops=x.numel())


def magnitude(x: Tensor, dim: Any, keepdim: Any) -> Tensor:
    """Return the sum of absolute values."""
    return torch.sum(x.abs(), dim=dim, keepdim=keepdim)


def terms(x: Any, dim: Any, keepdim: Any) -> int:
    """Return the number of elements of one sum."""
    return max(int(x.numel()) // max(outputs(x, dim), 1), 1)


def _backward(grad: Any, mask: tuple[bool, ...], x: Any, dim: Any, keepdim: Any) -> tuple[Any, ...]:
    return grad, tuple(x.shape), dim, keepdim


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})

SAMPLES = (
    Sample("all_axes", (rand(7, 11, 13),), tags=SMOKE),
    Sample("inner_axis", (rand(9, 1025), -1), tags=SMOKE),
    Sample("outer_axis", (rand(1025, 9), 0), tags=SMOKE),
    Sample("middle_axis", (rand(5, 33, 7), 1), {"keepdim": True}, SMOKE),
    Sample("around_the_middle", (rand(6, 5, 70), (0, 2)), tags=SMOKE),
    Sample("every_second_axis", (rand(3, 4, 5, 6), (0, 2))),
    Sample("list_of_axes", (rand(3, 4, 5), [0, 1])),
    Sample("empty_tuple_means_all", (rand(3, 4), ())),
    Sample("one_element", (rand(1),)),
    Sample("zero_dimensions", (rand(),)),
    Sample("zero_dimensions_axis", (rand(), 0)),
    Sample("over_nothing", (rand(3, 0), 1), tags=DEGENERATE),
    Sample("nothing_left", (rand(0, 3), 1), tags=DEGENERATE),
    Sample("size_one_axis", (rand(5, 1, 6), 1)),
    Sample("power_of_two_less_one", (rand(4095),)),
    Sample("power_of_two", (rand(4096),)),
    Sample("power_of_two_plus_one", (rand(4097),)),
    Sample("prime", (rand(10007),)),
    Sample("transposed", (rand(31, 17, 5, layout="transposed"), 0)),
    Sample("transposed_keepdim", (rand(31, 17, 5, layout="transposed"), 1), {"keepdim": True}),
    Sample("channels_last", (rand(2, 8, 5, 6, layout="channels_last"), (0, 2, 3))),
    Sample("channels_last_inner", (rand(2, 8, 5, 6, layout="channels_last"), 1)),
    Sample("odd_storage_offset", (rand(257, 3, layout="sliced"), 0)),
    Sample("gaps_in_memory", (rand(17, 9, layout="strided"), 1)),
    Sample("expanded", (rand(6, 80, layout="expanded"), 0)),
    Sample("nan", (rand(5, 257, values="nan"), 0), tags=SMOKE),
    Sample("inf_minus_inf", (rand(40, 3, values="inf"), 1)),
    Sample("denormal", (rand(300, values="denormal", dtype=torch.float32),), tags=DEGENERATE),
    Sample("accumulator_drift", (rand(16, 3001, low=0, high=2), 1)),
    Sample("next_to_overflow", (rand(16, 4000, low=0, high=30), 1)),
    Sample("past_the_partials", (rand(2_100_000, dtype=torch.float32),)),
    Sample("small", (rand(64, 128), -1), tags=BENCH),
    Sample("attention_all", (rand(4, 512, 896),), tags=BENCH),
    Sample("attention_inner", (rand(4, 512, 896), -1), tags=BENCH),
    Sample("attention_outer", (rand(4, 512, 896), (0, 1)), tags=BENCH),
    Sample("attention_middle", (rand(4, 512, 896), 1), tags=BENCH),
    Sample("channels", (rand(64, 16, 32, 32), (0, 2, 3)), tags=BENCH),
    Sample("large_inner", (rand(4096, 16384), -1), tags=BENCH | {"huge"}),
    Sample("large_outer", (rand(4096, 16384), 0), tags=BENCH | {"huge"}),
)

ERRORS = (
    ErrorCase("axis", (rand(3, 4), 2), match=r"dim must be in \[-2, 1\] for a tensor of 2 dimensions, got 2"),
    ErrorCase("axis_twice", (rand(3, 4), (0, -2)), match=r"name each axis once, got \(0, -2\)"),
    ErrorCase("axis_not_an_integer", (rand(3, 4), (0.5,)), match="dim must hold integers, got float"),
    ErrorCase("axis_not_a_sequence", (rand(3, 4), 0.5), match="dim must be an integer or a sequence"),
    ErrorCase("flag", (rand(3, 4), 0, 1), match="keepdim must be True or False, got 1"),
    ErrorCase("not_a_tensor", ([1.0, 2.0],), match="x must be a tensor, got list"),
)

SPEC = OpSpec(
    name="sum",
    params=(Param("x", "tensor"), Param("dim", "static", None), Param("keepdim", "static", False)),
    reference=reference,
    check=check,
    holds="alike",
    cost=cost,
    outputs=described,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
    gradient=Gradient("sum_backward", _backward),
    ways=ways,
    autocast=MappingProxyType({"cpu": "same", "cuda": "float32"}),
)


def gradient(grad: Tensor, size: tuple[int, ...], dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return ``grad`` expanded to ``size``.

    Parameters
    ----------
    grad : Tensor
        The gradient of the sum, with the sum's shape for ``dim`` and ``keepdim``.
    size : tuple of int
        The shape that was summed.
    dim, keepdim
        As in ``sum``.

    Returns
    -------
    Tensor
        Shape ``size``: a view of ``grad`` with stride 0 along the summed axes.

    Raises
    ------
    InvalidInputError
        If an axis is out of range, or ``grad`` isn't of the sum's shape.

    Examples
    --------
    >>> nxcore.ops.sum_backward(torch.tensor([1.0, 2.0]), (2, 3), 1)
    tensor([[1., 1., 1.],
            [2., 2., 2.]])
    """
    if not keepdim:
        for d in canonical_dims(dim, len(size)):
            grad = grad.unsqueeze(d)
    return grad.expand(size)


def gradient_check(size: Any, dim: Any, keepdim: Any) -> None:
    """Raise unless the gradient is defined for the arguments after the incoming one."""
    require_size(size, "size")
    require_flag(keepdim, "keepdim")
    canonical_dims(dim, len(size))


def summed(size: Any, dim: Any, keepdim: Any) -> tuple[int, ...]:
    """Return the sum's shape."""
    dims = canonical_dims(dim, len(size))
    return tuple(1 if i in dims else n for i, n in enumerate(size) if keepdim or i not in dims)


def gradient_cost(grad: Any, size: Any, dim: Any, keepdim: Any) -> Cost:
    """Count nothing read or written."""
    return Cost(bytes=0, flops=0)


def gradient_magnitude(grad: Tensor, size: Any, dim: Any, keepdim: Any) -> Tensor:
    """Return the view of absolute values."""
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
        Sample("all_axes", (rand(), (7, 11))),
        Sample("around_the_middle", (rand(5), (6, 5, 7), (0, 2))),
        Sample("keepdim", (rand(6, 1, 7), (6, 5, 7), 1, True)),
        Sample("over_nothing", (rand(3), (3, 0), 1)),
    ),
    errors=(
        ErrorCase("axis", (rand(9), (9, 33), 5), match=r"dim must be in \[-2, 1\]"),
        ErrorCase("not_a_size", (rand(9), None, -1), match="size must be a sequence of integers, got None"),
    ),
    terms=lambda grad, size, dim, keepdim: 1,
    exact=True,
    view=lambda grad, size, dim, keepdim: True,
)
