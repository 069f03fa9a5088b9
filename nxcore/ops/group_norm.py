"""group_norm: groups of channels less their mean, by their deviation: Wu and He 2018, arXiv:1803.08494.

    y = (x - mean) * r * weight + bias;  r = 1 / sqrt(var + eps), mean and var over a group of an image

Semantics of ``torch.nn.functional.group_norm``. The gradient, ``group_norm_backward``, computes mean and r
again from x, which it reads in any case:

    z = (x - mean) * r;  h = grad * weight
    grad_x = r * (h - mean of h - z * mean of h * z)
    grad_weight = sum of grad * z, grad_bias = sum of grad, over all but channels
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.batch_norm import laid_out, like
from nxcore.ops.layer_norm import cost, scales, widened
from nxcore.ops.rms_norm import require_factor, require_number
from nxcore.plugin import (
    DEGENERATE,
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
    brief,
    rand,
    require_tensor,
)


def reference(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Return groups of channels less their mean, divided by their deviation, in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Shape (N, C, ...), floating, any strides.
    num_groups : int
        A divisor of C.
    weight, bias : Tensor, optional
        Shape (C,), floating; either may be given alone.
    eps : float, default 1e-5
        Added to the variance.

    Returns
    -------
    Tensor
        Shape, dtype and layout of ``x``.

    Raises
    ------
    InvalidInputError
        If ``num_groups`` doesn't divide C, or a factor has another shape or device.

    Examples
    --------
    >>> nxcore.ops.group_norm(torch.tensor([[1.0, 3.0, 7.0, 5.0]]), 2, eps=0.0)
    tensor([[-1.,  1.,  1., -1.]])
    """
    if {t.dtype for t in (weight, bias) if t is not None} <= {x.dtype}:
        return laid_out(torch.group_norm(x, num_groups, weight, bias, eps), x)
    wide, (w, b) = widened(x, weight, bias)
    return laid_out(torch.group_norm(x.to(wide), num_groups, w, b, eps).to(x.dtype), x)


def check(x: Any, num_groups: Any, weight: Any, bias: Any, eps: Any) -> None:
    """Raise unless channels divide into the groups, and factors fit."""
    require_tensor(x, "x")
    if x.ndim < 2:
        raise InvalidInputError(f"x must be (N, C, ...), got {tuple(x.shape)}", argument="x")
    channels = x.shape[1]
    if (
        isinstance(num_groups, bool)
        or not isinstance(num_groups, int)
        or num_groups < 1
        or channels % num_groups
    ):
        why = f"num_groups must be a divisor of {channels}, got {brief(num_groups)}"
        raise InvalidInputError(why, argument="num_groups")
    if x.shape[0] * channels // num_groups * math.prod(x.shape[2:]) == 1:
        why = f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}"
        raise InvalidInputError(why, argument="x")
    require_factor(weight, x, (channels,), "weight")
    require_factor(bias, x, (channels,), "bias")
    require_number(eps, "eps")


def outputs(x: Any, *rest: Any) -> TensorMeta | None:
    """Describe the result, which lies as ``x`` does; None where there is nothing."""
    return like(x) if x.numel() else None


def ways(x: Any, num_groups: Any, weight: Any, bias: Any, eps: Any) -> tuple[Way, ...]:
    """Divide by image."""
    return (Way((0, *(None for t in (weight, bias) if t is not None)), 0, audits=True),)


def by_channel(x: Tensor, factor: Tensor) -> Tensor:
    """Return a factor's absolute values as they are multiplied with x."""
    return factor.abs().view(1, -1, *(1 for _ in range(x.ndim - 2)))


def spread(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """Return distances from the mean with positive terms, and one over the deviation, of each element."""
    rows = x.reshape(x.shape[0] * groups, x.shape[1] // groups * math.prod(x.shape[2:]))
    distance, r = scales(rows, (rows.shape[1],), eps)
    return distance.view(x.shape), r.expand_as(rows).reshape(x.shape)


def magnitude(x: Tensor, num_groups: Any, weight: Any, bias: Any, eps: Any) -> Tensor:
    """Return the result with positive terms: an error grows with what the mean is taken of."""
    distance, r = spread(x, num_groups, eps)
    found = distance * r if weight is None else distance * r * by_channel(x, weight)
    return found if bias is None else found + by_channel(x, bias)


def terms(x: Any, num_groups: Any, *rest: Any) -> int:
    """Return the number of entries of a group, or of a channel of all images, which is larger."""
    images, channels = x.shape[:2]
    pixels = math.prod(x.shape[2:])
    return int(max(channels // num_groups, images) * pixels)


def _backward(grad: Any, mask: tuple[bool, ...], *args: Any) -> Any:
    return grad, *args, (*mask, False, False)[:3]


SMOKE, BENCH = frozenset({"smoke"}), frozenset({"bench"})
WIDE = torch.float32

SAMPLES = (
    Sample("last_block_partly_filled", (rand(3, 6, 7, 5), 2, rand(6), rand(6)), tags=SMOKE),
    Sample("whole_vectors", (rand(4, 16, 8, 8), 4, rand(16), rand(16)), tags=SMOKE),
    Sample("no_factors", (rand(2, 4, 129), 2), tags=SMOKE),
    Sample("weight_alone", (rand(3, 6, 10), 3, rand(6))),
    Sample("bias_alone", (rand(3, 6, 10), 3, None, rand(6))),
    Sample("groups_of_three", (rand(1, 48, 4, 4), 16, rand(48), rand(48))),
    Sample("one_group", (rand(3, 6, 10), 1, rand(6), rand(6))),
    Sample("a_group_a_channel", (rand(3, 6, 10), 6, rand(6), rand(6))),
    Sample("longer_than_a_block", (rand(2, 4, 4250), 1, rand(4), rand(4))),
    Sample("longer_than_a_program", (rand(2, 2, 16500), 1, rand(2), rand(2))),
    Sample("no_image_dimensions", (rand(5, 12), 3, rand(12), rand(12))),
    Sample("wide_factors", (rand(3, 6, 10), 3, rand(6, dtype=WIDE), rand(6, dtype=WIDE))),
    Sample("mean_far_from_0", (rand(2, 4, 96, low=1e4, high=1e4 + 40), 2, rand(4), rand(4))),
    Sample("large_values", (rand(2, 4, 20, low=-200, high=200), 2, rand(4), rand(4))),
    Sample("large_eps", (rand(3, 6, 10), 3, rand(6), rand(6), 3.0)),
    Sample("many_images", (rand(300, 4, 2), 2, rand(4), rand(4))),
    Sample("nan", (rand(6, 4, 10, values="lone_nan"), 2, rand(4), rand(4))),
    Sample("infinite", (rand(3, 4, 3, values="inf"), 4, rand(4), rand(4))),
    Sample("one_entry", (rand(5, 2), 2, rand(2), rand(2), 1.0)),
    Sample("no_images", (rand(0, 4, 3), 2, rand(4), rand(4)), tags=DEGENERATE),
    Sample("channels_last", (rand(2, 8, 3, 5, layout="channels_last"), 4, rand(8), rand(8))),
    Sample("transposed", (rand(2, 4, 6, layout="transposed"), 2, rand(4), rand(4))),
    Sample("expanded", (rand(3, 4, 6, layout="expanded"), 2, rand(4), rand(4))),
    Sample("odd_storage_offset", (rand(2, 4, 16, layout="sliced"), 2, rand(4), rand(4))),
    Sample("gaps_in_memory", (rand(2, 4, 6, layout="strided"), 2, rand(4, layout="strided"), rand(4))),
    Sample("diffusion", (rand(4, 320, 64, 64), 32, rand(320), rand(320)), tags=BENCH),
    Sample("detection", (rand(2, 256, 50, 68), 32, rand(256), rand(256)), tags=BENCH),
)

ERRORS = (
    ErrorCase("not_a_tensor", (3.5, 1), "x must be a tensor, got float"),
    ErrorCase("rank", (rand(3), 1), r"x must be \(N, C, ...\), got \(3,\)"),
    ErrorCase("groups", (rand(3, 4, 2), 3), "num_groups must be a divisor of 4, got 3"),
    ErrorCase("no_groups", (rand(3, 4, 2), 0), "num_groups must be a divisor of 4, got 0"),
    ErrorCase("one_value", (rand(1, 2), 2), "Expected more than 1 value per channel when training"),
    ErrorCase("weight", (rand(3, 4, 2), 2, rand(3)), r"weight must be \(4,\) on cpu, got \(3,\)"),
    ErrorCase("bias", (rand(3, 4, 2), 2, None, rand(3)), r"bias must be \(4,\) on cpu, got \(3,\)"),
    ErrorCase("eps", (rand(3, 4, 2), 2, None, None, None), "eps must be a number, got None"),
)

SPEC = OpSpec(
    name="group_norm",
    params=(
        Param("x", "tensor"),
        Param("num_groups", "static"),
        Param("weight", "tensor", None),
        Param("bias", "tensor", None),
        Param("eps", "static", 1e-5),
    ),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
    gradient=Gradient("group_norm_backward", _backward, saves=("x", "weight", "bias")),
    outputs=outputs,
    ways=ways,
)

Result = tuple[Tensor | None, Tensor | None, Tensor | None]


def gradient(
    grad: Tensor,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    output_mask: tuple[bool, ...] = (True, True, True),
) -> Result:
    """Return the gradients of ``group_norm``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the result, of its shape and dtype.
    x, num_groups, weight, bias, eps
        As in ``group_norm``.
    output_mask : tuple of bool
        Which gradients to compute: of ``x``, ``weight`` and ``bias``; without one of these, that is None.

    Returns
    -------
    x_grad, weight_grad, bias_grad : Tensor
        Shapes and dtypes of ``x``, ``weight`` and ``bias``; that of ``x`` lies as ``x`` does.

    Raises
    ------
    InvalidInputError
        As ``group_norm``; or if ``grad`` isn't of the shape, dtype and device of ``x``.

    Examples
    --------
    >>> x = torch.tensor([[1.0, 3.0, 7.0, 5.0]])
    >>> nxcore.ops.group_norm_backward(x, x, 2, torch.ones(4), None, 0.0)[1]
    tensor([-1.,  3.,  7., -5.])
    """
    given = (x, weight, bias)
    wanted = [flag and t is not None for flag, t in zip(output_mask, given, strict=True)]
    wide, (w, _) = widened(x, weight, bias)
    rows, g = x.to(wide).contiguous(), grad.to(wide).contiguous()
    if w is None and wanted[2]:  # torch needs one for a bias
        w = rows.new_ones(x.shape[1])
    w = w if w is None else w.contiguous()  # torch's kernel reads it as if it were
    sizes = (x.shape[0], x.shape[1], math.prod(x.shape[2:]), num_groups)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (grad, *given)):
        found = _differentiable(g, rows, w, sizes, eps, wanted)
    else:
        _, mean, r = torch.native_group_norm(rows, None, None, *sizes, eps)
        found = torch.ops.aten.native_group_norm_backward(g, rows, mean, r, w, *sizes, wanted)
    for_x, for_weight, for_bias = (
        one.to(t.dtype) if flag and t is not None and one is not None else None
        for one, flag, t in zip(found, wanted, given, strict=True)
    )
    return None if for_x is None else laid_out(for_x, x), for_weight, for_bias


def _differentiable(
    g: Tensor, x: Tensor, w: Tensor | None, sizes: tuple[int, int, int, int], eps: float, wanted: list[bool]
) -> list[Tensor | None]:
    """Return the gradients as a graph of their own: the kernel that torch has for them has no derivative."""
    x = x if x.requires_grad else x.detach().requires_grad_()
    w = w if w is None or w.requires_grad else w.detach().requires_grad_()
    asked = [t for t, flag in zip((x, w), wanted, strict=False) if flag and t is not None]
    y = torch.native_group_norm(x, w, None, *sizes, eps)[0]
    found = iter(torch.autograd.grad(y, asked, g, create_graph=True) if asked else ())
    summed = g.sum([d for d in range(g.ndim) if d != 1]) if wanted[2] else None
    return [*(next(found) if flag else None for flag in wanted[:2]), summed]


def gradient_cost(grad: Any, x: Any, groups: Any, weight: Any, bias: Any, eps: Any, output_mask: Any) -> Cost:
    """Count grad and x read once, the gradients written once."""
    factors = sum(2 * t.nbytes for t in (weight, bias) if t is not None)
    return Cost(bytes=grad.nbytes + x.nbytes * (1 + output_mask[0]) + factors, flops=14 * x.numel())


def gradient_magnitude(
    grad: Tensor, x: Tensor, num_groups: Any, weight: Any, bias: Any, eps: Any, output_mask: Any
) -> Result:
    """Return the gradients with positive terms."""
    distance, r = spread(x, num_groups, eps)
    g, z = grad.abs(), distance * r
    h = g if weight is None else g * by_channel(x, weight)
    rows = (x.shape[0] * num_groups, x.shape[1] // num_groups * math.prod(x.shape[2:]))
    means = [t.reshape(rows).mean(1, keepdim=True).expand(rows) for t in (h, h * z)]
    kept = [d for d in range(x.ndim) if d != 1]
    for_x, for_weight, for_bias = output_mask
    return (
        r * (h + means[0].reshape(x.shape) + z * means[1].reshape(x.shape)) if for_x else None,
        (g * z).sum(kept) if for_weight and weight is not None else None,
        g.sum(kept) if for_bias and bias is not None else None,
    )


def gradient_outputs(
    grad: Any, x: Any, num_groups: Any, weight: Any, bias: Any, eps: Any, output_mask: Any
) -> tuple[TensorMeta | None, ...] | None:
    """Describe the gradients; None where there is nothing."""
    if not x.numel():
        return None
    made = [
        TensorMeta.row_major((x.shape[1],), t.dtype, x.device) if flag and t is not None else None
        for flag, t in zip(output_mask[1:], (weight, bias), strict=True)
    ]
    return (like(x) if output_mask[0] else None, *made)


def gradient_ways(
    grad: Any, x: Any, num_groups: Any, weight: Any, bias: Any, eps: Any, output_mask: Any
) -> tuple[Way, ...]:
    """Divide by image; the factors' gradients are sums of those of the parts."""
    given = (x, weight, bias)
    wanted = [t for flag, t in zip(output_mask, given, strict=True) if flag and t is not None]
    (way,) = ways(x, num_groups, weight, bias, eps)
    results = tuple(0 if t is x else None for t in wanted)
    return (Way((0, *way.tensors), None, audits=True, results=results),)


IMAGE = (rand(3, 6, 10), rand(3, 6, 10), 3, rand(6), rand(6))

BACKWARD = backward_of(
    SPEC,
    gradient,
    shape=lambda x, *rest: tuple(x.shape),
    same_dtype=True,
    gradients=3,
    cost=gradient_cost,
    magnitude=gradient_magnitude,
    samples=(
        Sample("stride_zero_grad", (rand(3, 6, 10, layout="expanded"), *IMAGE[1:])),
        Sample("only_x", IMAGE, {"output_mask": (True, False, False)}),
        Sample("only_weight", IMAGE, {"output_mask": (False, True, False)}),
        Sample("only_bias", IMAGE, {"output_mask": (False, False, True)}),
    ),
    outputs=gradient_outputs,
    ways=gradient_ways,
)
