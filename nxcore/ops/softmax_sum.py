"""softmax_sum: blend N tensors of one shape with softmax weights.

    out = sum_i softmax(logits)[i] * xs[i]

The core of a DARTS mixed operation: Liu, Simonyan, Yang 2019, arXiv:1806.09055, eq. 2.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    is_tensor,
    rand,
    require_same,
    require_tensor,
)


def reference(xs: Sequence[Tensor] | Tensor, logits: Tensor) -> Tensor:
    """Blend ``xs`` with the softmax of ``logits``, accumulating in float32 or wider.

    Parameters
    ----------
    xs : sequence of Tensor, or Tensor
        N >= 1 candidates of one shape S, floating dtype and device; or one tensor (N, *S) that
        stacks them. Any strides.
    logits : Tensor
        Shape (N,), floating, on the device of ``xs``: one weight per candidate before softmax.

    Returns
    -------
    Tensor
        Shape S, dtype and memory format of ``xs[0]``.

    Raises
    ------
    InvalidInputError
        If there is no candidate, they differ in shape, dtype or device, or ``logits`` isn't (N,).

    Examples
    --------
    >>> nxcore.ops.softmax_sum([torch.zeros(2), torch.ones(2)], torch.zeros(2))
    tensor([0.5000, 0.5000])
    """
    return blend(xs, _weights(xs, logits))


def by_einsum(xs: Sequence[Tensor] | Tensor, logits: Tensor) -> Tensor:
    """``torch.stack``, then one contraction: a matrix-vector product."""
    return blend_by_einsum(xs, _weights(xs, logits))


def in_place(xs: Sequence[Tensor] | Tensor, logits: Tensor) -> Tensor:
    """One accumulator, added to in place."""
    return blend_in_place(xs, _weights(xs, logits))


def accumulator(xs: Sequence[Tensor] | Tensor) -> torch.dtype:
    """Return the accumulation dtype: float32 or wider."""
    return torch.promote_types((xs if isinstance(xs, Tensor) else xs[0]).dtype, torch.float32)


def _weights(xs: Sequence[Tensor] | Tensor, logits: Tensor) -> Tensor:
    return torch.softmax(logits.to(accumulator(xs)), dim=0)


def blend(xs: Sequence[Tensor] | Tensor, weights: Tensor) -> Tensor:
    """Sum candidates times weights; the weights have the accumulation dtype."""
    first, *rest = xs.unbind(0) if isinstance(xs, Tensor) else xs
    factors = weights.unbind(0)
    out = first.to(weights.dtype) * factors[0]
    for x, factor in zip(rest, factors[1:], strict=True):
        out = torch.addcmul(out, x.to(weights.dtype), factor)
    return out.to(first.dtype)


def blend_by_einsum(xs: Sequence[Tensor] | Tensor, weights: Tensor) -> Tensor:
    """Stack, then contract."""
    stacked = xs if isinstance(xs, Tensor) else torch.stack(tuple(xs))
    return torch.einsum("k,k...->...", weights, stacked.to(weights.dtype)).to(stacked.dtype)


def blend_in_place(xs: Sequence[Tensor] | Tensor, weights: Tensor) -> Tensor:
    """Add to the first product in place."""
    first, *rest = xs.unbind(0) if isinstance(xs, Tensor) else xs
    factors = weights.unbind(0)
    out = first.to(weights.dtype) * factors[0]
    for x, factor in zip(rest, factors[1:], strict=True):
        out.addcmul_(x.to(weights.dtype), factor)
    return out.to(first.dtype)


def check(xs: Any, logits: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    check_candidates(xs, logits, "logits")


def check_candidates(xs: Any, factors: Any, name: str) -> None:
    """Raise unless the candidates match, with one factor for each."""
    if isinstance(xs, Tensor):
        require_tensor(xs, "xs")
        if xs.ndim < 1 or xs.shape[0] == 0:
            raise InvalidInputError(
                f"xs must be (N, *S) with N >= 1, got shape {tuple(xs.shape)}", argument="xs"
            )
        count, first = xs.shape[0], xs
    else:
        if not isinstance(xs, list | tuple):
            raise InvalidInputError(
                f"xs must be a tensor or a sequence of tensors, got {type(xs).__name__}", argument="xs"
            )
        if not xs:
            raise InvalidInputError("xs must hold at least one tensor, got none", argument="xs")
        for i, x in enumerate(xs):
            require_tensor(x, f"xs[{i}]")
        require_same(xs, "xs", "shape", "dtype", "device")
        count, first = len(xs), xs[0]
    require_tensor(factors, name)
    if tuple(factors.shape) != (count,):
        raise InvalidInputError(
            f"{name} must be ({count},), one per candidate, got shape {tuple(factors.shape)}", argument=name
        )
    if factors.device != first.device:
        raise InvalidInputError(
            f"{name} must be on the device of xs, {first.device}, got {factors.device}", argument=name
        )


def elements(xs: Any) -> tuple[int, int, int]:
    """Return the number of candidates, the elements of one, and the bytes of an element."""
    if is_tensor(xs):
        return xs.shape[0], xs.numel() // xs.shape[0], xs.element_size()
    return len(xs), xs[0].numel(), xs[0].element_size()


def ways(xs: Any, logits: Any) -> tuple[Way, ...]:
    """Divide along any dimension of the candidates, with the same weights."""
    if is_tensor(xs):
        return tuple(Way((d + 1, None), d) for d in range(xs.ndim - 1))
    return tuple(Way((*[d] * len(xs), None), d) for d in range(xs[0].ndim))


def cost(xs: Any, logits: Any) -> Cost:
    """Count all candidates and the logits read once, the blend written once."""
    count, each, size = elements(xs)
    return Cost(bytes=(count + 1) * each * size + logits.nbytes, flops=2 * count * each)


def magnitude(xs: Any, logits: Tensor) -> Tensor:
    """Return the blend of absolute values; a weight's rounding error grows with its distance from the top."""
    weights = torch.softmax(logits, dim=0)
    spread = weights * (1 + (logits - logits.max()).abs().nan_to_num(posinf=0.0))
    parts = [s * x.abs() for s, x in zip(spread, xs, strict=True)]
    return torch.stack(parts).sum(0)


def outputs(xs: Any, logits: Any) -> TensorMeta | None:
    """Describe the blend of dense candidates of one layout; None for others."""
    metas = [TensorMeta(xs.shape[1:], xs.strides[1:], xs.dtype, xs.device)] if is_tensor(xs) else list(xs)
    first = metas[0]
    alike = all(meta.strides == first.strides for meta in metas)
    # Where a size is 1, torch chooses the stride.
    return first if alike and first.is_dense() and 1 not in first.shape and first.numel() else None


def _backward(grad: Any, mask: tuple[bool, ...], xs: Any, logits: Any) -> tuple[Any, ...]:
    return grad, xs, logits, mask


def candidates(count: int, *shape: int, **how: Any) -> tuple[Any, ...]:
    """Describe ``count`` tensors of one shape."""
    return tuple(rand(*shape, **how) for _ in range(count))


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})

SAMPLES = (
    Sample("stride_between_candidates", (rand(3, 5, 67), rand(3)), tags=SMOKE),
    Sample("list_of_pointers", (candidates(4, 3, 129), rand(4)), tags=SMOKE),
    Sample("last_block_partly_filled", (candidates(8, 1025), rand(8)), tags=SMOKE),
    Sample(
        "exp_overflow",
        (candidates(5, 999), rand(5, low=-1e4, high=1e4, dtype=torch.float32)),
        tags=SMOKE,
    ),
    Sample("one_candidate", (candidates(1, 64), rand(1))),
    Sample("one_element", (candidates(3, 1), rand(3))),
    Sample("zero_dimensions", (candidates(3), rand(3))),
    Sample("nothing_to_blend", (candidates(3, 0, 4), rand(3)), tags=DEGENERATE),
    Sample("prime_count", (candidates(13, 7, 31), rand(13))),
    Sample("power_of_two_less_one", (candidates(2, 4095), rand(2))),
    Sample("power_of_two", (candidates(2, 4096), rand(2))),
    Sample("power_of_two_plus_one", (candidates(2, 4097), rand(2))),
    Sample("transposed", (candidates(4, 33, 5, 6, layout="transposed"), rand(4))),
    Sample("channels_last", (candidates(3, 2, 5, 6, 7, layout="channels_last"), rand(3))),
    Sample("mixed_layouts", ((rand(4, 6), rand(4, 6, layout="transposed")), rand(2))),
    Sample("odd_storage_offset", (candidates(3, 257, layout="sliced"), rand(3))),
    Sample("gaps_in_memory", (candidates(3, 17, 9, layout="strided"), rand(3))),
    Sample("expanded", (candidates(3, 6, 8, layout="expanded"), rand(3))),
    Sample("stacked_transposed", (rand(6, 33, 8, layout="transposed"), rand(6))),
    Sample("strided_logits", (candidates(3, 50), rand(3, layout="strided"))),
    Sample("float32_logits", (candidates(3, 50), rand(3, dtype=torch.float32))),
    Sample("nan_in_candidates", (candidates(3, 400, values="nan"), rand(3)), tags=SMOKE),
    Sample("inf_in_candidates", (candidates(3, 64, values="inf"), rand(3))),
    Sample("nan_logit", (candidates(2, 64), rand(2, values="nan")), tags=DEGENERATE),
    Sample(
        "denormal_candidates",
        (candidates(3, 64, values="denormal", dtype=torch.float32), rand(3)),
        tags=DEGENERATE,
    ),
    Sample("accumulator_drift", (rand(64, 257, low=50, high=150), rand(64))),
    Sample("many_candidates", (candidates(70, 33), rand(70))),
    Sample("darts_cifar", (candidates(8, 64, 16, 32, 32), rand(8)), tags=BENCH),
    Sample("darts_cifar_stacked", (rand(8, 64, 16, 32, 32), rand(8)), tags=BENCH),
    Sample("small_edge", (candidates(8, 8, 16, 8, 8), rand(8)), tags=BENCH),
    Sample("darts_imagenet", (candidates(8, 256, 64, 56, 56), rand(8)), tags=BENCH | {"huge"}),
)

ERRORS = (
    ErrorCase("no_candidates", ((), rand(0)), match="xs must hold at least one tensor, got none"),
    ErrorCase("stack_of_none", (rand(0, 4), rand(0)), match=r"N >= 1, got shape \(0, 4\)"),
    ErrorCase("wrong_logits", (candidates(3, 4), rand(2)), match=r"logits must be \(3,\).*\(2,\)"),
    ErrorCase("mixed_shapes", ((rand(4), rand(5)), rand(2)), match=r"share one shape: xs\[0\] has \(4,\)"),
    ErrorCase(
        "mixed_dtypes",
        ((rand(4), rand(4, dtype=torch.float16)), rand(2)),
        match=r"share one dtype: xs\[0\] has torch.float32, xs\[1\] has torch.float16",
    ),
    ErrorCase("mixed_devices", ((rand(4), rand(4, device="meta")), rand(2)), match="share one device"),
    ErrorCase("logits_elsewhere", (candidates(2, 4), rand(2, device="meta")), match="device of xs, cpu"),
    ErrorCase("integers", (candidates(2, 4, dtype=torch.int64), rand(2)), match="floating dtype, got"),
    ErrorCase("integer_logits", (candidates(2, 4), rand(2, dtype=torch.int64)), match="logits must have"),
    ErrorCase("not_a_tensor", (3.5, rand(2)), match="xs must be a tensor or a sequence .* got float"),
    ErrorCase("holds_a_number", ((rand(2), 3.5), rand(2)), match=r"xs\[1\] must be a tensor, got float"),
)

SPEC = OpSpec(
    name="softmax_sum",
    params=(Param("xs", "tensors"), Param("logits", "tensor")),
    reference=reference,
    check=check,
    holds="alike",
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda xs, logits: len(xs) if not is_tensor(xs) else xs.shape[0],
    idioms=MappingProxyType({"einsum": by_einsum, "in-place": in_place}),
    gradient=Gradient("softmax_sum_backward", _backward, saves=("xs", "logits"), reads={"xs": ("logits",)}),
    outputs=outputs,
    ways=ways,
    autocast=SAME,
)
