"""batch_norm_sum_backward: the gradients of batch_norm_sum, to every tensor and to the weights.

    xs_grad[i] = weights[i] * grad, where normed[i] as batch_norm_backward returns it of that
    weights_grad[i] = sum of grad * z_i

The sums that a norm's gradient consists of are those of the weights' gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.batch_norm import accumulator, laid_out, like, values
from nxcore.ops.batch_norm_backward import SPEC as NORM
from nxcore.ops.batch_norm_sum import SPEC as FORWARD
from nxcore.ops.batch_norm_sum import Flags, flags, statistics
from nxcore.ops.batch_norm_sum import check as check_forward
from nxcore.ops.softmax_sum import candidates
from nxcore.plugin import (
    Cost,
    ErrorCase,
    InvalidInputError,
    Param,
    Sample,
    TensorMeta,
    Way,
    backward_of,
    rand,
    require_shape,
    require_tensor,
)


def reference(
    grad: Tensor,
    xs: Sequence[Tensor],
    weights: Tensor,
    mean: Tensor,
    var: Tensor,
    normed: Flags | None = None,
    eps: float = 1e-5,
    output_mask: Flags | None = None,
) -> tuple[tuple[Tensor | None, ...], Tensor | None]:
    """Return the gradients of ``batch_norm_sum``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of ``out``.
    xs, weights, normed, eps
        As in ``batch_norm_sum``.
    mean, var : Tensor
        The statistics that ``batch_norm_sum`` returned for ``xs``.
    output_mask : tuple of bool, optional
        Which gradients to compute: one entry for each of ``xs``, then one for the weights. All by default;
        the others are None.

    Returns
    -------
    xs_grad : tuple of Tensor
        Shape and dtype of each of ``xs``, and its layout if it has no gaps.
    weights_grad : Tensor
        Shape (N,), dtype of ``weights``.

    Raises
    ------
    InvalidInputError
        As ``batch_norm_sum``; or if ``grad``, ``mean``, ``var`` or ``output_mask`` don't fit.

    Examples
    --------
    >>> x, ones = torch.tensor([[0.0], [2.0]]), torch.ones(1, 1)
    >>> nxcore.ops.batch_norm_sum_backward(x, [x], torch.ones(1), ones, 2 * ones)[1]
    tensor([2.0000])
    """
    wide, mask, found = accumulator(xs[0]), wanted(xs, output_mask), flags(xs, normed)
    further = torch.is_grad_enabled() and any(x.requires_grad for x in xs)
    count, g, factors = values(xs[0]), grad.to(wide), weights.to(wide)
    shape = [-1 if d == 1 else 1 for d in range(g.ndim)]
    dims = [d for d in range(g.ndim) if d != 1]
    rows = iter(zip(mean.to(wide), var.to(wide), strict=True))
    results, dots = [], []
    for x, factor, norm, want in zip(xs, factors.unbind(0), found, mask[:-1], strict=True):
        z = x.to(wide)
        if not norm:
            dots.append((g * z).sum())
            results.append(laid_out((factor * g).to(x.dtype), x) if want else None)
            continue
        centre, spread = next(rows)
        if further:  # saved statistics have no gradient
            spread, centre = torch.var_mean(z, dims, correction=1)
        scale = torch.rsqrt(spread * ((count - 1) / count) + eps)
        z = (z - centre.view(shape)) * scale.view(shape)
        sums = (g * z).sum(dims)
        dots.append(sums.sum())
        if not want:
            results.append(None)
            continue
        level = (g.sum(dims) / count).view(shape)
        inner = g - level - z * (sums / count).view(shape)
        results.append(laid_out((factor * scale.view(shape) * inner).to(x.dtype), x))
    return tuple(results), torch.stack(dots).to(weights.dtype) if mask[-1] else None


def gradients(xs: Any, *_: Any) -> int:
    """Return the number of gradients: one for each of ``xs``, and that of the weights."""
    return len(xs) + 1


def wanted(xs: Any, output_mask: Flags | None) -> Flags:
    """Return the mask, all true for None."""
    return (True,) * gradients(xs) if output_mask is None else tuple(output_mask)


def check(xs: Any, weights: Any, mean: Any, var: Any, normed: Any, eps: Any) -> None:
    """Raise unless the operator is defined for the arguments after the gradient."""
    check_forward(xs, weights, normed, eps)
    meta = statistics(xs, normed)
    floats = tuple(dict.fromkeys((meta.dtype, torch.float32)))
    for name, value in (("mean", mean), ("var", var)):
        require_tensor(value, name)
        require_shape(value, meta.shape, name)
        if value.device != meta.device or value.dtype not in floats:
            raise InvalidInputError(
                f"{name} must be {' or '.join(map(str, floats))} on {meta.device}, got {value.dtype} on "
                f"{value.device}",
                argument=name,
            )


def outputs(
    grad: Any,
    xs: Any,
    weights: Any,
    mean: Any,
    var: Any,
    normed: Any,
    eps: Any,
    output_mask: Any,
) -> tuple[Any, TensorMeta | None]:
    """Describe the gradients."""
    *mask, last = wanted(xs, output_mask)
    dots = TensorMeta(tuple(weights.shape), (1,), weights.dtype, weights.device)
    return tuple(like(x) if m else None for x, m in zip(xs, mask, strict=True)), dots if last else None


def ways(grad: Any, xs: Any, *rest: Any) -> tuple[Way, ...]:
    """Divide by channel; the weights' gradient is a sum over all."""
    each = (1,) * len(xs)
    results = tuple(compress((*each, None), wanted(xs, rest[-1])))
    return (Way((1, *each, None, 1, 1), None, True, "" if any(results) else "sum", results),)


def cost(grad: Any, xs: Any, weights: Any, mean: Any, var: Any, normed: Any, *rest: Any) -> Cost:
    """Count grad and all tensors that are needed read once, the requested gradients written."""
    *mask, last = wanted(xs, rest[-1])
    norms = flags(xs, normed)
    read = 1 + sum(last or (norm and want) for norm, want in zip(norms, mask, strict=True))
    each = xs[0].numel()
    return Cost(
        bytes=(read + sum(mask)) * xs[0].nbytes + 2 * mean.nbytes + 2 * weights.nbytes,
        flops=(4 * (read - 1) + 5 * sum(mask)) * each,
    )


def magnitude(
    grad: Tensor,
    xs: Any,
    weights: Tensor,
    mean: Tensor,
    var: Tensor,
    normed: Any,
    eps: Any,
    output_mask: Any,
) -> Any:
    """Return the gradients of absolute values, with all terms positive."""
    *mask, last = wanted(xs, output_mask)
    rows = iter(zip(mean, var, strict=True))
    results, dots = [], []
    for x, w, norm, want in zip(xs, weights.abs(), flags(xs, normed), mask, strict=True):
        scale, dot = grad.abs(), (grad.abs() * x.abs()).sum()
        if norm:
            scale, of_weight, _ = NORM.magnitude(
                grad, x, *next(rows), x.new_ones(x.shape[1]), eps, (True,) * 3
            )
            dot = of_weight.sum()
        results.append(w * scale if want else None)
        dots.append(dot)
    return tuple(results), torch.stack(dots) if last else None


def terms(grad: Any, xs: Any, *rest: Any) -> int:
    """Return the number of values of a tensor."""
    return max(int(xs[0].numel()), 1)


def _with_grad(sample: Sample) -> Sample:
    """Put a gradient and statistics into a sample of batch_norm_sum."""
    xs, weights, *rest = sample.args
    first, kwargs = xs[0], dict(sample.kwargs)
    norms = sum(flags(xs, rest[0] if rest else None))
    centre = 0.0 if first.low is None else (first.low + first.high) / 2
    # Statistics of float32 and of half types have this dtype.
    means = rand(norms, first.shape[1], low=centre - 0.1, high=centre + 0.1, dtype=torch.float32)
    variances = rand(norms, first.shape[1], low=0.5, high=2.0, dtype=torch.float32)
    grad = rand(*first.shape, layout=first.layout)
    return Sample(sample.name, (grad, xs, weights, means, variances, *rest), kwargs, sample.tags)


TWO, KEPT = candidates(2, 4, 3, 5, 4), (rand(2, 3, low=0.5, high=2.0, dtype=torch.float32),) * 2
GRAD, HALF = rand(4, 3, 5, 4), (rand(1, 3, low=0.5, high=2.0, dtype=torch.float32),) * 2

SAMPLES = (
    Sample("stride_zero_grad", (rand(4, 3, 5, 4, layout="expanded"), TWO, rand(2), *KEPT)),
    Sample("gradient_of_a_sum", (rand(4, 3, 5, 4, layout="repeated"), TWO, rand(2), *KEPT)),
    Sample("layouts_differ", (rand(4, 3, 5, 4, layout="channels_last"), TWO, rand(2), *KEPT)),
    Sample("only_weights", (GRAD, TWO, rand(2), *KEPT), {"output_mask": (False, False, True)}),
    Sample("only_one", (GRAD, TWO, rand(2), *KEPT), {"output_mask": (False, True, False)}),
    Sample("one_plain", (GRAD, TWO, rand(2), *HALF, (False, True)), {"output_mask": (True, False, True)}),
)

ERRORS = (
    ErrorCase("mean", (GRAD, TWO, rand(2), rand(1, 3), KEPT[1]), match="mean must have the output's shape"),
    ErrorCase(
        "var",
        (GRAD, TWO, rand(2), KEPT[0], rand(2, 3, dtype=torch.float64)),
        match="var must be torch.float32 on cpu, got torch.float64",
    ),
)

XS, WEIGHTS, NORMED, EPS = FORWARD.params

SPEC = backward_of(
    FORWARD,
    reference,
    params=(XS, WEIGHTS, Param("mean", "tensor"), Param("var", "tensor"), NORMED, EPS),
    check=check,
    shape=lambda xs, *_: tuple(xs[0].shape),
    same_dtype=True,
    gradients=gradients,
    cost=cost,
    magnitude=magnitude,
    given=_with_grad,
    samples=SAMPLES,
    errors=ERRORS,
    terms=terms,
    outputs=outputs,
    ways=ways,
)
