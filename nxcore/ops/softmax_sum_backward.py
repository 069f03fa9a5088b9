"""softmax_sum_backward: the gradients of softmax_sum, to every candidate and to the logits.

    w = softmax(logits);  d[i] = sum(grad * xs[i])
    grad_xs[i] = w[i] * grad;  grad_logits[i] = w[i] * (d[i] - sum_j w[j] d[j])

The chain rule through ``softmax_sum``; the Jacobian of softmax is diag(w) - w w^T.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.softmax_sum import SPEC as FORWARD
from nxcore.ops.softmax_sum import accumulator, candidates, elements
from nxcore.plugin import Cost, Sample, TensorMeta, backward_of, is_tensor, rand

Result = tuple[tuple[Tensor | None, ...] | Tensor | None, Tensor | None]


def gradients(xs: Any, *_: Any) -> int:
    """Return the number of gradients: one for each tensor argument."""
    return 2 if is_tensor(xs) else len(xs) + 1


def wanted(xs: Any, output_mask: tuple[bool, ...] | None) -> tuple[bool, ...]:
    """Return the mask, all true for None: one entry for each tensor argument, then the logits'."""
    return (True,) * gradients(xs) if output_mask is None else tuple(output_mask)


Dot = Callable[[Tensor, Tensor], Tensor]
"""Adds up the products of two tensors."""


def product_sum(a: Tensor, b: Tensor) -> Tensor:
    """Multiply, then sum."""
    return (a * b).sum()


def vector_dot(a: Tensor, b: Tensor) -> Tensor:
    """Sum as a dot product, which reads both operands once and writes nothing."""
    return torch.dot(a.reshape(-1), b.reshape(-1))


def contract(
    dot: Dot, grad: Tensor, xs: Sequence[Tensor] | Tensor, weights: Tensor, mask: tuple[bool, ...]
) -> Result:
    """Return the gradients of a blend to ``xs`` and ``weights``; weights have the accumulation dtype."""
    parts, g = xs.unbind(0) if isinstance(xs, Tensor) else tuple(xs), grad.to(weights.dtype)
    dots = torch.stack([dot(g, x.to(g.dtype)) for x in parts]) if mask[-1] else None
    if isinstance(xs, Tensor):
        scaled = weights.view(-1, *(1,) * g.ndim) * g if mask[0] else None
        return (None if scaled is None else scaled.to(xs.dtype)), dots
    pairs = zip(weights, parts, mask[:-1], strict=True)
    return tuple((w * g).to(x.dtype) if m else None for w, x, m in pairs), dots


def _contract(
    dot: Dot, grad: Tensor, xs: Sequence[Tensor] | Tensor, logits: Tensor, output_mask: Any
) -> Result:
    weights = torch.softmax(logits.to(accumulator(xs)), dim=0)
    grads, d = contract(dot, grad, xs, weights, wanted(xs, output_mask))
    return grads, None if d is None else (weights * (d - (weights * d).sum())).to(logits.dtype)


def reference(
    grad: Tensor,
    xs: Sequence[Tensor] | Tensor,
    logits: Tensor,
    output_mask: tuple[bool, ...] | None = None,
) -> Result:
    """Return the gradients of ``softmax_sum``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the output, shape S.
    xs, logits
        As in ``softmax_sum``.
    output_mask : tuple of bool, optional
        Which gradients to compute: one entry for each candidate (one for a stacked tensor), then one
        for the logits. All by default; the others are None.

    Returns
    -------
    xs_grad : tuple of Tensor, or Tensor
        As ``xs``: shape S each, or (N, *S); dtype of ``xs``, memory format of ``grad``.
    logits_grad : Tensor
        Shape (N,), dtype of ``logits``.

    Raises
    ------
    InvalidInputError
        As ``softmax_sum``; or if ``grad`` isn't of shape S or ``output_mask`` of the right length.

    Examples
    --------
    >>> xs, logits = [torch.zeros(2), torch.ones(2)], torch.zeros(2)
    >>> nxcore.ops.softmax_sum_backward(torch.ones(2), xs, logits)[1]
    tensor([-0.5000,  0.5000])
    """
    return _contract(product_sum, grad, xs, logits, output_mask)


def outputs(grad: Any, xs: Any, logits: Any, output_mask: Any) -> Any:
    """Describe the gradients for dense ``grad``, row-major for a stacked tensor; None for others."""
    if not grad.is_dense() or 1 in grad.shape or not grad.numel():
        return None
    *mask, for_logits = wanted(xs, output_mask)
    grads: Any
    if is_tensor(xs):
        if not grad.is_contiguous() or 1 in xs.shape:
            return None
        grads = TensorMeta.row_major(xs.shape, xs.dtype, grad.device) if mask[0] else None
    else:
        grads = tuple(
            TensorMeta(grad.shape, grad.strides, x.dtype, grad.device) if m else None
            for x, m in zip(xs, mask, strict=True)
        )
    return grads, TensorMeta(logits.shape, (1,), logits.dtype, grad.device) if for_logits else None


def by_dot(
    grad: Tensor,
    xs: Sequence[Tensor] | Tensor,
    logits: Tensor,
    output_mask: tuple[bool, ...] | None = None,
) -> Result:
    """Compute the sums as vector dot products."""
    return _contract(vector_dot, grad, xs, logits, output_mask)


def cost(grad: Any, xs: Any, logits: Any, output_mask: Any) -> Cost:
    """Count grad read once, candidates once for the logits' gradient, the requested gradients written."""
    count, each, size = elements(xs)
    mask = wanted(xs, output_mask)
    written = sum(mask[:-1]) * (count if is_tensor(xs) else 1)
    read = count if mask[-1] else 0
    return Cost(
        bytes=(1 + read + written) * each * size + 2 * logits.nbytes, flops=(2 * read + written) * each
    )


def magnitude(grad: Tensor, xs: Any, logits: Tensor, output_mask: Any) -> Any:
    """Return the gradients of absolute values, with positive terms in the logits' gradient."""
    weights = torch.softmax(logits, dim=0)
    spread = weights * (1 + (logits - logits.max()).abs().nan_to_num(posinf=0.0))
    d = torch.stack([(grad.abs() * x.abs()).sum() for x in xs])
    mask = wanted(xs, output_mask)
    grad_logits = spread * (d + (spread * d).sum()) if mask[-1] else None
    scaled = tuple(s * grad.abs() for s in spread)
    if is_tensor(xs):
        return (torch.stack(scaled) if mask[0] else None), grad_logits
    return tuple(g if m else None for g, m in zip(scaled, mask[:-1], strict=True)), grad_logits


def shape(xs: Any, *_: Any) -> tuple[int, ...]:
    """Return the shape of a candidate."""
    return tuple(xs[0].shape if isinstance(xs, tuple | list) else xs.shape[1:])


def terms(grad: Any, xs: Any, logits: Any, output_mask: Any) -> int:
    """Return the elements of a candidate: an entry of the logits' gradient sums as many products."""
    return max(elements(xs)[1], 1)


def _with_grad(sample: Sample) -> Sample:
    """Put a gradient in front of a sample of softmax_sum."""
    tags = frozenset({"edge"}) if sample.name == "exp_overflow" else sample.tags  # one weight is left
    return Sample(sample.name, (rand(*shape(*sample.args)), *sample.args), sample.kwargs, tags)


THREE = candidates(3, 4, 10)

MORE_SAMPLES = (
    Sample("stride_zero_grad", (rand(6, 50, layout="expanded"), candidates(3, 6, 50), rand(3))),
    Sample("gradient_of_a_sum", (rand(6, 50, layout="repeated"), candidates(3, 6, 50), rand(3))),
    Sample("only_logits", (rand(4, 10), THREE, rand(3)), {"output_mask": (False, False, False, True)}),
    Sample("only_one_candidate", (rand(4, 10), THREE, rand(3)), {"output_mask": (False, True, False, False)}),
    Sample("only_the_stack", (rand(7, 9), rand(4, 7, 9), rand(4)), {"output_mask": (True, False)}),
    Sample("long_sum", (rand(300_001), candidates(3, 300_001), rand(3, dtype=torch.float32))),
)

SPEC = backward_of(
    FORWARD,
    reference,
    shape=shape,
    gradients=gradients,
    cost=cost,
    magnitude=magnitude,
    given=_with_grad,
    samples=MORE_SAMPLES,
    terms=terms,
    idioms=MappingProxyType({"dot": by_dot}),
    outputs=outputs,
)
