"""sum_to_size: undo broadcasting by summing repeated elements.

    out = the sum of x over the axes that broadcasting from ``size`` adds or expands

Semantics of ``torch.Tensor.sum_to_size``. The gradient is a view with stride 0: nothing is written, so no
kernel can be faster.

    grad_x[i] = grad[the output that x[i] was added to]
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.sum import described
from nxcore.plugin import (
    DEGENERATE,
    Cost,
    ErrorCase,
    Gradient,
    InvalidInputError,
    OpSpec,
    Param,
    Problem,
    Sample,
    TensorMeta,
    Way,
    rand,
    require_size,
    require_tensor,
    summed_dims,
)


def reference(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return ``x`` summed to ``size``, accumulating in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Any shape, strides and dtype.
    size : sequence of int
        A shape that broadcasts to that of ``x``.

    Returns
    -------
    Tensor
        Shape ``size``, dtype of ``x``; ``x`` itself where there is nothing to sum.

    Raises
    ------
    InvalidInputError
        If ``size`` doesn't broadcast to the shape of ``x``.

    Examples
    --------
    >>> nxcore.ops.sum_to_size(torch.ones(2, 3), (1, 3))
    tensor([[2., 2., 2.]])
    """
    return x.sum_to_size(size)


def check(x: Any, size: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "x", floating=False, strided=False)
    require_size(size, "size")
    shape = tuple(x.shape)
    lead = len(shape) - len(size)
    if lead < 0 or any(n not in (1, wide) for n, wide in zip(size, shape[lead:], strict=True)):
        raise InvalidInputError(
            f"size must broadcast to the shape of x, {shape}, got {tuple(size)}", argument="size"
        )


def view(x: Any, size: Any) -> bool:
    """Return whether there is nothing to sum."""
    return not summed_dims(tuple(x.shape), size)


def idle(problem: Problem) -> str:
    """Return why there is nothing to add up; empty if there is something."""
    return "nothing to add up: x has that size" if problem.view else ""


def cost(x: Any, size: Any) -> Cost:
    """Count x read once, the sums written once."""
    if view(x, size):
        return Cost(bytes=0, flops=0)
    return Cost(bytes=x.nbytes + torch.Size(size).numel() * x.element_size(), flops=x.numel())


def outputs(x: Any, size: Any) -> TensorMeta | None:
    """Describe the sums of a row-major tensor; None for others, and where there is nothing to sum."""
    plain = described(x, (), True)
    return None if plain is None or view(x, size) else TensorMeta.row_major(tuple(size), x.dtype, x.device)


def ways(x: Any, *sizes: Any) -> tuple[Way, ...]:
    """Divide sums of ``x`` to each size along the axes that it keeps; along others parts are added up."""
    ends = [len(x.shape) - len(size) for size in sizes]
    found = []
    for d, n in enumerate(x.shape):
        each = zip(sizes, ends, strict=True)
        dims = tuple(d - lead if d >= lead and size[d - lead] == n else None for size, lead in each)
        found.append(Way((d,), None, True, "" if any(i is not None for i in dims) else "sum", dims))
    return tuple(found)


def magnitude(x: Tensor, size: Any) -> Tensor:
    """Return the sum of absolute values."""
    return x.abs().sum_to_size(size)


def terms(x: Any, size: Any) -> int:
    """Return the number of elements of one sum."""
    return max(int(x.numel()) // max(torch.Size(size).numel(), 1), 1)


def _backward(grad: Any, mask: tuple[bool, ...], x: Any, size: Any) -> tuple[Any, ...]:
    return grad, tuple(x.shape)


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})

SAMPLES = (
    Sample("leading_one", (rand(1, 4), (4,))),
    Sample("bias", (rand(4, 3, 5, 6), (3, 1, 1)), tags=SMOKE),
    Sample("row", (rand(37, 65), (65,)), tags=SMOKE),
    Sample("column", (rand(65, 37), (65, 1)), tags=SMOKE),
    Sample("both_sides", (rand(6, 5, 70), (1, 5, 1)), tags=SMOKE),
    Sample("to_one", (rand(7, 11, 13), ())),
    Sample("new_axes_only", (rand(3, 4, 5), (5,))),
    Sample("list_of_sizes", (rand(3, 4, 5), [4, 1])),
    Sample("size_one_kept", (rand(5, 1, 6), (1, 6))),
    Sample("nothing_to_add", (rand(4, 5), (4, 5))),
    Sample("no_elements", (rand(0, 3), (3,)), tags=DEGENERATE),
    Sample("zero_dimensions", (rand(), ())),
    Sample("transposed", (rand(31, 17, 5, layout="transposed"), (17, 1))),
    Sample("channels_last", (rand(2, 8, 5, 6, layout="channels_last"), (8, 1, 1))),
    Sample("odd_storage_offset", (rand(257, 3, layout="sliced"), (3,))),
    Sample("gaps_in_memory", (rand(17, 9, layout="strided"), (17, 1))),
    Sample("expanded", (rand(6, 80, layout="expanded"), (80,))),
    Sample("nan", (rand(5, 257, values="nan"), (257,)), tags=SMOKE),
    Sample("accumulator_drift", (rand(3001, 16, low=0, high=2), (16,))),
    Sample("row_bias", (rand(8192, 1024), (1024,)), tags=BENCH),
    Sample("channel_bias", (rand(64, 16, 32, 32), (16, 1, 1)), tags=BENCH),
)

ERRORS = (
    ErrorCase("size", (rand(3, 4), (3,)), match=r"size must broadcast .* \(3, 4\), got \(3,\)"),
    ErrorCase("rank", (rand(4), (1, 4)), match=r"size must broadcast .* \(4,\), got \(1, 4\)"),
    ErrorCase("not_a_size", (rand(4), "4"), match="size must be a sequence of integers, got '4'"),
    ErrorCase("negative_size", (rand(4), (-1,)), match=r"size must be a tensor's shape, got \(-1,\)"),
    ErrorCase("not_a_tensor", (1.0, (1,)), match="x must be a tensor, got float"),
)

SPEC = OpSpec(
    name="sum_to_size",
    params=(Param("x", "tensor"), Param("size", "size")),
    reference=reference,
    check=check,
    holds="alike",
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
    gradient=Gradient("sum_to_size_backward", _backward),
    view=view,
    outputs=outputs,
    idle=idle,
    ways=ways,
    autocast=MappingProxyType({"cpu": "same", "cuda": "float32"}),
)


def gradient(grad: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return ``grad`` broadcast to ``size``.

    Parameters
    ----------
    grad : Tensor
        The gradient of the sum.
    size : sequence of int
        The shape that was summed.

    Returns
    -------
    Tensor
        Shape ``size``: a view of ``grad`` with stride 0 along the summed axes.

    Raises
    ------
    InvalidInputError
        If ``grad`` doesn't broadcast to ``size``.

    Examples
    --------
    >>> nxcore.ops.sum_to_size_backward(torch.arange(3.0), (2, 3))
    tensor([[0., 1., 2.],
            [0., 1., 2.]])
    """
    return grad.expand(size)


def gradient_check(grad: Any, size: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(grad, "grad")
    require_size(size, "size")
    shape, lead = tuple(grad.shape), len(size) - grad.ndim
    if lead < 0 or any(n not in (1, wide) for n, wide in zip(shape, size[lead:], strict=True)):
        raise InvalidInputError(f"grad must broadcast to size {tuple(size)}, got {shape}", argument="grad")


def gradient_cost(grad: Any, size: Any) -> Cost:
    """Count nothing read or written."""
    return Cost(bytes=0, flops=0)


def gradient_magnitude(grad: Tensor, size: Any) -> Tensor:
    """Return the view of absolute values."""
    return grad.abs().expand(size)


GRADIENT_SAMPLES = (
    Sample("bias", (rand(3, 1, 1), (4, 3, 5, 6)), tags=SMOKE),
    Sample("column", (rand(65, 1), (65, 37))),
    Sample("from_one", (rand(), (7, 11))),
)

GRADIENT_ERRORS = (
    ErrorCase("size", (rand(4), (9, 33)), match=r"grad must broadcast to size \(9, 33\), got \(4,\)"),
    ErrorCase("huge_size", (rand(4), (2**62, 4)), match="size must be a tensor's shape"),
    ErrorCase("not_a_tensor", (1.0, (9, 33)), match="grad must be a tensor, got float"),
)

BACKWARD = OpSpec(
    name="sum_to_size_backward",
    params=(Param("grad", "tensor"), Param("size", "size")),
    reference=gradient,
    check=gradient_check,
    cost=gradient_cost,
    samples=GRADIENT_SAMPLES,
    errors=GRADIENT_ERRORS,
    magnitude=gradient_magnitude,
    terms=lambda grad, size: 1,
    exact=True,
    view=lambda grad, size: True,
)
