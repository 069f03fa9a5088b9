"""entropy: the entropy of the softmax of each row of logits, in nats.

    out = -sum_i p[i] log p[i],  p = softmax(logits) over the last axis

It is near 0 where one entry has almost all of the probability. Its gradient is entropy_backward:

    out[i] = p[i] (d[i] - sum_j p[j] d[j]) grad,  d = max(logits) - logits, 0 where p is

The logarithm of the sum of exponentials cancels analytically, so no large terms cancel numerically.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import (
    DEGENERATE,
    SAME,
    Cost,
    ErrorCase,
    Gradient,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    Way,
    backward_of,
    laid_out,
    rand,
    require_tensor,
)

HALVES = (torch.float16, torch.bfloat16)

IMPOSSIBLE = -1000.0
"""A logarithm whose exponential is 0 in every dtype: -746 is one in float64."""


def reference(logits: Tensor) -> Tensor:
    """Return the entropy of the softmax of each row, in nats, accumulating in float32 or wider.

    Parameters
    ----------
    logits : Tensor
        Shape (..., n) with n >= 1, floating, any strides. An entry of minus infinity has probability 0 and
        contributes nothing, also to gradients.

    Returns
    -------
    Tensor
        Shape (...), dtype of ``logits``: 0 to log(n).

    Raises
    ------
    InvalidInputError
        If ``logits`` isn't a floating tensor (..., n).

    Examples
    --------
    >>> nxcore.ops.entropy(torch.zeros(2, 4))
    tensor([1.3863, 1.3863])
    """
    half = logits.dtype in HALVES  # a call of `to` that changes nothing takes as long as a small sum
    log_p = torch.log_softmax(logits.float() if half else logits, dim=-1)
    found = -(log_p.exp() * torch.threshold(log_p, IMPOSSIBLE, 0.0)).sum(-1)
    return found.to(logits.dtype) if half else found


def by_entr(logits: Tensor) -> Tensor:
    """``torch.special.entr`` of the softmax."""
    p = torch.softmax(logits.to(accumulator(logits)), dim=-1)
    found: Tensor = torch.special.entr(p).sum(-1)
    return found.to(logits.dtype)


def accumulator(logits: Tensor) -> torch.dtype:
    """Return the accumulation dtype: float32 or wider."""
    return torch.promote_types(logits.dtype, torch.float32)


def check(logits: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_rows(logits)


def require_rows(logits: Any) -> None:
    """Raise unless the logits are rows of at least one entry."""
    require_tensor(logits, "logits")
    if logits.ndim < 1 or logits.shape[-1] == 0:
        raise InvalidInputError(
            f"logits must be (..., n) with n >= 1, got shape {tuple(logits.shape)}", argument="logits"
        )


def cost(logits: Any) -> Cost:
    """Count the logits read once, one number written for each row; four operations for each entry."""
    rows = logits.numel() // logits.shape[-1]
    return Cost(bytes=logits.nbytes + rows * logits.element_size(), flops=4 * logits.numel())


def distances(logits: Tensor) -> Tensor:
    """Return the distance of each entry from its row's largest; 0 where that is infinite or NaN."""
    return (logits.amax(-1, keepdim=True) - logits).nan_to_num(nan=0.0, posinf=0.0)


def magnitude(logits: Tensor) -> Tensor:
    """Return a sum of terms on the scale of rounding errors of exponentials and logarithms."""
    return (torch.softmax(logits, -1) * (1 + distances(logits)).square()).sum(-1)


def outputs(logits: Any) -> TensorMeta | None:
    """Describe the entropies of consecutive rows; None for other layouts."""
    if not logits.is_contiguous() or 1 in logits.shape or not logits.numel():
        return None  # where a size is 1, torch chooses the stride
    return laid_out(logits.shape[:-1], torch.contiguous_format, logits.dtype, logits.device)


def _backward(grad: Any, mask: tuple[bool, ...], logits: Any) -> tuple[Any, ...]:
    return grad, logits


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})

SAMPLES = (
    Sample("rows_of_seven", (rand(3, 7, 7),), tags=SMOKE),
    Sample("last_block_partly_filled", (rand(37, 6),)),
    Sample("exp_overflow", (rand(9, 6, low=900, high=905),)),
    Sample("nan", (rand(6, 4, values="nan"),), tags=SMOKE),
    Sample("infinite_logits", (rand(6, 4, values="inf"),)),
    Sample("drift", (rand(3, 1000),)),
    Sample("longer_than_a_warp", (rand(5, 65),)),
    Sample("one_row", (rand(8),)),
    Sample("one_entry", (rand(5, 1),), tags=DEGENERATE),
    Sample("no_rows", (rand(0, 4),), tags=DEGENERATE),
    Sample("far_apart", (rand(9, 6, low=-1e4, high=1e4),), tags=DEGENERATE),
    Sample("transposed", (rand(33, 6, layout="transposed"),)),
    Sample("odd_storage_offset", (rand(5, 9, layout="sliced"),)),
    Sample("gaps_in_memory", (rand(4, 6, layout="strided"),)),
    Sample("channels_last", (rand(1, 6, 1, 5, layout="channels_last"),)),
    Sample("expanded", (rand(2, 3, 5, layout="expanded"),)),
    Sample("darts_cifar", (rand(2, 14, 8),), tags=BENCH),
    Sample("many_rows", (rand(4096, 64),), tags=BENCH),
)

ERRORS = (
    ErrorCase(
        "zero_dimensions", (rand(),), match=r"logits must be \(\.\.\., n\) with n >= 1, got shape \(\)"
    ),
    ErrorCase("no_entries", (rand(3, 0),), match=r"with n >= 1, got shape \(3, 0\)"),
    ErrorCase("integers", (rand(3, 4, dtype=torch.int64),), match="logits must have a floating dtype"),
    ErrorCase("not_a_tensor", (3.5,), match="logits must be a tensor, got float"),
)

SPEC = OpSpec(
    name="entropy",
    params=(Param("logits", "tensor"),),
    reference=reference,
    check=check,
    holds="alike",
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda logits: logits.shape[-1],
    idioms=MappingProxyType({"entr": by_entr}),
    gradient=Gradient("entropy_backward", _backward, saves=("logits",)),
    ways=lambda logits: tuple(Way((d,), d, audits=True) for d in range(logits.ndim - 1)),
    outputs=outputs,
    autocast=SAME,
)


def gradient(grad: Tensor, logits: Tensor) -> Tensor:
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

    Examples
    --------
    >>> nxcore.ops.entropy_backward(torch.ones(1), torch.zeros(1, 4))
    tensor([[0., 0., 0., 0.]])
    """
    wide = logits.to(accumulator(logits))
    p = torch.softmax(wide, dim=-1)
    d = (wide.detach().amax(-1, keepdim=True) - wide).masked_fill(p == 0, 0)
    mean = (p * d).sum(-1, keepdim=True)
    return (p * (d - mean) * grad.to(wide.dtype).unsqueeze(-1)).to(logits.dtype)


def gradient_cost(grad: Any, logits: Any) -> Cost:
    """Count both read once, the gradient written once."""
    return Cost(bytes=grad.nbytes + 2 * logits.nbytes, flops=6 * logits.numel())


def gradient_magnitude(grad: Tensor, logits: Tensor) -> Tensor:
    """Return the gradient with positive terms, on the scale of its rounding errors."""
    d = distances(logits)
    spread = torch.softmax(logits, -1) * (1 + d)
    return spread * (d + 1 + (spread * d).sum(-1, keepdim=True)) * grad.abs().unsqueeze(-1)


def gradient_outputs(grad: Any, logits: Any) -> TensorMeta | None:
    """Describe the gradient of consecutive rows; None for other layouts."""
    if not logits.is_contiguous() or 1 in logits.shape or not logits.numel():
        return None  # where a size is 1, torch chooses the stride
    return TensorMeta(logits.shape, logits.strides, logits.dtype, logits.device)


BACKWARD = backward_of(
    SPEC,
    gradient,
    shape=lambda logits: logits.shape[:-1],
    cost=gradient_cost,
    magnitude=gradient_magnitude,
    samples=(
        Sample("stride_zero_grad", (rand(6, layout="repeated"), rand(6, 5))),
        Sample("gradient_of_a_mean", (rand(2, 3, layout="repeated"), rand(2, 3, 8))),
    ),
    outputs=gradient_outputs,
)
