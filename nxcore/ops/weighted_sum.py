"""weighted_sum: blend N tensors of one shape with given weights.

    out = sum_i weights[i] * xs[i]

``softmax_sum`` without the softmax, for weights that are drawn, masked or given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.softmax_sum import SPEC as SOFTMAX_SUM
from nxcore.ops.softmax_sum import accumulator, blend, blend_by_einsum, blend_in_place, check_candidates
from nxcore.plugin import SAME, Gradient, OpSpec, Param, Sample


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
    cost=SOFTMAX_SUM.cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=SOFTMAX_SUM.terms,
    idioms=MappingProxyType({"einsum": by_einsum, "in-place": in_place}),
    gradient=Gradient("weighted_sum_backward", _backward, saves=("xs", "weights")),
    outputs=SOFTMAX_SUM.outputs,
    ways=SOFTMAX_SUM.ways,
    autocast=SAME,
)
