"""batch_norm_backward: the gradients of batch_norm, to the images and to the factors.

    z = (x - mean) / sqrt(var + eps);  weight_grad = sum of grad * z;  bias_grad = sum of grad
    x_grad = weight / sqrt(var + eps) * (grad - mean of grad - z * mean of grad * z)

Ioffe and Szegedy 2015, "Batch normalization".
"""

from __future__ import annotations

from itertools import compress
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.batch_norm import SPEC as FORWARD
from nxcore.ops.batch_norm import (
    accumulator,
    laid_out,
    like,
    require_channels,
    require_eps,
    require_factor,
    values,
)
from nxcore.plugin import (
    Cost,
    ErrorCase,
    Param,
    Sample,
    TensorMeta,
    Way,
    backward_of,
    dense,
    memory_format,
    rand,
    require_tensor,
)

Mask = tuple[bool, bool, bool]


def reference(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
    output_mask: tuple[bool, ...] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of ``batch_norm``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of ``y``.
    x, weight, eps
        As in ``batch_norm``.
    mean, var : Tensor
        The statistics that ``batch_norm`` returned for ``x``.
    output_mask : tuple of bool
        Which gradients to compute: of ``x``, ``weight`` and ``bias``. Without a ``weight``, the last two are
        None.

    Returns
    -------
    x_grad : Tensor
        Shape, dtype and layout of ``x``.
    weight_grad, bias_grad : Tensor
        (C,), dtype of ``weight``.

    Raises
    ------
    InvalidInputError
        As ``batch_norm``; or if ``grad``, ``mean`` or ``var`` don't fit ``x``.

    Examples
    --------
    >>> x, ones = torch.tensor([[0.0], [2.0]]), torch.ones(1)
    >>> x_grad, weight_grad, bias_grad = nxcore.ops.batch_norm_backward(x, x, ones, ones, 2 * ones)
    >>> bias_grad
    tensor([2.])
    """
    count = values(x)
    mean, var = mean.to(accumulator(x)), var.to(accumulator(x))
    scale = torch.rsqrt(var * ((count - 1) / count) + eps)
    factor = None if weight is None else weight.to(scale.dtype)
    mask = wanted(weight, output_mask)
    given = x
    if (
        x.device.type == "cpu" and x.dtype.itemsize < 4
    ):  # other layouts torch accumulates in their own precision
        form = memory_format(x)
        grad, given = dense(grad, form), dense(x, form)
    x_grad, *factors = torch.ops.aten.native_batch_norm_backward(
        grad, given, factor, None, None, mean, scale, True, eps, mask
    )
    weight_grad, bias_grad = (
        f.to(weight.dtype) if m and weight is not None else None
        for f, m in zip(factors, mask[1:], strict=True)
    )
    return (laid_out(x_grad, x) if mask[0] else None), weight_grad, bias_grad


def wanted(weight: Any, output_mask: tuple[bool, ...]) -> Mask:
    """Return which gradients there are; without a weight, none of factors."""
    x, scale, shift = output_mask
    given = weight is not None
    return x, scale and given, shift and given


def check(x: Any, mean: Any, var: Any, weight: Any, eps: Any) -> None:
    """Raise unless the operator is defined for the arguments after the gradient."""
    require_tensor(x, "x")
    require_channels(x)
    for name, value in (("mean", mean), ("var", var)):
        require_tensor(value, name)
        require_factor(value, x, name, tuple(dict.fromkeys((accumulator(x), torch.float32))))
    require_factor(weight, x, "weight")
    require_eps(eps)


def outputs(
    grad: Any,
    x: Any,
    mean: Any,
    var: Any,
    weight: Any,
    eps: Any,
    output_mask: Any,
) -> tuple[TensorMeta | None, ...]:
    """Describe the gradients."""
    mask = wanted(weight, output_mask)
    factor = weight is not None and TensorMeta((x.shape[1],), (1,), weight.dtype, x.device)
    return like(x) if mask[0] else None, *((factor or None) if m else None for m in mask[1:])


def cost(grad: Any, x: Any, mean: Any, var: Any, weight: Any, eps: Any, output_mask: Any) -> Cost:
    """Count grad and x read once, x's gradient written once; eight operations for each element."""
    mask = wanted(weight, output_mask)
    factors = 0 if weight is None else weight.nbytes * (1 + sum(mask[1:]))
    written = x.nbytes if mask[0] else 0
    return Cost(
        bytes=grad.nbytes + x.nbytes + written + 2 * mean.nbytes + factors,
        flops=(4 + 4 * mask[0]) * x.numel(),
    )


def magnitude(
    grad: Tensor, x: Tensor, mean: Tensor, var: Tensor, weight: Any, eps: Any, output_mask: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of absolute values, with all terms positive."""
    shape = [-1 if d == 1 else 1 for d in range(x.ndim)]
    dims = [d for d in range(x.ndim) if d != 1]
    count, mask = values(x), wanted(weight, output_mask)
    scale = torch.rsqrt(var * ((count - 1) / count) + eps)
    z = (x.abs() + mean.abs().view(shape)) * scale.view(shape)
    g = grad.abs()
    sums = (g * z).sum(dims), g.sum(dims)
    per = (scale * (1 if weight is None else weight.abs())).view(shape)
    x_grad = per * (g + sums[1].view(shape) / count + z * sums[0].view(shape) / count)
    return (x_grad if mask[0] else None), *(s if m else None for s, m in zip(sums, mask[1:], strict=True))


def terms(grad: Any, x: Any, *rest: Any) -> int:
    """Return the number of values of a channel."""
    return values(x)


def _with_grad(sample: Sample) -> Sample:
    """Put a gradient in front of a sample of batch_norm, and statistics behind its images."""
    x, *factors = sample.args
    each, centre = x.shape[1], 0.0 if x.low is None else (x.low + x.high) / 2
    # Statistics of float32 and of half types have this dtype.
    mean = rand(each, low=centre - 0.1, high=centre + 0.1, dtype=torch.float32)
    var = rand(each, low=0.5, high=2.0, dtype=torch.float32)
    grad = rand(*x.shape, layout=x.layout)
    return Sample(sample.name, (grad, x, mean, var, *factors[:1]), sample.kwargs, sample.tags)


THREE = tuple(rand(3, low=0.5, high=2.0, dtype=torch.float32) for _ in range(2))

SAMPLES = (
    Sample("stride_zero_grad", (rand(4, 3, 5, 4, layout="expanded"), rand(4, 3, 5, 4), *THREE)),
    Sample("gradient_of_a_sum", (rand(4, 3, 5, 4, layout="repeated"), rand(4, 3, 5, 4), *THREE, rand(3))),
    Sample("layouts_differ", (rand(2, 3, 5, 4, layout="channels_last"), rand(2, 3, 5, 4), *THREE)),
    Sample(
        "only_factors",
        (rand(4, 3, 4, 4), rand(4, 3, 4, 4), *THREE, rand(3)),
        {"output_mask": (False, True, True)},
    ),
    Sample(
        "only_images",
        (rand(4, 3, 4, 4), rand(4, 3, 4, 4), *THREE, rand(3)),
        {"output_mask": (True, False, False)},
    ),
)

ERRORS = (
    ErrorCase(
        "mean", (rand(2, 4, 4), rand(2, 4, 4), rand(3), rand(4)), match=r"mean must be \(4,\), got \(3,\)"
    ),
    ErrorCase(
        "var",
        (rand(2, 3, 4), rand(2, 3, 4), rand(3), rand(3, dtype=torch.float64)),
        match="var must be float32, got float64",
    ),
)

X, WEIGHT, _, EPS = FORWARD.params


def ways(grad: Any, x: Any, mean: Any, var: Any, weight: Any, eps: Any, mask: Any) -> tuple[Way, ...]:
    """Divide by channel."""
    factor = () if weight is None else (0,)
    dims = tuple(compress((1, *factor, *factor), mask))
    return (Way((1, 1, 0, 0, *factor), None, audits=True, results=dims),)


SPEC = backward_of(
    FORWARD,
    reference,
    params=(X, Param("mean", "tensor"), Param("var", "tensor"), WEIGHT, EPS),
    check=check,
    shape=lambda x, *_: tuple(x.shape),
    same_dtype=True,
    gradients=3,
    cost=cost,
    magnitude=magnitude,
    given=_with_grad,
    samples=SAMPLES,
    errors=ERRORS,
    terms=terms,
    outputs=outputs,
    ways=ways,
)
