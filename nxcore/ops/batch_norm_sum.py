"""batch_norm_sum: a weighted sum of tensors, of which some are normalised first, as in training.

    out = sum_i weights[i] * z_i;  z_i = (xs[i] - mean[i]) / sqrt(var[i] + eps) where normed[i], else xs[i]

A mixed operation of a search network computes this of the results of its convolutions: Liu, Simonyan, Yang
2019, arXiv:1806.09055, eq. 2. Statistics are those of ``batch_norm``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.batch_norm import (
    SPEC as BATCH_NORM,
)
from nxcore.ops.batch_norm import (
    accumulator,
    laid_out,
    like,
    require_channels,
    require_eps,
    values,
)
from nxcore.ops.softmax_sum import candidates, check_candidates
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
    is_tensor,
    rand,
    require_flags,
)

Flags = tuple[bool, ...]


def reference(
    xs: Sequence[Tensor], weights: Tensor, normed: Flags | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum ``xs``, each times its weight, after a batch norm of those that ``normed`` names.

    Parameters
    ----------
    xs : sequence of Tensor
        N >= 1 tensors of one shape (N, C, ...), floating dtype and device; more than one value for each
        channel. Any strides.
    weights : Tensor
        Shape (N,), floating, on the device of ``xs``.
    normed : tuple of bool, optional
        Which of ``xs`` are normalised; all by default, and at least one.
    eps : float, default 1e-5
        Added to the variances; positive.

    Returns
    -------
    out : Tensor
        Shape and dtype of ``xs[0]``, and its layout if it has no gaps.
    mean, var : Tensor
        (normalised tensors, C), float32 or wider, without a gradient; as ``batch_norm`` returns them.

    Raises
    ------
    InvalidInputError
        If there is no tensor, they differ in shape, dtype or device, a channel has one value or none, or
        ``weights`` or ``normed`` don't fit.

    Examples
    --------
    >>> xs = [torch.tensor([[0.0], [2.0]]), torch.ones(2, 1)]
    >>> out, mean, var = nxcore.ops.batch_norm_sum(xs, torch.tensor([1.0, 3.0]), (True, False))
    >>> out.tolist(), mean, var
    ([[2.0000...], [3.9999...]], tensor([[1.]]), tensor([[2.]]))
    """
    factors, first = weights.to(accumulator(xs[0])), xs[0]
    out: Any = 0.0
    means, variances = [], []
    for x, factor, norm in zip(xs, factors.unbind(0), flags(xs, normed), strict=True):
        z = x.to(factors.dtype)
        if norm:
            z, mean, var = BATCH_NORM.reference(z, eps=eps)
            means.append(mean)
            variances.append(var)
        out = out + factor * z
    return laid_out(out.to(first.dtype), first), torch.stack(means), torch.stack(variances)


def flags(xs: Any, normed: Flags | None) -> Flags:
    """Return ``normed``, all true for None."""
    return (True,) * len(xs) if normed is None else tuple(normed)


def check(xs: Any, weights: Any, normed: Any, eps: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    if is_tensor(xs):
        raise InvalidInputError("xs must be a sequence of tensors, got a tensor", argument="xs")
    check_candidates(xs, weights, "weights")
    require_channels(xs[0])
    if normed is not None:
        require_flags(normed, len(xs), "normed")
        if not any(normed):
            raise InvalidInputError("normed must name one of xs, got none", argument="normed")
    require_eps(eps)


def statistics(xs: Any, normed: Any) -> TensorMeta:
    """Describe the means, or the variances."""
    first = xs[0]
    return TensorMeta.row_major((sum(flags(xs, normed)), first.shape[1]), accumulator(first), first.device)


def outputs(xs: Any, weights: Any, normed: Any, eps: Any) -> tuple[TensorMeta, ...]:
    """Describe the sum and the statistics."""
    return like(xs[0]), *(statistics(xs, normed),) * 2


def cost(xs: Any, weights: Any, normed: Any, eps: Any) -> Cost:
    """Count all tensors read once, the sum written once; two operations a tensor, five more a norm."""
    count, norms, kept = len(xs), sum(flags(xs, normed)), statistics(xs, normed)
    return Cost(
        bytes=(count + 1) * xs[0].nbytes + weights.nbytes + 2 * kept.nbytes,
        flops=(2 * count + 5 * norms) * xs[0].numel(),
    )


def magnitude(xs: Any, weights: Tensor, normed: Any, eps: Any) -> tuple[Tensor, ...]:
    """Return the sum of absolute values, and the scales of the statistics."""
    out, each = torch.zeros_like(xs[0]), []
    for x, w, norm in zip(xs, weights.abs(), flags(xs, normed), strict=True):
        scale = x.abs()
        if norm:
            scale, *rest = BATCH_NORM.magnitude(x, None, None, eps)
            each.append(rest)
        out = out + w * scale
    means, variances = zip(*each, strict=True)
    return out, torch.stack(means), torch.stack(variances)


def terms(xs: Any, *rest: Any) -> int:
    """Return the number of values of a channel, and that of tensors."""
    return values(xs[0]) + len(xs)


def _backward(grad: Any, mask: Flags, *args: Any) -> tuple[Any, ...]:
    if 0 in grad.stride():  # of a mean of all pixels, say: kernels take a gradient that fills its memory
        grad = grad.contiguous()
    xs, weights, normed, eps, means, variances = args
    return grad, xs, weights, means, variances, normed, eps, mask


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})

EDGE = (False, False, False, True, True, True, True)
"""An edge of DARTS: two pools, a skip connection, four convolutions."""

SAMPLES = (
    Sample("two", (candidates(2, 3, 5, 4, 6), rand(2)), tags=SMOKE),
    Sample("edge", (candidates(7, 2, 3, 5, 7), rand(7), EDGE), tags=SMOKE),
    Sample("several_slices", (candidates(3, 9, 2, 24, 24), rand(3), (True, False, True)), tags=SMOKE),
    Sample("one", (candidates(1, 4, 3, 2, 2), rand(1))),
    Sample("power_of_two", (candidates(4, 4, 8, 8, 8), rand(4))),
    Sample("power_of_two_plus_one", (candidates(5, 3, 5, 9, 9), rand(5), (True, True, False, True, True))),
    Sample("many", (candidates(35, 2, 3, 4, 4), rand(35), EDGE * 5)),
    Sample("seventy", (candidates(70, 2, 2, 3, 3), rand(70))),
    Sample("float32_weights", (candidates(3, 3, 4, 8), rand(3, dtype=torch.float32))),
    Sample("strided_weights", (candidates(3, 3, 4, 8), rand(3, layout="strided"))),
    Sample("mean_far_from_0", (candidates(2, 4, 3, 8, 8, low=1000, high=1004), rand(2), (True, False))),
    Sample("large_eps", (candidates(2, 2, 3, 4, 4), rand(2)), {"eps": 3.0}),
    Sample("one_pixel", (candidates(2, 6, 4, 1, 1), rand(2))),
    Sample("no_image_dimensions", (candidates(3, 5, 7), rand(3))),
    Sample("volumes", (candidates(2, 2, 3, 2, 3, 4), rand(2))),
    Sample("channels_last", (candidates(3, 2, 8, 5, 6, layout="channels_last"), rand(3))),
    Sample("odd_storage_offset", (candidates(3, 2, 3, 4, 8, layout="sliced"), rand(3))),
    Sample("gaps_in_memory", (candidates(2, 2, 3, 4, 8, layout="strided"), rand(2))),
    Sample("transposed", (candidates(2, 4, 3, 2, 5, layout="transposed"), rand(2))),
    Sample("expanded", (candidates(2, 3, 2, 4, 5, layout="expanded"), rand(2))),
    Sample("mixed_layouts", ((rand(4, 3, 2, 5), rand(4, 3, 2, 5, layout="transposed")), rand(2))),
    Sample("nan", (candidates(3, 2, 8, 1, 3, values="nan"), rand(3))),
    Sample("darts_16", (candidates(7, 64, 16, 32, 32), rand(7), EDGE), tags=BENCH),
    Sample("darts_64", (candidates(7, 64, 64, 8, 8), rand(7), EDGE), tags=BENCH),
)

X = candidates(2, 2, 3, 2, 2)

ERRORS = (
    ErrorCase("nothing", ((), rand(0)), match="xs must hold at least one tensor, got none"),
    ErrorCase("a_tensor", (rand(2, 2, 3, 2, 2), rand(2)), match="xs must be a sequence of tensors, got a t"),
    ErrorCase("wrong_weights", (X, rand(3)), match=r"weights must be \(2,\).*\(3,\)"),
    ErrorCase("mixed_shapes", ((rand(4, 2), rand(5, 2)), rand(2)), match="share one shape"),
    ErrorCase("one_value", ((rand(1, 3, 1, 1),), rand(1)), match="Expected more than 1 value per channel"),
    ErrorCase("rank", ((rand(4),), rand(1)), match=r"x must be \(N, C, ...\), got \(4,\)"),
    ErrorCase("short_normed", (X, rand(2), (True,)), match="normed must have 2 entries, got 1"),
    ErrorCase("not_flags", (X, rand(2), "all"), match="normed must be a sequence of flags"),
    ErrorCase("none_normed", (X, rand(2), (False, False)), match="normed must name one of xs, got none"),
    ErrorCase("eps", (X, rand(2), None, 0.0), match="eps must be a positive number, got 0.0"),
)

SPEC = OpSpec(
    name="batch_norm_sum",
    params=(
        Param("xs", "tensors"),
        Param("weights", "tensor"),
        Param("normed", "static", None),
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
    gradient=Gradient("batch_norm_sum_backward", _backward, saves=("xs", "weights"), keeps=True),
    autocast=SAME,
    ways=lambda xs, *rest: (Way((*[1] * len(xs), None), None, audits=True, results=(1, 1, 1)),),
)
