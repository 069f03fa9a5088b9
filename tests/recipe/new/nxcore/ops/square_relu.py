"""square_relu: the square of the positive part.

    out = max(x, 0)^2;  the gradient to x is 2 max(x, 0) grad, by square_relu_backward

So et al. 2021, "Primer: searching for efficient transformers for language modeling".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import (
    SAME,
    Cost,
    ErrorCase,
    Gradient,
    OpSpec,
    Param,
    Sample,
    backward_of,
    rand,
    require_tensor,
)


def reference(x: Tensor) -> Tensor:
    """Return the square of the positive part of ``x``.

    Parameters
    ----------
    x : Tensor
        Any shape and strides, floating.

    Returns
    -------
    Tensor
        Shape, dtype and layout of ``x``.

    Raises
    ------
    InvalidInputError
        If ``x`` isn't a floating tensor.

    Examples
    --------
    >>> nxcore.ops.square_relu(torch.tensor([-1.0, 3.0]))
    tensor([0., 9.])
    """
    return torch.relu(x).square()


def gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of ``square_relu``.

    Parameters
    ----------
    grad : Tensor
        The gradient of the result.
    x : Tensor
        As in ``square_relu``.

    Returns
    -------
    Tensor
        Shape and dtype of ``x``.

    Raises
    ------
    InvalidInputError
        As ``square_relu``; or if ``grad`` isn't of its shape.

    Examples
    --------
    >>> nxcore.ops.square_relu_backward(torch.ones(2), torch.tensor([-1.0, 3.0]))
    tensor([0., 6.])
    """
    return 2 * torch.relu(x) * grad


def check(x: Any) -> None:
    """Refuse what the operator isn't defined for."""
    require_tensor(x, "x")


def _backward(grad: Any, mask: tuple[bool, ...], x: Any) -> tuple[Any, ...]:
    return grad, x


SMOKE, BENCH = frozenset({"smoke"}), frozenset({"bench"})

SPEC = OpSpec(
    name="square_relu",
    params=(Param("x", "tensor"),),
    reference=reference,
    check=check,
    cost=lambda x: Cost(bytes=2 * x.nbytes, flops=2 * x.numel()),
    samples=(
        Sample("last_block_partly_filled", (rand(3, 37, 11),), tags=SMOKE),
        Sample("nan", (rand(6, 5, values="nan"),), tags=SMOKE),
        Sample("infinities", (rand(6, 5, values="inf"),)),
        Sample("transposed", (rand(7, 9, layout="transposed"),)),
        Sample("channels_last", (rand(2, 3, 4, 5, layout="channels_last"),)),
        Sample("odd_storage_offset", (rand(5, 9, layout="sliced"),)),
        Sample("gaps_in_memory", (rand(4, 6, layout="strided"),)),
        Sample("expanded", (rand(3, 5, layout="expanded"),)),
        Sample("large", (rand(64, 128, 56),), tags=BENCH),
    ),
    errors=(
        ErrorCase("integers", (rand(3, dtype=torch.int64),), match="x must have a floating dtype"),
        ErrorCase("not_a_tensor", (2.0,), match="x must be a tensor, got float"),
    ),
    magnitude=lambda x: x.abs().square(),
    terms=lambda x: 1,
    gradient=Gradient("square_relu_backward", _backward, saves=("x",)),
    autocast=SAME,
)

BACKWARD = backward_of(
    SPEC,
    gradient,
    shape=lambda x: x.shape,
    cost=lambda grad, x: Cost(bytes=grad.nbytes + 2 * x.nbytes, flops=3 * x.numel()),
    magnitude=lambda grad, x: 2 * x.abs() * grad.abs(),
    samples=(Sample("stride_zero_grad", (rand(4, 6, layout="repeated"), rand(4, 6))),),
)
