"""gumbel_softmax: weights drawn for each row: Jang, Gu, Poole 2017, arXiv:1611.01144.

    out = softmax((logits + g) / tau),  g = -log(noise),  noise ~ Exp(1), over the last axis

The noise is an argument, drawn by torch where it is not given, so every backend uses the same numbers. The
gradient computes the soft weights again, so that only the arguments are saved:

    out[i] = p[i] (grad[i] - sum_j p[j] grad[j]) / tau
"""

from __future__ import annotations

from dataclasses import replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.entropy import accumulator, require_rows
from nxcore.plugin import (
    DEGENERATE,
    REQUIRED,
    SAME,
    Cost,
    Drawn,
    ErrorCase,
    Gradient,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    Way,
    backward_of,
    brief,
    is_tensor,
    rand,
    require_flag,
    require_tensor,
)


def reference(logits: Tensor, tau: Tensor | float, hard: bool, noise: Tensor) -> Tensor:
    """Return the softmax of noisy logits over the last axis, computed in float32 or wider.

    Parameters
    ----------
    logits : Tensor
        Shape (..., n) with n >= 1, floating, any strides.
    tau : float or Tensor, default 1.0
        The temperature, above 0 (not checked): a number, or a 0-d tensor, which may change between replays of
        a captured graph.
    hard : bool, default False
        1 at the first of the largest entries, 0 elsewhere; the gradient is that of the soft weights
        (straight-through).
    noise : Tensor, optional
        Values of Exp(1), above 0, with the shape of ``logits``. By default drawn in float32 or wider, as in
        ``torch.nn.functional.gumbel_softmax`` for logits of that dtype.
    generator : torch.Generator, optional
        The generator of the noise; by default torch's. Each replay of a CUDA graph draws new noise.

    Returns
    -------
    Tensor
        Shape and dtype of ``logits``; each row adds up to 1.

    Raises
    ------
    InvalidInputError
        If ``logits`` is not (..., n), ``noise`` has another shape or device, or ``tau`` is neither a real
        number nor a floating 0-d tensor.

    Examples
    --------
    >>> nxcore.ops.gumbel_softmax(torch.tensor([0.0, 1.0, 0.0]), 0.5, hard=True, noise=torch.ones(3))
    tensor([0., 1., 0.])
    """
    z = noisy(logits, tau, noise)
    weights = torch.softmax(z, dim=-1)
    if hard:
        largest = torch.zeros_like(weights).scatter(-1, z.argmax(-1, keepdim=True), 1.0)
        weights = largest + (weights - weights.detach())
    return weights.to(logits.dtype)


def noisy(logits: Tensor, tau: Tensor | float, noise: Tensor) -> Tensor:
    """Return the logits plus Gumbel noise, over the temperature; in float32 or wider."""
    wide = accumulator(logits)
    perturbed = logits.to(wide) - noise.to(wide).log()
    return perturbed / temperature(tau, wide)


def temperature(tau: Tensor | float, dtype: torch.dtype) -> Tensor | float:
    """Return the divisor as a float: torch takes no integers of more than 64 bits."""
    if isinstance(tau, Tensor):
        return tau.to(dtype)
    return float(tau) if isinstance(tau, int) else tau


def exponential(logits: Any, generator: torch.Generator | None) -> Tensor | None:
    """Draw the noise for logits."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        return None
    noise = torch.empty_like(logits, dtype=accumulator(logits), memory_format=torch.contiguous_format)
    return noise.exponential_(generator=generator)


def check(logits: Any, tau: Any, hard: Any, noise: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_noisy(logits, tau, noise)
    require_flag(hard, "hard")


def require_noisy(logits: Any, tau: Any, noise: Any) -> None:
    """Raise unless the logits are rows, the noise fits them, and tau is a temperature."""
    require_rows(logits)
    require_tensor(noise, "noise")
    if noise.shape != logits.shape or noise.device != logits.device:
        raise InvalidInputError(
            f"noise must have the shape and device of logits, {tuple(logits.shape)} on {logits.device}, "
            f"got {tuple(noise.shape)} on {noise.device}",
            argument="noise",
        )
    if isinstance(tau, Tensor):
        require_tensor(tau, "tau")
        if tau.ndim or tau.device not in (logits.device, torch.device("cpu")):
            raise InvalidInputError(
                f"tau must have no dimensions and lie on the CPU or the device of logits, {logits.device}, "
                f"got shape {tuple(tau.shape)} on {tau.device}",
                argument="tau",
            )
    elif not isinstance(tau, int | float | torch.SymInt | torch.SymFloat):
        raise InvalidInputError(
            f"tau must be a number or a tensor of no dimensions, got {brief(tau)}", argument="tau"
        )


def cost(logits: Any, tau: Any, hard: Any, noise: Any) -> Cost:
    """Count logits and noise read once, the weights written once; six operations for each entry."""
    return Cost(bytes=2 * logits.nbytes + noise.nbytes, flops=6 * logits.numel())


def spread(logits: Tensor, tau: Tensor | float, noise: Tensor) -> Tensor:
    """Return the weights, each times its sensitivity to the rounding of noisy logits."""
    size = ((logits.abs() + noise.log().abs()) / tau).nan_to_num(posinf=0.0)
    return torch.softmax(noisy(logits, tau, noise), -1) * (1 + size + size.amax(-1, keepdim=True))


def magnitude(logits: Tensor, tau: Tensor | float, hard: bool, noise: Tensor) -> Tensor:
    """Return the scale of the weights' rounding errors."""
    return spread(logits, tau, noise)


def outputs(logits: Any, tau: Any, hard: Any, noise: Any) -> TensorMeta | None:
    """Describe the weights of consecutive rows; None for other layouts."""
    plain = all(m.is_contiguous() and 1 not in m.shape for m in (logits, noise))
    if not plain or not logits.numel():
        return None  # where a size is 1, torch chooses the stride
    return TensorMeta(logits.shape, logits.strides, logits.dtype, logits.device)


def _backward(
    grad: Any,
    mask: tuple[bool, ...],
    logits: Any,
    tau: Any,
    hard: Any,
    noise: Any,
) -> tuple[Any, ...]:
    return grad, logits, tau, noise, mask


def drawn(*shape: int, **how: Any) -> Any:
    """Describe noise."""
    return rand(*shape, low=0.05, high=3.0, **({"dtype": torch.float32} | how))


def sketches(logits: Any, tau: Any, hard: Any, noise: Any) -> dict[str, Any]:
    """Return the sketches of noise and temperature: above 0."""
    found = {"noise": drawn(*noise.shape)}
    return found | {"tau": TAU} if is_tensor(tau) else found


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})
TAU = rand(low=0.3, high=0.9, dtype=torch.float32)

SAMPLES = (
    Sample("rows_of_seven", (rand(3, 7, 7), 0.5, False, drawn(3, 7, 7)), tags=SMOKE),
    Sample("rows_of_seven_hard", (rand(3, 7, 7), 0.5, True, drawn(3, 7, 7)), tags=SMOKE),
    Sample("temperature_as_a_tensor", (rand(9, 5), TAU, False, drawn(9, 5)), tags=SMOKE),
    Sample("last_block_partly_filled", (rand(37, 6), 2, False, drawn(37, 6))),
    Sample("exp_overflow", (rand(9, 6, low=900, high=905), 1.0, False, drawn(9, 6))),
    Sample("nan", (rand(6, 4, values="nan"), 1.0, False, drawn(6, 4))),
    Sample("nan_hard", (rand(6, 4, values="nan"), 1.0, True, drawn(6, 4))),
    Sample("infinite_logits", (rand(6, 4, values="inf"), 1.0, False, drawn(6, 4))),
    Sample("equal_hard", (rand(6, 4, values="zeros"), 1.0, True, drawn(6, 4, layout="repeated"))),
    Sample("longer_than_a_warp", (rand(5, 65), 0.1, True, drawn(5, 65))),
    Sample("drift", (rand(3, 1000), 1.0, False, drawn(3, 1000))),
    Sample("one_row", (rand(8), 1.0, False, drawn(8))),
    Sample("one_entry", (rand(5, 1), 1.0, False, drawn(5, 1)), tags=DEGENERATE),
    Sample("no_rows", (rand(0, 4), 1.0, False, drawn(0, 4)), tags=DEGENERATE),
    Sample("transposed", (rand(33, 6, layout="transposed"), 0.7, False, drawn(33, 6))),
    Sample("transposed_noise", (rand(33, 6), 0.7, True, drawn(33, 6, layout="transposed"))),
    Sample("odd_storage_offset", (rand(5, 9, layout="sliced"), 0.7, False, drawn(5, 9, layout="sliced"))),
    Sample("gaps_in_memory", (rand(4, 6, layout="strided"), 0.7, False, drawn(4, 6, layout="strided"))),
    Sample("one_noise_for_all_rows", (rand(4, 6), 0.7, False, drawn(4, 6, layout="expanded"))),
    Sample(
        "channels_last",
        (rand(1, 6, 1, 5, layout="channels_last"), 0.7, False, drawn(1, 6, 1, 5, layout="channels_last")),
    ),
    Sample("noise_of_16_bits", (rand(5, 6), 1.0, False, drawn(5, 6, dtype=torch.float16))),
    Sample("darts_cifar", (rand(2, 14, 8), 1.0, False, drawn(2, 14, 8)), tags=BENCH),
    Sample("many_rows", (rand(4096, 64), 1.0, True, drawn(4096, 64)), tags=BENCH),
)

ERRORS = (
    ErrorCase(
        "zero_dimensions", (rand(), 1.0, False, drawn()), match=r"logits must be \(\.\.\., n\) with n >= 1"
    ),
    ErrorCase(
        "integers", (rand(3, dtype=torch.int64), 1.0, False, drawn(3)), match="logits must have a float"
    ),
    ErrorCase("not_a_tensor", (3.5, 1.0, False, drawn(3)), match="logits must be a tensor, got float"),
    ErrorCase("no_noise", (rand(3), 1.0, False, None), match="noise must be a tensor, got NoneType"),
    ErrorCase(
        "noise_of_another_shape", (rand(3, 4), 1.0, False, drawn(4)), match=r"noise .* \(3, 4\) on cpu, got"
    ),
    ErrorCase(
        "complex_temperature",
        (rand(3), 1j, False, drawn(3)),
        match="tau must be a number or a .* got complex",
    ),
    ErrorCase("temperatures", (rand(3), rand(3), False, drawn(3)), match="tau must have no dimensions"),
    ErrorCase("flag", (rand(3), 1.0, 1, drawn(3)), match="hard must be True or False, got 1"),
)


def ways(logits: Any, tau: Any, hard: Any, noise: Any) -> tuple[Way, ...]:
    """Divide by row."""
    whole = (None,) if is_tensor(tau) else ()
    return tuple(Way((d, *whole, d), d, audits=True) for d in range(logits.ndim - 1))


SPEC = OpSpec(
    name="gumbel_softmax",
    params=(
        Param("logits", "tensor"),
        Param("tau", "operand", 1.0),
        Param("hard", "static", False),
        Param("noise", "tensor", Drawn(exponential)),
    ),
    reference=reference,
    check=check,
    holds="alike",
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda logits, *rest: logits.shape[-1],
    gradient=Gradient("gumbel_softmax_backward", _backward, saves=("logits", "tau", "noise")),
    outputs=outputs,
    sketches=sketches,
    autocast=SAME,
    ways=ways,
)


Result = tuple[Tensor | None, ...]


def wanted(tau: Any, output_mask: tuple[bool, ...] | None) -> tuple[bool, ...]:
    """Return one flag for each tensor: logits, tau where it is a tensor, noise."""
    return output_mask or (True, *([False] if is_tensor(tau) else []), False)


def gradient(
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


def gradient_cost(grad: Any, logits: Any, tau: Any, noise: Any, output_mask: Any) -> Cost:
    """Count all tensors read once, the gradient of the logits written once."""
    return Cost(bytes=grad.nbytes + 2 * logits.nbytes + noise.nbytes, flops=9 * logits.numel())


def gradient_magnitude(grad: Tensor, logits: Tensor, tau: Any, noise: Tensor, output_mask: Any) -> Result:
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


def gradient_outputs(grad: Any, logits: Any, tau: Any, noise: Any, output_mask: Any) -> Any:
    """Describe the gradient of consecutive rows; None for other layouts and other gradients."""
    mask = wanted(tau, output_mask)
    plain = all(m.is_contiguous() and 1 not in m.shape for m in (grad, logits, noise))
    if not plain or not logits.numel() or not mask[0] or any(mask[1:]):
        return None  # where a size is 1, torch chooses the stride
    return TensorMeta(logits.shape, logits.strides, logits.dtype, logits.device), *(None,) * (len(mask) - 1)


def _with_grad(sample: Sample) -> Sample | None:
    """Put a gradient in front of a sample, without ``hard``."""
    logits, tau, hard, noise = sample.args
    if hard and sample.name.endswith("_hard"):
        return None  # the gradient is that of the soft weights
    return Sample(sample.name, (rand(*logits.shape), logits, tau, noise), tags=sample.tags)


LOGITS, TEMPERATURE, _, NOISE = SPEC.params

BACKWARD = backward_of(
    SPEC,
    gradient,
    params=(LOGITS, replace(TEMPERATURE, default=REQUIRED), replace(NOISE, default=REQUIRED)),
    check=require_noisy,
    shape=lambda logits, tau, noise: tuple(logits.shape),
    gradients=lambda logits, tau, noise: 2 + is_tensor(tau),
    cost=gradient_cost,
    magnitude=gradient_magnitude,
    given=_with_grad,
    samples=(Sample("stride_zero_grad", (rand(6, 5, layout="expanded"), rand(6, 5), 0.5, drawn(6, 5))),),
    errors=(
        ErrorCase("temperature", (rand(3), rand(3), None, rand(3)), match="tau must be a number .* got None"),
    ),
    terms=lambda grad, *rest: grad.shape[-1] if grad.ndim else 1,
    outputs=gradient_outputs,
    ways=lambda grad, logits, tau, noise, mask: tuple(
        Way((w.result, *w.tensors), None, True, results=tuple(compress(w.tensors, wanted(tau, mask))))
        for w in ways(logits, tau, False, noise)
    ),
    sketches=lambda grad, logits, tau, noise, mask: sketches(logits, tau, False, noise),
)
