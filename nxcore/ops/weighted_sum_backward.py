"""weighted_sum_backward: the gradients of weighted_sum, to every candidate and to the weights.

    grad_xs[i] = weights[i] * grad;  grad_weights[i] = sum(grad * xs[i])

The chain rule through ``weighted_sum``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.softmax_sum import accumulator, check_candidates
from nxcore.ops.softmax_sum_backward import SPEC as SOFTMAX_SUM_BACKWARD
from nxcore.ops.softmax_sum_backward import (
    Dot,
    Result,
    check_grad,
    contract,
    product_sum,
    vector_dot,
    wanted,
)
from nxcore.ops.weighted_sum import renamed
from nxcore.plugin import REQUIRED, OpSpec, Param, is_tensor


def _contract(
    dot: Dot, grad: Tensor, xs: Sequence[Tensor] | Tensor, weights: Tensor, output_mask: Any
) -> Result:
    grads, dots = contract(dot, grad, xs, weights.to(accumulator(xs)), wanted(xs, output_mask))
    return grads, None if dots is None else dots.to(weights.dtype)


def reference(
    grad: Tensor,
    xs: Sequence[Tensor] | Tensor,
    weights: Tensor,
    output_mask: tuple[bool, ...] | None = None,
) -> Result:
    """Return the gradients of ``weighted_sum``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the output, shape S.
    xs, weights
        As in ``weighted_sum``.
    output_mask : tuple of bool, optional
        Which gradients to compute: one entry for each candidate (one for a stacked tensor), then one
        for the weights. All by default; the others are None.

    Returns
    -------
    xs_grad : tuple of Tensor, or Tensor
        As ``xs``: shape S each, or (N, *S); dtype of ``xs``, memory format of ``grad``.
    weights_grad : Tensor
        Shape (N,), dtype of ``weights``.

    Raises
    ------
    InvalidInputError
        As ``weighted_sum``; or if ``grad`` isn't of shape S or ``output_mask`` of the right length.

    Examples
    --------
    >>> xs, weights = [torch.zeros(2), torch.ones(2)], torch.tensor([0.5, 2.0])
    >>> nxcore.ops.weighted_sum_backward(torch.ones(2), xs, weights)[1]
    tensor([0., 2.])
    """
    return _contract(product_sum, grad, xs, weights, output_mask)


def by_dot(
    grad: Tensor,
    xs: Sequence[Tensor] | Tensor,
    weights: Tensor,
    output_mask: tuple[bool, ...] | None = None,
) -> Result:
    """Compute the sums as vector dot products."""
    return _contract(vector_dot, grad, xs, weights, output_mask)


def check(grad: Any, xs: Any, weights: Any, output_mask: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    check_candidates(xs, weights, "weights")
    check_grad(grad, xs, weights, output_mask)


def magnitude(grad: Tensor, xs: Any, weights: Tensor, output_mask: Any) -> Any:
    """Return the gradients of absolute values."""
    mask, size = wanted(xs, output_mask), grad.abs()
    grad_weights = torch.stack([(size * x.abs()).sum() for x in xs]) if mask[-1] else None
    scaled = tuple(w.abs() * size for w in weights)
    if is_tensor(xs):
        return (torch.stack(scaled) if mask[0] else None), grad_weights
    return tuple(g if m else None for g, m in zip(scaled, mask[:-1], strict=True)), grad_weights


SAMPLES = tuple(s for s in map(renamed, SOFTMAX_SUM_BACKWARD.samples) if s)

ERRORS = tuple(
    replace(e, name=e.name.replace("logits", "weights"), match=e.match.replace("logits", "weights"))
    for e in SOFTMAX_SUM_BACKWARD.errors
)

SPEC = OpSpec(
    name="weighted_sum_backward",
    params=(
        Param("grad", "tensor", REQUIRED),
        Param("xs", "tensors"),
        Param("weights", "tensor"),
        Param("output_mask", "static", None),
    ),
    reference=reference,
    check=check,
    cost=SOFTMAX_SUM_BACKWARD.cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=SOFTMAX_SUM_BACKWARD.terms,
    idioms=MappingProxyType({"dot": by_dot}),
    outputs=SOFTMAX_SUM_BACKWARD.outputs,
)
