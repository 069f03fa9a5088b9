"""sum_backward: the gradient of sum, the incoming gradient repeated along the summed axes.

    grad_x[kept, reduced] = grad[kept]

The result is a view with stride 0: nothing is written, so no kernel can be faster.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nxcore.plugin import (
    Cost,
    ErrorCase,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    canonical_dims,
    rand,
    require_flag,
    require_size,
    require_tensor,
)

Dim = int | tuple[int, ...] | list[int] | None


def reference(grad: Tensor, size: tuple[int, ...], dim: Dim = None, keepdim: bool = False) -> Tensor:
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


def check(grad: Any, size: Any, dim: Any, keepdim: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(grad, "grad")
    require_size(size, "size")
    require_flag(keepdim, "keepdim")
    dims = canonical_dims(dim, len(size))
    wanted = tuple(1 if i in dims else n for i, n in enumerate(size) if keepdim or i not in dims)
    if tuple(grad.shape) != wanted:
        raise InvalidInputError(
            f"grad must have the sum's shape {wanted}, got {tuple(grad.shape)}", argument="grad"
        )


def cost(grad: Any, size: Any, dim: Any, keepdim: Any) -> Cost:
    """Count nothing read or written."""
    return Cost(bytes=0, flops=0)


def magnitude(grad: Tensor, size: Any, dim: Any, keepdim: Any) -> Tensor:
    """Return the view of absolute values."""
    return reference(grad.abs(), size, dim, keepdim)


SAMPLES = (
    Sample("inner_axis", (rand(9), (9, 33), -1), tags=frozenset({"smoke"})),
    Sample("all_axes", (rand(), (7, 11))),
    Sample("around_the_middle", (rand(5), (6, 5, 7), (0, 2))),
    Sample("keepdim", (rand(6, 1, 7), (6, 5, 7), 1, True)),
    Sample("over_nothing", (rand(3), (3, 0), 1)),
)

ERRORS = (
    ErrorCase("grad_of_wrong_shape", (rand(4), (9, 33), -1), match=r"the sum's shape \(9,\), got \(4,\)"),
    ErrorCase("axis", (rand(9), (9, 33), 5), match=r"dim must be in \[-2, 1\]"),
    ErrorCase("not_a_size", (rand(9), None, -1), match="size must be a sequence of integers, got None"),
    ErrorCase("not_a_tensor", (1.0, (9, 33), 1), match="grad must be a tensor, got float"),
)

SPEC = OpSpec(
    name="sum_backward",
    params=(
        Param("grad", "tensor"),
        Param("size", "size"),
        Param("dim", "static", None),
        Param("keepdim", "static", False),
    ),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda grad, size, dim, keepdim: 1,
    exact=True,
    view=lambda grad, size, dim, keepdim: True,
)
