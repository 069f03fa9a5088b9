"""sum_to_size_backward: the gradient of sum_to_size, the incoming gradient broadcast.

    grad_x[i] = grad[the output that x[i] was added to]

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
    rand,
    require_size,
    require_tensor,
)


def reference(grad: Tensor, size: tuple[int, ...]) -> Tensor:
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


def check(grad: Any, size: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(grad, "grad")
    require_size(size, "size")
    shape, lead = tuple(grad.shape), len(size) - grad.ndim
    if lead < 0 or any(n not in (1, wide) for n, wide in zip(shape, size[lead:], strict=True)):
        raise InvalidInputError(f"grad must broadcast to size {tuple(size)}, got {shape}", argument="grad")


def cost(grad: Any, size: Any) -> Cost:
    """Count nothing read or written."""
    return Cost(bytes=0, flops=0)


def magnitude(grad: Tensor, size: Any) -> Tensor:
    """Return the view of absolute values."""
    return grad.abs().expand(size)


SAMPLES = (
    Sample("bias", (rand(3, 1, 1), (4, 3, 5, 6)), tags=frozenset({"smoke"})),
    Sample("column", (rand(65, 1), (65, 37))),
    Sample("from_one", (rand(), (7, 11))),
)

ERRORS = (
    ErrorCase("size", (rand(4), (9, 33)), match=r"grad must broadcast to size \(9, 33\), got \(4,\)"),
    ErrorCase("huge_size", (rand(4), (2**62, 4)), match="size must be a tensor's shape"),
    ErrorCase("not_a_tensor", (1.0, (9, 33)), match="grad must be a tensor, got float"),
)

SPEC = OpSpec(
    name="sum_to_size_backward",
    params=(Param("grad", "tensor"), Param("size", "size")),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda grad, size: 1,
    exact=True,
    view=lambda grad, size: True,
)
