"""rms_norm: rows divided by the root of the mean of their squares: Zhang and Sennrich 2019, arXiv:1910.07467.

    y = x * r * weight;  r = 1 / sqrt(mean of x^2 + eps), the mean over the last dimensions

Semantics of ``torch.nn.functional.rms_norm``. The gradient, ``rms_norm_backward``, computes r again from x,
which it reads in any case:

    grad_x = r * (h - x * r^2 * mean of h * x),  h = grad * weight
    grad_weight = sum over rows of grad * x * r
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.ops.batch_norm import accumulator
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
    require_size,
    require_tensor,
)


def reference(
    x: Tensor, normalized_shape: tuple[int, ...], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Return rows divided by the root of the mean of their squares, accumulating in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Shape (..., *normalized_shape), floating, any strides.
    normalized_shape : tuple of int
        The last dimensions of ``x``, at least one: a row.
    weight : Tensor, optional
        Shape ``normalized_shape``, floating.
    eps : float, optional
        Added to the mean; by default the spacing of float32 or wider at 1, as in torch.

    Returns
    -------
    Tensor
        Shape and dtype of ``x``, row-major.

    Raises
    ------
    InvalidInputError
        If ``x`` doesn't end with ``normalized_shape``, or ``weight`` has another shape or device.

    Examples
    --------
    >>> nxcore.ops.rms_norm(torch.tensor([[3.0, -3.0]]), (2,))
    tensor([[ 1., -1.]])
    """
    size = list(normalized_shape)
    if x.dtype is torch.float64:  # by the formula: torch's CUDA kernel makes a row with an infinity NaN
        y = x * inverse(x, normalized_shape, spacing(x) or 0.0 if eps is None else eps)
        return (y if weight is None else y * weight).contiguous()
    if weight is None or weight.dtype == x.dtype:
        return functional.rms_norm(x, size, weight, eps).contiguous()
    wide = torch.promote_types(accumulator(x), weight.dtype)  # torch warns of other dtypes
    return functional.rms_norm(x.to(wide), size, weight.to(wide), eps).to(x.dtype).contiguous()


def spacing(x: Any) -> float | None:
    """Return the default of eps."""
    return SPACING.get(x.dtype) if isinstance(x, Tensor) else None


SPACING = dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.finfo(torch.float32).eps)
SPACING[torch.float64] = torch.finfo(torch.float64).eps
"""The default of eps by dtype: that of the computation. A table, since a trace would note a promotion."""


def check(x: Any, normalized_shape: Any, weight: Any, eps: Any) -> None:
    """Raise unless rows and factors fit."""
    require_rows(x, normalized_shape)
    require_factor(weight, x, normalized_shape, "weight")
    if eps is not None:  # as in a trace by torch.compile, which doesn't read the default
        require_number(eps, "eps")


def require_number(value: Any, name: str) -> None:
    """Raise unless a value is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= 2**63:
        raise InvalidInputError(f"{name} must be a number, got {brief(value)}", argument=name)


def ways(x: Any, normalized_shape: Any, weight: Any, eps: Any) -> tuple[Way, ...]:
    """Divide by row."""
    whole = () if weight is None else (None,)
    return tuple(Way((d, *whole), d, audits=True) for d in range(x.ndim - len(normalized_shape)))


def require_rows(x: Any, normalized_shape: Any) -> None:
    """Raise unless a tensor ends with the dimensions of a row."""
    require_tensor(x, "x")
    require_size(normalized_shape, "normalized_shape")
    size = tuple(normalized_shape)
    if not size or tuple(x.shape[-len(size) :]) != size or len(size) > x.ndim:
        wanted = f"the last dimensions of x, {tuple(x.shape)}"
        raise InvalidInputError(f"normalized_shape must be {wanted}, got {size}", argument="normalized_shape")


def require_factor(value: Any, x: Any, size: tuple[int, ...], name: str) -> None:
    """Raise unless a factor is None or has the shape of a row and the device of ``x``."""
    if value is None:
        return
    require_tensor(value, name)
    if tuple(value.shape) != tuple(size) or value.device != x.device:
        raise InvalidInputError(
            f"{name} must be {tuple(size)} on {x.device}, got {tuple(value.shape)} on {value.device}",
            argument=name,
        )


def outputs(x: Any, *rest: Any) -> TensorMeta | None:
    """Describe the result, which is row-major; None where there is nothing."""
    if not x.numel():
        return None  # strides of nothing are torch's own
    return TensorMeta.row_major(tuple(x.shape), x.dtype, x.device)


def inverse(x: Tensor, size: tuple[int, ...], eps: float) -> Tensor:
    """Return one over the root of the mean of squares of each row."""
    return torch.rsqrt(x.square().mean(dims(size), keepdim=True) + eps)


def dims(size: tuple[int, ...]) -> list[int]:
    """Return the dimensions of a row."""
    return list(range(-len(size), 0))


def cost(x: Any, normalized_shape: Any, weight: Any, eps: Any) -> Cost:
    """Count x and the weight read once, the result written once."""
    return Cost(bytes=2 * x.nbytes + (0 if weight is None else weight.nbytes), flops=4 * x.numel())


def magnitude(x: Tensor, normalized_shape: Any, weight: Any, eps: Any) -> Tensor:
    """Return the result of absolute values: nothing cancels."""
    found = x.abs() * inverse(x, normalized_shape, eps)
    return found if weight is None else found * weight.abs()


def terms(x: Any, normalized_shape: Any, *rest: Any) -> int:
    """Return the number of entries of a row, or of rows, which is larger."""
    length = math.prod(normalized_shape)
    return int(max(length, x.numel() // max(length, 1)))


def _backward(
    grad: Any, mask: tuple[bool, ...], x: Any, normalized_shape: Any, weight: Any, eps: Any
) -> tuple[Any, ...]:
    return grad, x, normalized_shape, weight, eps, (*mask, False)[:2]


SMOKE, BENCH = frozenset({"smoke"}), frozenset({"bench"})
WIDE = torch.float32

SAMPLES = (
    Sample("last_block_partly_filled", (rand(3, 7, 37), (37,), rand(37), 1e-6), tags=SMOKE),
    Sample("whole_vectors", (rand(21, 64), (64,), rand(64), 1e-6), tags=SMOKE),
    Sample("no_weight", (rand(5, 1031), (1031,), None, 1e-6), tags=SMOKE),
    Sample("longer_than_a_block", (rand(2, 17000), (17000,), rand(17000), 1e-6)),
    Sample("two_dimensions", (rand(4, 3, 8), (3, 8), rand(3, 8), 1e-5)),
    Sample("default_eps", (rand(4, 9, low=-1e-4, high=1e-4), (9,), rand(9))),
    Sample("wide_weight", (rand(4, 40), (40,), rand(40, dtype=WIDE), 1e-6)),
    Sample("large_values", (rand(4, 40, low=100, high=200), (40,), rand(40), 1e-6)),
    Sample("many_rows", (rand(700, 8), (8,), rand(8), 1e-6)),
    Sample("nan", (rand(6, 20, values="lone_nan"), (20,), rand(20), 1e-6)),
    Sample("infinite", (rand(6, 14, values="inf"), (14,), rand(14), 1e-6)),
    Sample("one_row", (rand(8), (8,), rand(8), 1e-6)),
    Sample("one_entry", (rand(5, 1), (1,), rand(1), 1.0)),
    Sample("no_rows", (rand(0, 4), (4,), rand(4), 1e-6), tags=DEGENERATE),
    Sample("transposed", (rand(33, 6, layout="transposed"), (6,), rand(6), 1e-6)),
    Sample("channels_last", (rand(2, 8, 3, 5, layout="channels_last"), (5,), rand(5), 1e-6)),
    Sample("odd_storage_offset", (rand(5, 16, layout="sliced"), (16,), rand(16, layout="sliced"), 1e-6)),
    Sample("gaps_in_memory", (rand(4, 6, layout="strided"), (6,), rand(6, layout="strided"), 1e-6)),
    Sample("expanded", (rand(4, 8, layout="expanded"), (8,), rand(8), 1e-6)),
    Sample("llama", (rand(2048, 4096), (4096,), rand(4096), 1e-6), tags=BENCH),
    Sample("long_rows", (rand(512, 8192), (8192,), rand(8192), 1e-6), tags=BENCH),
)

ERRORS = (
    ErrorCase("not_a_tensor", (3.5, (1,)), "x must be a tensor, got float"),
    ErrorCase("integers", (rand(3, dtype=torch.int64), (3,)), "x must have a floating dtype"),
    ErrorCase("other_rows", (rand(3, 4), (3,)), r"the last dimensions of x, \(3, 4\), got \(3,\)"),
    ErrorCase("no_rows_named", (rand(3), ()), r"normalized_shape must be the last dimensions of x"),
    ErrorCase("more_dimensions", (rand(3), (1, 3)), r"normalized_shape must be the last dimensions of x"),
    ErrorCase("weight", (rand(3, 4), (4,), rand(3)), r"weight must be \(4,\) on cpu, got \(3,\)"),
    ErrorCase("eps", (rand(3, 4), (4,), None, "small"), "eps must be a number, got 'small'"),
)

SPEC = OpSpec(
    name="rms_norm",
    params=(
        Param("x", "tensor"),
        Param("normalized_shape", "size"),
        Param("weight", "tensor", None),
        Param("eps", "static", None, read=spacing),
    ),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
    gradient=Gradient("rms_norm_backward", _backward, saves=("x", "weight")),
    outputs=outputs,
    ways=ways,
)

Result = tuple[Tensor | None, Tensor | None]


def gradient(
    grad: Tensor,
    x: Tensor,
    normalized_shape: tuple[int, ...],
    weight: Tensor | None = None,
    eps: float | None = None,
    output_mask: tuple[bool, ...] = (True, True),
) -> Result:
    """Return the gradients of ``rms_norm``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the result, of its shape and dtype.
    x, normalized_shape, weight, eps
        As in ``rms_norm``.
    output_mask : tuple of bool
        Which gradients to compute: of ``x`` and of ``weight``; without a ``weight``, that is None.

    Returns
    -------
    x_grad, weight_grad : Tensor
        Shapes and dtypes of ``x`` and ``weight``, row-major.

    Raises
    ------
    InvalidInputError
        As ``rms_norm``; or if ``grad`` isn't of the shape, dtype and device of ``x``.

    Examples
    --------
    >>> x = torch.tensor([[3.0, -3.0]])
    >>> nxcore.ops.rms_norm_backward(x, x, (2,), torch.ones(2))[1]
    tensor([3., 3.])
    """
    if eps is None:
        eps = spacing(x) or 0.0
    one_dtype = grad.dtype == x.dtype and (weight is None or weight.dtype == x.dtype)
    fused = x.is_cuda and x.dtype is not torch.float64 and not torch.is_grad_enabled()
    if fused and one_dtype and x.numel():
        return _fused(grad, x, normalized_shape, weight, eps, output_mask)
    wide = accumulator(x)
    if weight is not None:
        wide = torch.promote_types(wide, weight.dtype)
    z, g = x.to(wide), grad.to(wide)
    r = inverse(z, normalized_shape, eps)
    h = g if weight is None else g * weight.to(wide)
    for_x, for_weight = output_mask
    found = r * (h - z * (r * r * (h * z).mean(dims(normalized_shape), keepdim=True))) if for_x else None
    scaled = (g * z * r).sum_to_size(normalized_shape) if for_weight and weight is not None else None
    return (
        None if found is None else found.to(x.dtype).contiguous(),
        None if scaled is None or weight is None else scaled.to(weight.dtype),
    )


def _fused(
    grad: Tensor, x: Tensor, size: tuple[int, ...], weight: Tensor | None, eps: float, mask: tuple[bool, ...]
) -> Result:
    """Return the gradients by torch's kernel, which there is for CUDA, and has no derivative."""
    rows, wanted = x.contiguous(), (mask[0], mask[1] and weight is not None)
    r = torch.ops.aten._fused_rms_norm(rows, size, None, eps)[1]
    backward = torch.ops.aten._fused_rms_norm_backward
    found = backward(grad.contiguous(), rows, size, r, weight, wanted)
    for_x, for_weight = (one if flag else None for one, flag in zip(found, wanted, strict=True))
    return for_x, for_weight


def gradient_cost(grad: Any, x: Any, normalized_shape: Any, weight: Any, eps: Any, output_mask: Any) -> Cost:
    """Count grad and x read once, the gradients written once."""
    factors = 0 if weight is None else weight.nbytes * (1 + output_mask[1])
    return Cost(bytes=grad.nbytes + x.nbytes * (1 + output_mask[0]) + factors, flops=9 * x.numel())


def gradient_magnitude(
    grad: Tensor, x: Tensor, normalized_shape: Any, weight: Any, eps: Any, output_mask: Any
) -> Result:
    """Return the gradients with positive terms."""
    z, g, r = x.abs(), grad.abs(), inverse(x, normalized_shape, eps)
    h = g if weight is None else g * weight.abs()
    mean = (h * z).mean(dims(normalized_shape), keepdim=True)
    for_x, for_weight = output_mask
    return (
        r * (h + z * r * r * mean) if for_x else None,
        (g * z * r).sum_to_size(normalized_shape) if for_weight and weight is not None else None,
    )


def gradient_outputs(
    grad: Any, x: Any, normalized_shape: Any, weight: Any, eps: Any, output_mask: Any
) -> tuple[TensorMeta | None, ...] | None:
    """Describe the gradients; None where there is nothing."""
    if not x.numel():
        return None
    factor = output_mask[1] and weight is not None
    made = TensorMeta.row_major(tuple(normalized_shape), weight.dtype, x.device) if factor else None
    return outputs(x) if output_mask[0] else None, made


BACKWARD = backward_of(
    SPEC,
    gradient,
    shape=lambda x, *rest: tuple(x.shape),
    same_dtype=True,
    gradients=2,
    cost=gradient_cost,
    magnitude=gradient_magnitude,
    samples=(
        Sample("stride_zero_grad", (rand(6, 24, layout="expanded"), rand(6, 24), (24,), rand(24), 1e-6)),
        Sample("only_x", (rand(6, 24), rand(6, 24), (24,), rand(24), 1e-6), {"output_mask": (True, False)}),
        Sample(
            "only_weight", (rand(6, 24), rand(6, 24), (24,), rand(24), 1e-6), {"output_mask": (False, True)}
        ),
    ),
    outputs=gradient_outputs,
)
