"""layer_norm: rows less their mean, divided by their deviation: Ba, Kiros and Hinton 2016, arXiv:1607.06450.

    y = (x - mean) * r * weight + bias;  r = 1 / sqrt(var + eps), mean and var over the last dimensions

Semantics of ``torch.nn.functional.layer_norm``. The gradient, ``layer_norm_backward``, computes mean and r
again from x, which it reads in any case:

    z = (x - mean) * r;  h = grad * weight
    grad_x = r * (h - mean of h - z * mean of h * z)
    grad_weight = sum over rows of grad * z;  grad_bias = sum over rows of grad
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.ops.batch_norm import accumulator
from nxcore.ops.rms_norm import dims, outputs, require_factor, require_number, require_rows
from nxcore.ops.rms_norm import terms as row_terms
from nxcore.plugin import (
    DEGENERATE,
    Cost,
    ErrorCase,
    Gradient,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    Way,
    backward_of,
    rand,
)


def reference(
    x: Tensor,
    normalized_shape: tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return rows less their mean, divided by their deviation, accumulating in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Shape (..., *normalized_shape), floating, any strides.
    normalized_shape : tuple of int
        The last dimensions of ``x``, at least one: a row.
    weight, bias : Tensor, optional
        Shape ``normalized_shape``, floating; either may be given alone.
    eps : float, default 1e-5
        Added to the variance.

    Returns
    -------
    Tensor
        Shape and dtype of ``x``, row-major.

    Raises
    ------
    InvalidInputError
        If ``x`` doesn't end with ``normalized_shape``, or a factor has another shape or device.

    Examples
    --------
    >>> nxcore.ops.layer_norm(torch.tensor([[1.0, 3.0]]), (2,), eps=0.0)
    tensor([[-1.,  1.]])
    """
    size = list(normalized_shape)
    if {t.dtype for t in (weight, bias) if t is not None} <= {x.dtype}:
        return functional.layer_norm(x, size, weight, bias, eps).contiguous()
    wide, (w, b) = widened(x, weight, bias)
    return functional.layer_norm(x.to(wide), size, w, b, eps).to(x.dtype).contiguous()


def widened(x: Tensor, *factors: Tensor | None) -> tuple[torch.dtype, list[Tensor | None]]:
    """Return the dtype of a computation, and the factors in it."""
    wide = accumulator(x)
    for factor in factors:
        wide = wide if factor is None else torch.promote_types(wide, factor.dtype)
    return wide, [None if factor is None else factor.to(wide) for factor in factors]


def check(x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any) -> None:
    """Raise unless rows and factors fit."""
    require_rows(x, normalized_shape)
    require_factor(weight, x, normalized_shape, "weight")
    require_factor(bias, x, normalized_shape, "bias")
    require_number(eps, "eps")


def ways(x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any) -> tuple[Way, ...]:
    """Divide by row."""
    whole = tuple(None for t in (weight, bias) if t is not None)
    return tuple(Way((d, *whole), d, audits=True) for d in range(x.ndim - len(normalized_shape)))


def cost(x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any) -> Cost:
    """Count x and the factors read once, the result written once."""
    factors = sum(t.nbytes for t in (weight, bias) if t is not None)
    return Cost(bytes=2 * x.nbytes + factors, flops=7 * x.numel())


def scales(x: Tensor, size: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """Return distances from the mean with positive terms, and one over the deviation of each row."""
    over = dims(size)
    spread = (x - x.mean(over, keepdim=True)).square().mean(over, keepdim=True)  # var warns of empty rows
    return x.abs() + x.abs().mean(over, keepdim=True), torch.rsqrt(spread + eps)


def magnitude(x: Tensor, normalized_shape: Any, weight: Any, bias: Any, eps: Any) -> Tensor:
    """Return the result with positive terms: an error grows with what the mean is taken of."""
    distance, r = scales(x, normalized_shape, eps)
    found = distance * r if weight is None else distance * r * weight.abs()
    return found if bias is None else found + bias.abs()


def _backward(grad: Any, mask: tuple[bool, ...], x: Any, size: Any, weight: Any, bias: Any, eps: Any) -> Any:
    return grad, x, size, weight, bias, eps, (*mask, False, False)[:3]


SMOKE, BENCH = frozenset({"smoke"}), frozenset({"bench"})
WIDE = torch.float32

SAMPLES = (
    Sample("last_block_partly_filled", (rand(3, 7, 37), (37,), rand(37), rand(37)), tags=SMOKE),
    Sample("whole_vectors", (rand(21, 64), (64,), rand(64), rand(64)), tags=SMOKE),
    Sample("no_factors", (rand(5, 1031), (1031,)), tags=SMOKE),
    Sample("weight_alone", (rand(5, 40), (40,), rand(40))),
    Sample("bias_alone", (rand(5, 40), (40,), None, rand(40))),
    Sample("longer_than_a_block", (rand(2, 17000), (17000,), rand(17000), rand(17000))),
    Sample("longer_than_a_program", (rand(2, 33000), (33000,), rand(33000), rand(33000))),
    Sample("two_dimensions", (rand(4, 3, 8), (3, 8), rand(3, 8), rand(3, 8))),
    Sample("wide_factors", (rand(4, 40), (40,), rand(40, dtype=WIDE), rand(40, dtype=WIDE))),
    Sample("mean_far_from_0", (rand(6, 96, low=1e4, high=1e4 + 40), (96,), rand(96), rand(96))),
    Sample("large_values", (rand(4, 40, low=-200, high=200), (40,), rand(40), rand(40))),
    Sample("large_eps", (rand(4, 40), (40,), rand(40), rand(40), 3.0)),
    Sample("many_rows", (rand(700, 8), (8,), rand(8), rand(8))),
    Sample("nan", (rand(6, 20, values="lone_nan"), (20,), rand(20), rand(20))),
    Sample("infinite", (rand(12, 3, values="inf"), (3,), rand(3), rand(3))),
    Sample("one_row", (rand(8), (8,), rand(8), rand(8))),
    Sample("one_entry", (rand(5, 1), (1,), rand(1), rand(1), 1.0), tags=DEGENERATE),
    Sample("no_rows", (rand(0, 4), (4,), rand(4), rand(4)), tags=DEGENERATE),
    Sample("transposed", (rand(33, 6, layout="transposed"), (6,), rand(6), rand(6))),
    Sample("channels_last", (rand(2, 8, 3, 5, layout="channels_last"), (5,), rand(5), rand(5))),
    Sample(
        "odd_storage_offset",
        (rand(5, 16, layout="sliced"), (16,), rand(16, layout="sliced"), rand(16, layout="sliced")),
    ),
    Sample("gaps_in_memory", (rand(4, 6, layout="strided"), (6,), rand(6, layout="strided"), rand(6))),
    Sample("expanded", (rand(4, 8, layout="expanded"), (8,), rand(8), rand(8))),
    Sample("transformer", (rand(512, 4096), (4096,), rand(4096), rand(4096)), tags=BENCH),
    Sample("long_rows", (rand(2048, 8192), (8192,), rand(8192), rand(8192)), tags=BENCH),
)

ERRORS = (
    ErrorCase("not_a_tensor", (3.5, (1,)), "x must be a tensor, got float"),
    ErrorCase("integers", (rand(3, dtype=torch.int64), (3,)), "x must have a floating dtype"),
    ErrorCase("other_rows", (rand(3, 4), (3,)), r"the last dimensions of x, \(3, 4\), got \(3,\)"),
    ErrorCase("weight", (rand(3, 4), (4,), rand(3)), r"weight must be \(4,\) on cpu, got \(3,\)"),
    ErrorCase("bias", (rand(3, 4), (4,), None, rand(1, 4)), r"bias must be \(4,\) on cpu, got \(1, 4\)"),
    ErrorCase("eps", (rand(3, 4), (4,), None, None, None), "eps must be a number, got None"),
)

SPEC = OpSpec(
    name="layer_norm",
    params=(
        Param("x", "tensor"),
        Param("normalized_shape", "size"),
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
    terms=row_terms,
    gradient=Gradient("layer_norm_backward", _backward, saves=("x", "weight", "bias")),
    outputs=outputs,
    ways=ways,
)

Result = tuple[Tensor | None, Tensor | None, Tensor | None]


def gradient(
    grad: Tensor,
    x: Tensor,
    normalized_shape: tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    output_mask: tuple[bool, ...] = (True, True, True),
) -> Result:
    """Return the gradients of ``layer_norm``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the result, of its shape and dtype.
    x, normalized_shape, weight, bias, eps
        As in ``layer_norm``.
    output_mask : tuple of bool
        Which gradients to compute: of ``x``, ``weight`` and ``bias``; without one of these, that is None.

    Returns
    -------
    x_grad, weight_grad, bias_grad : Tensor
        Shapes and dtypes of ``x``, ``weight`` and ``bias``, row-major.

    Raises
    ------
    InvalidInputError
        As ``layer_norm``; or if ``grad`` isn't of the shape, dtype and device of ``x``.

    Examples
    --------
    >>> x = torch.tensor([[1.0, 3.0]])
    >>> nxcore.ops.layer_norm_backward(x, x, (2,), torch.ones(2), torch.ones(2), 0.0)[1:]
    (tensor([-1.,  3.]), tensor([1., 3.]))
    """
    size, given = list(normalized_shape), (x, weight, bias)
    wanted = [flag and t is not None for flag, t in zip(output_mask, given, strict=True)]
    wide, factors = x.dtype, [weight, bias]
    if not x.is_cuda or len({t.dtype for t in (grad, *given) if t is not None}) > 1:
        # On a CPU torch keeps the statistics of half types in these.
        wide, factors = widened(x, weight, bias)
    rows = x.to(wide).contiguous()
    _, mean, r = torch.native_layer_norm(rows, size, None, None, eps)
    backward = torch.ops.aten.native_layer_norm_backward
    found = backward(grad.to(wide).contiguous(), rows, size, mean, r, *factors, wanted)
    for_x, for_weight, for_bias = (
        one.to(t.dtype).contiguous() if flag and t is not None else None
        for one, flag, t in zip(found, wanted, given, strict=True)
    )
    return for_x, for_weight, for_bias


def gradient_cost(grad: Any, x: Any, size: Any, weight: Any, bias: Any, eps: Any, output_mask: Any) -> Cost:
    """Count grad and x read once, the gradients written once."""
    factors = 0 if weight is None else weight.nbytes * (1 + output_mask[1])
    factors += 0 if bias is None else bias.nbytes * output_mask[2]
    return Cost(bytes=grad.nbytes + x.nbytes * (1 + output_mask[0]) + factors, flops=14 * x.numel())


def gradient_magnitude(
    grad: Tensor, x: Tensor, normalized_shape: Any, weight: Any, bias: Any, eps: Any, output_mask: Any
) -> Result:
    """Return the gradients with positive terms."""
    distance, r = scales(x, normalized_shape, eps)
    g, z, over = grad.abs(), distance * r, dims(normalized_shape)
    h = g if weight is None else g * weight.abs()
    for_x, for_weight, for_bias = output_mask
    return (
        r * (h + h.mean(over, keepdim=True) + z * (h * z).mean(over, keepdim=True)) if for_x else None,
        (g * z).sum_to_size(normalized_shape) if for_weight and weight is not None else None,
        g.sum_to_size(normalized_shape) if for_bias and bias is not None else None,
    )


def gradient_outputs(
    grad: Any, x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any, output_mask: Any
) -> tuple[TensorMeta | None, ...] | None:
    """Describe the gradients; None where there is nothing."""
    if not x.numel():
        return None
    made = [
        TensorMeta.row_major(tuple(normalized_shape), t.dtype, x.device) if flag and t is not None else None
        for flag, t in zip(output_mask[1:], (weight, bias), strict=True)
    ]
    return (outputs(x) if output_mask[0] else None, *made)


def gradient_ways(
    grad: Any, x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any, output_mask: Any
) -> tuple[Way, ...]:
    """Divide by row; the factors' gradients are sums of those of the parts."""
    given = (x, weight, bias)
    wanted = [t for flag, t in zip(output_mask, given, strict=True) if flag and t is not None]
    return tuple(
        Way((dim, *way.tensors), None, audits=True, results=tuple(dim if t is x else None for t in wanted))
        for dim, way in enumerate(ways(x, normalized_shape, weight, bias, eps))
    )


ROW = (rand(6, 24), rand(6, 24), (24,), rand(24), rand(24))

BACKWARD = backward_of(
    SPEC,
    gradient,
    shape=lambda x, *rest: tuple(x.shape),
    same_dtype=True,
    gradients=3,
    cost=gradient_cost,
    magnitude=gradient_magnitude,
    samples=(
        Sample("stride_zero_grad", (rand(6, 24, layout="expanded"), *ROW[1:])),
        Sample("only_x", ROW, {"output_mask": (True, False, False)}),
        Sample("only_weight", ROW, {"output_mask": (False, True, False)}),
        Sample("only_bias", ROW, {"output_mask": (False, False, True)}),
    ),
    outputs=gradient_outputs,
    ways=gradient_ways,
)
