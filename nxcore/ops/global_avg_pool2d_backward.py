"""global_avg_pool2d_backward: the gradient of global_avg_pool2d, one value for all pixels of a channel.

    grad_x[n, c, h, w] = grad[n, c] / (H * W)

The result is a view with stride 0: no image is written, so no kernel can be faster.
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
    """Return ``grad`` divided by H * W and expanded to ``size``.

    Parameters
    ----------
    grad : Tensor
        The gradient of the means, (N, C, 1, 1) or (C, 1, 1).
    size : tuple of int
        The shape of the input, (N, C, H, W) or (C, H, W).

    Returns
    -------
    Tensor
        Shape ``size``, with stride 0 along H and W.

    Raises
    ------
    InvalidInputError
        If ``size`` isn't that of an image, or ``grad`` isn't of the means' shape.

    Examples
    --------
    >>> nxcore.ops.global_avg_pool2d_backward(torch.ones(1, 1, 1), (1, 2, 2))
    tensor([[[0.2500, 0.2500],
             [0.2500, 0.2500]]])
    """
    return (grad / (size[-2] * size[-1])).expand(size)


def require_pooled(grad: Any, size: Any, name: str = "grad") -> None:
    """Raise unless ``size`` is an image's, and the tensor has one value for each channel."""
    require_size(size, "size")
    if len(size) not in (3, 4) or 0 in size[-3:]:
        raise InvalidInputError(
            f"size must be (C, H, W) or (N, C, H, W) with nothing but N of size 0, got {tuple(size)}",
            argument="size",
        )
    wanted = (*size[:-2], 1, 1)
    if tuple(grad.shape) != wanted:
        raise InvalidInputError(
            f"{name} must have the output's shape {wanted}, got {tuple(grad.shape)}", argument=name
        )


def check(grad: Any, size: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(grad, "grad")
    require_pooled(grad, size)


def cost(grad: Any, size: Any) -> Cost:
    """Count grad read once, one value written for each channel."""
    return Cost(bytes=2 * grad.nbytes, flops=grad.numel())


def magnitude(grad: Tensor, size: Any) -> Tensor:
    """Return the gradient of absolute values."""
    return reference(grad.abs(), size)


SAMPLES = (
    Sample("head", (rand(2, 5, 1, 1), (2, 5, 7, 9)), tags=frozenset({"smoke"})),
    Sample("one_plane", (rand(3, 1, 1), (3, 9, 8))),
    Sample("stride_zero_grad", (rand(3, 2, 1, 1, layout="expanded"), (3, 2, 6, 8))),
)

ERRORS = (
    ErrorCase("shape", (rand(2, 4, 1, 1), (2, 5, 7, 9)), match=r"the output's shape \(2, 5, 1, 1\), got"),
    ErrorCase("rank", (rand(2, 1), (7, 9)), match=r"size must be \(C, H, W\) or \(N, C, H, W\)"),
    ErrorCase("no_pixels", (rand(2, 5, 1, 1), (2, 5, 0, 9)), match="nothing but N of size 0"),
    ErrorCase("not_a_size", (rand(2, 5, 1, 1), None), match="size must be a sequence of integers, got None"),
    ErrorCase("not_a_tensor", (1.0, (2, 5, 7, 9)), match="grad must be a tensor, got float"),
)

SPEC = OpSpec(
    name="global_avg_pool2d_backward",
    params=(Param("grad", "tensor"), Param("size", "size")),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda grad, size: 1,
    view=lambda grad, size: True,
)
