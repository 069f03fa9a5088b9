"""cross_entropy_backward: the gradient of cross_entropy from the logits, which it reads once more.

    grad_x[c] = p[c] (a + b sum weight) - b weight[c] - (a where c is t),  p = softmax(input), t = target
    a = (1 - s) weight[t] f,  b = s / C f,  f = grad, of a mean divided by the sum of the targets' weights

with s the label smoothing and C the number of classes; f is 0 for ignored rows. Log-probabilities needn't be
kept from the loss on, and no argument is written into.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nxcore.ops.cross_entropy import SPEC as FORWARD
from nxcore.ops.cross_entropy import along, axis_of, below, classes, of_classes, shift, targets_of, ways
from nxcore.ops.softmax import apart
from nxcore.plugin import Cost, Sample, TensorMeta, Way, backward_of, rand

Result = tuple[Tensor | None, None, None]
MASK = (True, True, True)


def gradient(
    grad: Tensor,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    output_mask: tuple[bool, ...] = MASK,
) -> Result:
    """Return the gradient of ``cross_entropy``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the loss, of its shape and dtype.
    input, target, weight, ignore_index, reduction, label_smoothing
        As in ``cross_entropy``.
    output_mask : tuple of bool
        Whether the gradient of the logits is requested; the target and the weight have none.

    Returns
    -------
    grad_input : Tensor or None
        Shape and dtype of ``input``, row-major.
    grad_target, grad_weight : None

    Raises
    ------
    InvalidInputError
        As ``cross_entropy``; or if ``grad`` isn't of the shape of the loss, and of the dtype of ``input``.

    Examples
    --------
    >>> x, one = torch.zeros(1, 2), torch.tensor(1.0)
    >>> nxcore.ops.cross_entropy_backward(one, x, torch.tensor([0]))[0]
    tensor([[-0.5000,  0.5000]])
    """
    if not output_mask[0]:
        return None, None, None
    wide = torch.promote_types(input.dtype, torch.float32)
    x, axis = input.to(wide), axis_of(input)
    at, lead, each, whole = _factors(
        grad.to(wide), x, target, weight, ignore_index, reduction, label_smoothing
    )
    found = torch.softmax(x, axis) * (lead + each * whole)
    if label_smoothing:
        found = found - each * of_classes(x, weight)
    return found.scatter_add(axis, at, -lead).to(input.dtype).contiguous(), None, None


def _factors(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignored: int,
    reduction: str,
    smoothing: float,
) -> tuple[Tensor, ...]:
    """Return the classes, their factors, those of every class, and the sum of all weights."""
    kept, at, own = along(x, target, weight, ignored)
    spread = grad.unsqueeze(axis_of(x)) if reduction == "none" else grad.expand_as(own)
    factor = spread / own.sum() if reduction == "mean" else spread
    factor = factor.where(kept.unsqueeze(axis_of(x)), 0)
    each = factor * (smoothing / x.shape[axis_of(x)]) if smoothing else torch.zeros_like(factor)
    return at, (1 - smoothing) * own * factor, each, of_classes(x, weight).sum()


def gradient_magnitude(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignored: int,
    reduction: str,
    smoothing: float,
    mask: tuple[bool, ...],
) -> Result:
    """Return the gradient with positive terms, each exponential times its sensitivity to rounding."""
    if not mask[0]:
        return None, None, None
    axis = axis_of(x)
    size = None if weight is None else weight.abs()
    at, lead, each, whole = _factors(grad.abs(), x, target, size, ignored, reduction, smoothing)
    p, d = torch.softmax(x, axis), apart(x, axis)
    p = (p * (1 + d + (p * d).sum(axis, keepdim=True))).nan_to_num(nan=0.0)
    found = p * (lead + each * whole) + each * of_classes(x, size)
    found = found.scatter_add(axis, at, lead)
    if reduction == "mean" and weight is not None:
        signed = along(x, target, weight, ignored)[2]
        found = found * signed.abs().sum() * shift(signed)
    return found, None, None


def gradient_outputs(grad: Any, x: Any, *rest: Any) -> tuple[TensorMeta | None, None, None] | None:
    """Describe the gradient; None where there is nothing."""
    if not x.numel():
        return None
    return TensorMeta.row_major(tuple(x.shape), x.dtype, x.device) if rest[-1][0] else None, None, None


def gradient_ways(grad: Any, x: Any, target: Any, weight: Any, *rest: Any) -> tuple[Way, ...]:
    """Divide by row, where the incoming gradient is each row's own, or that of a sum."""
    ignored, reduction, smoothing, mask = rest
    if reduction == "mean" or not mask[0]:
        return ()
    each = ways(x, target, weight, ignored, "none", smoothing)
    return tuple(
        Way((None if reduction == "sum" else way.result, *way.tensors), way.tensors[0], True) for way in each
    )


def settled(grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, *rest: Any) -> tuple[Any, ...]:
    """Return the gradient of a mean as that of a sum, from the divisor."""
    ignored, reduction, *others = rest
    if reduction != "mean":
        return grad, x, target, weight, *rest
    kept = (target != ignored).double()
    own = kept if weight is None else kept * weight.double()[target.long().where(kept > 0, 0)]
    return grad.double() / own.sum(), x, target, weight, ignored, "sum", *others


ROWS = (rand(6, 24), classes((6,), 24))
EACH = {"reduction": "none", "label_smoothing": 0.1}

SPEC = backward_of(
    FORWARD,
    gradient,
    shape=lambda x, target, weight, ignored, reduction, _: targets_of(x) if reduction == "none" else (),
    same_dtype=True,
    gradients=3,
    cost=lambda grad, x, target, *_: Cost(
        bytes=grad.nbytes + 2 * x.nbytes + target.nbytes, flops=6 * x.numel()
    ),
    magnitude=gradient_magnitude,
    samples=(
        Sample("stride_zero_grad", (rand(6, layout="expanded"), *ROWS), EACH),
        Sample("gradient_of_a_sum", (rand(6, layout="repeated"), *ROWS), EACH),
        Sample("gaps_in_grad", (rand(3, 5, layout="strided"), rand(3, 4, 5), classes((3, 5), 4)), EACH),
    ),
    outputs=gradient_outputs,
    ways=gradient_ways,
    settled=settled,
    sketches=lambda grad, x, target, *_: {"target": below(x, target)},
)
