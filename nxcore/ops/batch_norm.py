"""batch_norm: images normalised by the mean and the variance of each channel, as in training.

    y = (x - mean) / sqrt(var + eps) * weight + bias;  mean and var over all dimensions but the second

The ``var`` that normalises is divided by the number of values, the returned one by one less, as for running
statistics. Welford's and Chan's algorithms for the variance: Chan, Golub and LeVeque 1983, "Algorithms for
computing the sample variance".
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.plugin import (
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
    brief,
    rand,
    require_tensor,
)


def accumulator(x: Any) -> torch.dtype:
    """Return the dtype of the statistics: float32 or wider."""
    return torch.promote_types(x.dtype, torch.float32)


def like(x: Any) -> TensorMeta:
    """Describe a result with the shape, dtype and layout of ``x``; row-major where ``x`` has gaps."""
    meta = TensorMeta.of(x)
    if meta.is_dense():
        return meta
    steps = [math.prod(meta.shape[i + 1 :]) for i in range(meta.ndim)]
    return TensorMeta(meta.shape, tuple(steps), meta.dtype, meta.device)


def laid_out(result: Tensor, x: Tensor) -> Tensor:
    """Return ``result`` in the layout of ``x``; torch's kernels differ in their results' layouts."""
    if result.stride() == x.stride():  # not with gaps
        return result
    wanted = like(x).strides
    if result.stride() == wanted:
        return result
    return result.new_empty_strided(result.shape, wanted).copy_(result)


def reference(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``x`` normalised for each channel, and the statistics used.

    Parameters
    ----------
    x : Tensor
        (N, C, ...), floating; more than one value for each channel.
    weight, bias : Tensor, optional
        (C,), with the dtype of ``x`` or float32; both or neither.
    eps : float, default 1e-5
        Added to the variance; positive.

    Returns
    -------
    y : Tensor
        Shape, dtype and layout of ``x``.
    mean, var : Tensor
        (C,), float32 or wider, without a gradient; ``var`` as ``torch.var_mean`` with correction 1.

    Raises
    ------
    InvalidInputError
        If a channel has one value or none, or ``weight`` and ``bias`` don't fit.

    Examples
    --------
    >>> y, mean, var = nxcore.ops.batch_norm(torch.tensor([[0.0], [2.0]]))
    >>> mean, var
    (tensor([1.]), tensor([2.]))
    """
    wide = accumulator(x)
    scale, shift = (None if t is None else t.to(wide) for t in (weight, bias))
    # With momentum 1, torch's running statistics are those of the batch.
    mean, var = (x.detach().new_zeros(x.shape[1], dtype=wide) for _ in range(2))
    y = functional.batch_norm(x, mean, var, scale, shift, True, 1.0, eps)
    return laid_out(y, x), mean, var


def values(x: Any) -> int:
    """Return the number of values of a channel."""
    shape = tuple(x.shape)
    return math.prod((shape[0], *shape[2:]))


def check(x: Any, weight: Any, bias: Any, eps: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "x")
    require_channels(x)
    require_factors(x, weight, bias)
    require_eps(eps)


def require_factors(x: Any, weight: Any, bias: Any) -> None:
    """Raise unless ``weight`` and ``bias`` have one number for each channel, or are both None."""
    if (weight is None) != (bias is None):
        given, missing = ("bias", "weight") if weight is None else ("weight", "bias")
        raise InvalidInputError(f"{given} needs a {missing}: pass both or neither", argument=given)
    require_factor(weight, x, "weight")
    require_factor(bias, x, "bias")


def require_channels(x: Any) -> None:
    """Raise unless there are channels with at least two values."""
    if x.ndim < 2:
        raise InvalidInputError(f"x must be (N, C, ...), got {tuple(x.shape)}", argument="x")
    if x.shape[1] == 0 or values(x) < 2:
        raise InvalidInputError(
            f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}",
            argument="x",
        )


def require_factor(value: Any, x: Any, name: str, dtypes: tuple[torch.dtype, ...] = ()) -> None:
    """Raise unless the factor is None or has one number for each channel, in one of ``dtypes``."""
    if value is None:
        return
    require_tensor(value, name)
    if tuple(value.shape) != (x.shape[1],):
        wanted = (x.shape[1],)
        raise InvalidInputError(f"{name} must be {wanted}, got {tuple(value.shape)}", argument=name)
    allowed = dtypes or tuple(dict.fromkeys((x.dtype, accumulator(x))))
    if value.dtype not in allowed:
        spelt = " or ".join(str(d).removeprefix("torch.") for d in allowed)
        got = str(value.dtype).removeprefix("torch.")
        raise InvalidInputError(f"{name} must be {spelt}, got {got}", argument=name)
    if value.device != x.device:
        raise InvalidInputError(
            f"{name} must be on the device of x, {x.device}, got {value.device}", argument=name
        )


def require_eps(eps: Any) -> None:
    """Raise unless ``eps`` is a positive number."""
    number = isinstance(eps, int | float) and not isinstance(eps, bool)
    if not number or not 0 < eps < 2**63:
        raise InvalidInputError(f"eps must be a positive number, got {brief(eps)}", argument="eps")


def outputs(x: Any, weight: Any, bias: Any, eps: Any) -> tuple[TensorMeta, ...]:
    """Describe the result and the statistics."""
    statistic = TensorMeta((x.shape[1],), (1,), accumulator(x), x.device)
    return like(x), statistic, statistic


def cost(x: Any, weight: Any, bias: Any, eps: Any) -> Cost:
    """Count x read once, y written once; four operations for each element for the statistics, two after."""
    factors = sum(t.nbytes for t in (weight, bias) if t is not None)
    return Cost(bytes=2 * x.nbytes + 2 * x.shape[1] * accumulator(x).itemsize + factors, flops=6 * x.numel())


def ways(x: Any, weight: Any, bias: Any, eps: Any) -> tuple[Way, ...]:
    """Divide by channel."""
    return (Way((1, *(0 for t in (weight, bias) if t is not None)), None, audits=True, results=(1, 0, 0)),)


def magnitude(x: Tensor, weight: Any, bias: Any, eps: Any) -> tuple[Tensor, ...]:
    """Return the scales: of y and mean, from absolute values; of var, from its condition number.

    A mean's error grows with the mean of absolute values, however close to zero the mean is. That of a sum of
    squares minus the square of a sum grows with the square of the condition number.
    """
    shape = [-1 if d == 1 else 1 for d in range(x.ndim)]
    dims = [d for d in range(x.ndim) if d != 1]
    var, count = torch.var(x, dims, correction=1), values(x)
    scale = torch.rsqrt(var * ((count - 1) / count) + eps) * (1 if weight is None else weight.abs())
    centre = x.abs().mean(dims)
    y = (x.abs() + centre.view(shape)) * scale.view(shape)
    if bias is not None:
        y = y + bias.abs().view(shape)
    return y, centre, var.sqrt() * x.square().mean(dims).sqrt()


def terms(x: Any, *rest: Any) -> int:
    """Return the number of values of a channel."""
    return values(x)


def _backward(grad: Any, mask: tuple[bool, ...], x: Any, *rest: Any) -> tuple[Any, ...]:
    weight, _, eps, mean, var = rest
    return grad, x, mean, var, weight, eps, (*mask, False, False)[:3]


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})

SAMPLES = (
    Sample("plain", (rand(3, 5, 4, 6),), tags=SMOKE),
    Sample("affine", (rand(2, 3, 5, 7), rand(3), rand(3)), tags=SMOKE),
    Sample("several_slices", (rand(9, 2, 24, 24),), tags=SMOKE),
    Sample("many_channels", (rand(2, 33, 3, 4), rand(33), rand(33)), tags=SMOKE),
    Sample("float32_factors", (rand(3, 4, 8), rand(4, dtype=torch.float32), rand(4, dtype=torch.float32))),
    Sample("mean_far_from_0", (rand(4, 3, 8, 8, low=1000, high=1004),)),
    Sample("large_eps", (rand(2, 3, 4, 4),), {"eps": 3.0}),
    Sample("one_pixel", (rand(6, 4, 1, 1),)),
    Sample("one_image", (rand(1, 3, 4, 4), rand(3), rand(3))),
    Sample("no_image_dimensions", (rand(5, 7),)),
    Sample("volumes", (rand(2, 3, 2, 3, 4),)),
    Sample("channels_last", (rand(2, 8, 5, 6, layout="channels_last"), rand(8), rand(8))),
    Sample("odd_storage_offset", (rand(2, 3, 4, 8, layout="sliced"),)),
    Sample("gaps_in_memory", (rand(2, 3, 4, 8, layout="strided"),)),
    Sample("transposed", (rand(4, 3, 2, 5, layout="transposed"),)),
    Sample("expanded", (rand(3, 2, 4, 5, layout="expanded"),)),
    Sample("nan", (rand(2, 8, 1, 3, values="nan"),)),  # one channel has none
    Sample("cifar", (rand(64, 16, 32, 32),), tags=BENCH),
    Sample("cifar_32", (rand(64, 32, 16, 16),), tags=BENCH),
    Sample("cifar_64", (rand(64, 64, 8, 8),), tags=BENCH),
    Sample("wide", (rand(64, 64, 32, 32),), tags=BENCH),
    Sample("wide_affine", (rand(64, 64, 32, 32), rand(64), rand(64)), tags=BENCH),
    Sample("cifar_channels_last", (rand(64, 16, 32, 32, layout="channels_last"),), tags=BENCH),
)

ERRORS = (
    ErrorCase("rank", (rand(4),), match=r"x must be \(N, C, ...\), got \(4,\)"),
    ErrorCase("one_value", (rand(1, 3, 1, 1),), match="Expected more than 1 value per channel when training"),
    ErrorCase("no_values", (rand(0, 3, 2, 2),), match="Expected more than 1 value per channel when training"),
    ErrorCase("no_weight", (rand(2, 3, 2, 2), None, rand(3)), match="bias needs a weight"),
    ErrorCase("weight", (rand(2, 3, 2, 2), rand(2), rand(3)), match=r"weight must be \(3,\), got \(2,\)"),
    ErrorCase(
        "wide_bias",
        (rand(2, 3, 2, 2), rand(3), rand(3, dtype=torch.float64)),
        match="bias must be float32, got float64",
    ),
    ErrorCase("eps", (rand(2, 3, 2, 2), None, None, 0.0), match="eps must be a positive number, got 0.0"),
    ErrorCase("not_a_tensor", (1.0,), match="x must be a tensor, got float"),
)

SPEC = OpSpec(
    name="batch_norm",
    params=(
        Param("x", "tensor"),
        Param("weight", "tensor", None),
        Param("bias", "tensor", None),
        Param("eps", "static", 1e-5),
    ),
    reference=reference,
    check=check,
    holds="alike",
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
    outputs=outputs,
    gradient=Gradient("batch_norm_backward", _backward, saves=("x", "weight"), keeps=True),
    ways=ways,
    autocast=SAME,
)
