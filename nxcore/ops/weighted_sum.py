"""weighted_sum: blend N tensors of one shape with given weights.

    out = sum_i weights[i] * xs[i]

``softmax_sum`` without the softmax, for weights that are drawn, masked or given. Its gradients:

    grad_xs[i] = weights[i] * grad;  grad_weights[i] = sum(grad * xs[i])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.amax import mirror
from nxcore.ops.softmax_sum import SPEC as SOFTMAX_SUM
from nxcore.ops.softmax_sum import accumulator, blend, blend_by_einsum, blend_in_place, check_candidates
from nxcore.ops.softmax_sum_backward import (
    MORE_SAMPLES,
    Dot,
    Result,
    contract,
    gradients,
    product_sum,
    shape,
    vector_dot,
    wanted,
)
from nxcore.ops.softmax_sum_backward import SPEC as SOFTMAX_SUM_BACKWARD
from nxcore.ops.softmax_sum_backward import reference as gradients_of_softmax_sum
from nxcore.plugin import SAME, Gradient, OpSpec, Param, Sample, backward_of, is_tensor


def reference(xs: Sequence[Tensor] | Tensor, weights: Tensor) -> Tensor:
    """Blend ``xs`` with ``weights``, accumulating in float32 or wider.

    Parameters
    ----------
    xs : sequence of Tensor, or Tensor
        N >= 1 candidates of one shape S, floating dtype and device; or one tensor (N, *S) that
        stacks them. Any strides.
    weights : Tensor
        Shape (N,), floating, on the device of ``xs``; any numbers. A candidate with weight 0 still counts:
        its NaN and infinities yield NaN.

    Returns
    -------
    Tensor
        Shape S, dtype and memory format of ``xs[0]``.

    Raises
    ------
    InvalidInputError
        If there is no candidate, they differ in shape, dtype or device, or ``weights`` isn't (N,).

    Examples
    --------
    >>> nxcore.ops.weighted_sum([torch.zeros(2), torch.ones(2)], torch.tensor([0.5, 2.0]))
    tensor([2., 2.])
    """
    return blend(xs, weights.to(accumulator(xs)))


def by_einsum(xs: Sequence[Tensor] | Tensor, weights: Tensor) -> Tensor:
    """``torch.stack``, then one contraction: a matrix-vector product."""
    return blend_by_einsum(xs, weights.to(accumulator(xs)))


def in_place(xs: Sequence[Tensor] | Tensor, weights: Tensor) -> Tensor:
    """One accumulator, added to in place."""
    return blend_in_place(xs, weights.to(accumulator(xs)))


def check(xs: Any, weights: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    check_candidates(xs, weights, "weights")


def magnitude(xs: Any, weights: Tensor) -> Tensor:
    """Return the blend of absolute values with absolute weights."""
    return torch.stack([w.abs() * x.abs() for w, x in zip(weights, xs, strict=True)]).sum(0)


def _backward(grad: Any, mask: tuple[bool, ...], xs: Any, weights: Any) -> tuple[Any, ...]:
    return grad, xs, weights, mask


def renamed(sample: Sample) -> Sample | None:
    """Return a sample of softmax_sum with weights for logits; None where it tests the softmax."""
    if sample.name in ("exp_overflow", "nan_logit"):
        return None
    return replace(sample, name=sample.name.replace("logits", "weights"))


SAMPLES = tuple(s for s in map(renamed, SOFTMAX_SUM.samples) if s)

ERRORS = tuple(
    replace(e, name=e.name.replace("logits", "weights"), match=e.match.replace("logits", "weights"))
    for e in SOFTMAX_SUM.errors
)

SPEC = OpSpec(
    name="weighted_sum",
    params=(Param("xs", "tensors"), Param("weights", "tensor")),
    reference=reference,
    check=check,
    holds="alike",
    cost=SOFTMAX_SUM.cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=SOFTMAX_SUM.terms,
    idioms=MappingProxyType({"einsum": by_einsum, "in-place": in_place}),
    gradient=Gradient(
        "weighted_sum_backward",
        _backward,
        saves=("xs", "weights"),
        reads={"xs": ("weights",), "weights": ("xs",)},
    ),
    outputs=SOFTMAX_SUM.outputs,
    ways=SOFTMAX_SUM.ways,
    autocast=SAME,
)


def _contract(
    dot: Dot, grad: Tensor, xs: Sequence[Tensor] | Tensor, weights: Tensor, output_mask: Any
) -> Result:
    grads, dots = contract(dot, grad, xs, weights.to(accumulator(xs)), wanted(xs, output_mask))
    return grads, None if dots is None else dots.to(weights.dtype)


@mirror(
    gradients_of_softmax_sum,
    {"softmax_sum": "weighted_sum", "logits": "weights", "logits_grad": "weights_grad"},
)
def gradient(
    grad: Tensor,
    xs: Sequence[Tensor] | Tensor,
    weights: Tensor,
    output_mask: tuple[bool, ...] | None = None,
) -> Result:
    """Return the gradients of ``weighted_sum``, accumulating in float32 or wider.

    Examples
    --------
    >>> xs, weights = [torch.zeros(2), torch.ones(2)], torch.tensor([0.5, 2.0])
    >>> nxcore.ops.weighted_sum_backward(torch.ones(2), xs, weights)[1]
    tensor([0., 2.])
    """
    return _contract(product_sum, grad, xs, weights, output_mask)


def gradient_by_dot(
    grad: Tensor,
    xs: Sequence[Tensor] | Tensor,
    weights: Tensor,
    output_mask: tuple[bool, ...] | None = None,
) -> Result:
    """Compute the sums as vector dot products."""
    return _contract(vector_dot, grad, xs, weights, output_mask)


def gradient_magnitude(grad: Tensor, xs: Any, weights: Tensor, output_mask: Any) -> Any:
    """Return the gradients of absolute values."""
    mask, size = wanted(xs, output_mask), grad.abs()
    grad_weights = torch.stack([(size * x.abs()).sum() for x in xs]) if mask[-1] else None
    scaled = tuple(w.abs() * size for w in weights)
    if is_tensor(xs):
        return (torch.stack(scaled) if mask[0] else None), grad_weights
    return tuple(g if m else None for g, m in zip(scaled, mask[:-1], strict=True)), grad_weights


BACKWARD = backward_of(
    SPEC,
    gradient,
    shape=shape,
    gradients=gradients,
    cost=SOFTMAX_SUM_BACKWARD.cost,
    magnitude=gradient_magnitude,
    samples=tuple(s for s in map(renamed, MORE_SAMPLES) if s),
    terms=SOFTMAX_SUM_BACKWARD.terms,
    idioms=MappingProxyType({"dot": gradient_by_dot}),
    outputs=SOFTMAX_SUM_BACKWARD.outputs,
)
