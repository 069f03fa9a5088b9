"""gumbel_softmax_backward: the gradient of ``gumbel_softmax``, which computes the soft weights again.

    out[i] = p[i] (grad[i] - sum_j p[j] grad[j]) / tau

The forward pass saves only the arguments.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nxcore.ops.entropy import accumulator
from nxcore.ops.gumbel_softmax import SAMPLES as FORWARD_SAMPLES
from nxcore.ops.gumbel_softmax import drawn, noisy, require_noisy, sketches, spread, temperature
from nxcore.plugin import (
    Cost,
    ErrorCase,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    is_tensor,
    rand,
    require_flags,
    require_grad,
)

Result = tuple[Tensor | None, ...]


def wanted(tau: Any, output_mask: tuple[bool, ...] | None) -> tuple[bool, ...]:
    """Return one flag for each tensor: logits, tau where it is a tensor, noise."""
    return output_mask or (True, *([False] if is_tensor(tau) else []), False)


def reference(
    grad: Tensor,
    logits: Tensor,
    tau: Tensor | float,
    noise: Tensor,
    output_mask: tuple[bool, ...] | None = None,
) -> Result:
    """Return the gradients of ``gumbel_softmax``, computed in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the weights, shape (..., n).
    logits, tau, noise
        As in ``gumbel_softmax``.
    output_mask : tuple of bool, optional
        Which gradients to compute: of the logits, of tau where that is a tensor, and of the noise. By
        default, only that of the logits; the others are None.

    Returns
    -------
    tuple of Tensor
        One gradient for each entry of the mask, with the shape and dtype of its tensor.

    Raises
    ------
    InvalidInputError
        As ``gumbel_softmax``; or if ``grad`` isn't of the shape and on the device of ``logits``, or
        ``output_mask`` not of the right length.

    Examples
    --------
    >>> grad, ones = torch.tensor([1.0, 0.0]), torch.ones(2)
    >>> nxcore.ops.gumbel_softmax_backward(grad, torch.zeros(2), 1.0, ones)
    (tensor([ 0.2500, -0.2500]), None)
    """
    z, wide = noisy(logits, tau, noise), accumulator(logits)
    p, g = torch.softmax(z, dim=-1), grad.to(wide)
    by_z = p * (g - (p * g).sum(-1, keepdim=True))
    found = by_z / temperature(tau, wide)
    for_logits, *for_tau, for_noise = wanted(tau, output_mask)
    return (
        found.to(logits.dtype) if for_logits else None,
        *[_of_tau(by_z, z, p, tau) if flag else None for flag in for_tau],
        (-found / noise).to(noise.dtype) if for_noise else None,
    )


def _of_tau(by_z: Tensor, z: Tensor, p: Tensor, tau: Any) -> Tensor:
    found: Tensor = -(by_z * z.masked_fill(p == 0, 0)).sum() / tau
    return found.to(tau)


def check(grad: Any, logits: Any, tau: Any, noise: Any, output_mask: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_noisy(logits, tau, noise)
    require_grad(grad, logits, "logits", tuple(logits.shape))
    if output_mask is not None:
        require_flags(output_mask, len(wanted(tau, None)), "output_mask")


def cost(grad: Any, logits: Any, tau: Any, noise: Any, output_mask: Any) -> Cost:
    """Count all tensors read once, the gradient of the logits written once."""
    return Cost(bytes=grad.nbytes + 2 * logits.nbytes + noise.nbytes, flops=9 * logits.numel())


def magnitude(grad: Tensor, logits: Tensor, tau: Any, noise: Tensor, output_mask: Any) -> Result:
    """Return the gradients with positive terms, times the growth by the rounding of weights."""
    q, g = spread(logits, tau, noise), grad.abs()
    by_z = q * (g + (q * g).sum(-1, keepdim=True))
    for_logits, *for_tau, for_noise = wanted(tau, output_mask)
    size = noisy(logits, tau, noise).abs().nan_to_num(posinf=0.0)
    return (
        by_z / tau if for_logits else None,
        *[(by_z * size).sum() / tau if flag else None for flag in for_tau],
        by_z / tau / noise if for_noise else None,
    )


def outputs(grad: Any, logits: Any, tau: Any, noise: Any, output_mask: Any) -> Any:
    """Describe the gradient of consecutive rows; None for other layouts and other gradients."""
    mask = wanted(tau, output_mask)
    plain = all(m.is_contiguous() and 1 not in m.shape for m in (grad, logits, noise))
    if not plain or not logits.numel() or not mask[0] or any(mask[1:]):
        return None  # where a size is 1, torch chooses the stride
    return TensorMeta(logits.shape, logits.strides, logits.dtype, logits.device), *(None,) * (len(mask) - 1)


def _with_grad(sample: Sample) -> Sample:
    """Put a gradient in front of a sample of gumbel_softmax."""
    logits, tau, _, noise = sample.args
    return Sample(sample.name, (rand(*logits.shape), logits, tau, noise), tags=sample.tags)


SAMPLES = (
    *(_with_grad(s) for s in FORWARD_SAMPLES if not s.name.endswith("_hard")),
    Sample("stride_zero_grad", (rand(6, 5, layout="expanded"), rand(6, 5), 0.5, drawn(6, 5))),
)

ERRORS = (
    ErrorCase(
        "grad_of_wrong_shape", (rand(3), rand(3, 4), 1.0, rand(3, 4)), match=r"shape \(3, 4\), got \(3,\)"
    ),
    ErrorCase("temperature", (rand(3), rand(3), None, rand(3)), match="tau must be a number .* got None"),
    ErrorCase(
        "short_mask",
        (rand(3), rand(3), rand(), rand(3)),
        match="output_mask must have 3 entries, got 2",
        kwargs={"output_mask": (True, False)},
    ),
    ErrorCase("not_a_tensor", (None, rand(3), 1.0, rand(3)), match="grad must be a tensor, got NoneType"),
)

SPEC = OpSpec(
    name="gumbel_softmax_backward",
    params=(
        Param("grad", "tensor"),
        Param("logits", "tensor"),
        Param("tau", "operand"),
        Param("noise", "tensor"),
        Param("output_mask", "static", None),
    ),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda grad, *rest: grad.shape[-1] if grad.ndim else 1,
    outputs=outputs,
    sketches=lambda grad, logits, tau, noise, mask: sketches(logits, tau, False, noise),
)
