"""entropy_backward: the gradient of ``entropy`` to the logits.

    out[i] = p[i] (d[i] - sum_j p[j] d[j]) grad,  d = max(logits) - logits, 0 where p is

The logarithm of the sum of exponentials falls out: nothing large cancels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nxcore.errors import InvalidInputError
from nxcore.ops.entropy import SAMPLES as FORWARD_SAMPLES
from nxcore.ops.entropy import accumulator, distances, require_rows
from nxcore.plugin import Cost, ErrorCase, OpSpec, Param, Sample, rand
from nxcore.problem import TensorMeta
from nxcore.require import require_tensor
from nxcore.spec import DEGENERATE


def reference(grad: Tensor, logits: Tensor) -> Tensor:
    """Return the gradient of ``entropy``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the entropies, shape (...).
    logits : Tensor
        As in ``entropy``, (..., n).

    Returns
    -------
    Tensor
        Shape and dtype of ``logits``; 0 where the probability is.

    Raises
    ------
    InvalidInputError
        As ``entropy``; or if ``grad`` isn't of shape (...) on the device of ``logits``.
    """
    wide = logits.to(accumulator(logits))
    p = torch.softmax(wide, dim=-1)
    d = (wide.detach().amax(-1, keepdim=True) - wide).masked_fill(p == 0, 0)
    mean = (p * d).sum(-1, keepdim=True)
    return (p * (d - mean) * grad.to(wide.dtype).unsqueeze(-1)).to(logits.dtype)


def check(grad: Any, logits: Any) -> None:
    """Refuse what the operator isn't defined for."""
    require_rows(logits)
    require_grad_of(grad, logits, tuple(logits.shape[:-1]))


def require_grad_of(grad: Any, logits: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a gradient that isn't the output's."""
    require_tensor(grad, "grad")
    if tuple(grad.shape) != shape:
        raise InvalidInputError(
            f"grad must have the output's shape {shape}, got {tuple(grad.shape)}", argument="grad"
        )
    if grad.device != logits.device:
        raise InvalidInputError(
            f"grad must be on the device of logits, {logits.device}, got {grad.device}", argument="grad"
        )


def cost(grad: Any, logits: Any) -> Cost:
    """Read both once, write the gradient once."""
    return Cost(bytes=grad.nbytes + 2 * logits.nbytes, flops=6 * logits.numel())


def magnitude(grad: Tensor, logits: Tensor) -> Tensor:
    """Return terms that are all positive, each as large as its rounding errors may make it."""
    d = distances(logits)
    spread = torch.softmax(logits, -1) * (1 + d)
    return spread * (d + 1 + (spread * d).sum(-1, keepdim=True)) * grad.abs().unsqueeze(-1)


def outputs(grad: Any, logits: Any) -> TensorMeta | None:  # noqa: ARG001
    """Describe the gradient of rows that follow one another; None for others."""
    if not logits.is_contiguous() or 1 in logits.shape or not logits.numel():
        return None  # where a size is 1 torch chooses the stride
    return TensorMeta(logits.shape, logits.strides, logits.dtype, logits.device)


def _with_grad(sample: Sample) -> Sample:
    """Put a gradient in front of a sample of entropy."""
    tags = DEGENERATE if sample.name == "one_entry" else sample.tags
    return Sample(sample.name, (rand(*sample.args[0].shape[:-1]), *sample.args), tags=tags)


SAMPLES = (
    *map(_with_grad, FORWARD_SAMPLES),
    Sample("stride_zero_grad", (rand(6, layout="repeated"), rand(6, 5))),
    Sample("gradient_of_a_mean", (rand(2, 3, layout="repeated"), rand(2, 3, 8))),
)

ERRORS = (
    ErrorCase("grad_of_wrong_shape", (rand(3, 4), rand(3, 4)), match=r"output's shape \(3,\), got \(3, 4\)"),
    ErrorCase(
        "grad_elsewhere", (rand(3, device="meta"), rand(3, 4)), match="device of logits, cpu, got meta"
    ),
    ErrorCase("no_entries", (rand(3), rand(3, 0)), match=r"with n >= 1, got shape \(3, 0\)"),
    ErrorCase("not_a_tensor", (None, rand(3, 4)), match="grad must be a tensor, got None"),
)

SPEC = OpSpec(
    name="entropy_backward",
    params=(Param("grad", "tensor"), Param("logits", "tensor")),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda grad, logits: logits.shape[-1],  # noqa: ARG005
    outputs=outputs,
)
