"""softmax: the exponentials of each row, divided by their sum.

    y[i] = exp(x[i] - max x) / sum_j exp(x[j] - max x), for the rows along one axis

Semantics of ``torch.softmax``. The gradient needs the result alone, ``softmax_backward``:

    grad_x[i] = y[i] (grad[i] - sum_j grad[j] y[j])

The maximum and the sum in one pass: Milakov and Gimelshein 2018, arXiv:1805.02867.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.max import require_axis
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

SMOKE, BENCH = frozenset({"smoke"}), frozenset({"bench"})
HALF, SINGLE = torch.float16, torch.float32


RESULT = (-3.0, 0.5)
"""The range of results of the gradients' samples: a softmax's are among them, and a log_softmax's."""


def check(x: Any, dim: Any, dtype: Any, name: str = "x") -> None:
    """Raise unless there is one axis, and the dtype, where one is given, is floating."""
    require_tensor(x, name)
    require_axis(dim, x.ndim)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        came = dtype if isinstance(dtype, torch.dtype) else brief(dtype)
        raise InvalidInputError(f"dtype must be a floating dtype or None, got {came}", argument="dtype")


def along(x: Any, dim: int) -> int:
    """Return how many entries a row has; a tensor without dimensions is one."""
    return int(x.shape[dim]) if x.ndim else 1


def outputs(x: Any, dim: Any, dtype: Any) -> TensorMeta | None:
    """Describe the result, which is row-major; None where there is nothing."""
    if not x.numel():
        return None  # strides of nothing are torch's own
    return TensorMeta.row_major(tuple(x.shape), dtype or x.dtype, x.device)


def apart(x: Tensor, dim: int) -> Tensor:
    """Return how far below its row's largest each entry is; 0 where that is infinite or NaN."""
    if not x.numel():
        return x
    return (x.amax(dim, keepdim=True) - x).nan_to_num(nan=0.0, posinf=0.0)


def _samples() -> tuple[Sample, ...]:
    return (
        Sample("last_block_partly_filled", (rand(3, 7, 37), -1), tags=SMOKE),
        Sample("nan", (rand(6, 20, values="lone_nan"), 1), tags=SMOKE),
        Sample("longer_than_a_warp", (rand(3, 1031), 1), tags=SMOKE),
        Sample("whole_vectors", (rand(5, 64), 1), tags=SMOKE),
        Sample("middle_axis", (rand(3, 9, 5), 1)),
        Sample("first_axis", (rand(7, 6), 0)),
        Sample("exp_overflow", (rand(9, 16, low=900, high=905), 1)),
        Sample("infinite", (rand(6, 14, values="inf"), 1)),
        Sample("equal", (rand(3, 24, values="zeros"), 1), tags=DEGENERATE),
        Sample("longer_than_a_block", (rand(2, 17000), 1)),
        Sample("wide_result", (rand(4, 40, dtype=HALF), -1), {"dtype": SINGLE}),
        Sample("rounded_first", (rand(4, 9, dtype=SINGLE), -1), {"dtype": HALF}),
        Sample("one_row", (rand(8), 0)),
        Sample("one_entry", (rand(5, 1), 1), tags=DEGENERATE),
        Sample("zero_dimensions", (rand(), 0), tags=DEGENERATE),
        Sample("no_rows", (rand(0, 4), 1), tags=DEGENERATE),
        Sample("no_entries", (rand(3, 0), 1), tags=DEGENERATE),
        Sample("transposed", (rand(33, 6, layout="transposed"), 1)),
        Sample("odd_storage_offset", (rand(5, 16, layout="sliced"), 1)),
        Sample("gaps_in_memory", (rand(4, 6, layout="strided"), 1)),
        Sample("channels_last", (rand(2, 6, 3, 5, layout="channels_last"), 1)),
        Sample("expanded", (rand(4, 8, layout="expanded"), 1)),
        Sample("attention", (rand(16, 12, 128, 128), -1), tags=BENCH),
        Sample("long_rows", (rand(512, 4096), -1), tags=BENCH),
        Sample("vocabulary", (rand(64, 32000), -1), tags=BENCH),
    )


ERRORS = (
    ErrorCase("not_a_tensor", (3.5, 0), "x must be a tensor, got float"),
    ErrorCase("integers", (rand(3, dtype=torch.int64), 0), "x must have a floating dtype"),
    ErrorCase("no_axis", (rand(3), None), "dim must be an integer, got None"),
    ErrorCase("axis_too_large", (rand(3, 4), 2), r"dim must be in \[-2, 1\]"),
    ErrorCase("axes", (rand(3, 4), (0, 1)), "dim must be an integer, got"),
    ErrorCase("integral_dtype", (rand(3), 0), "dtype must be a floating dtype", {"dtype": torch.int32}),
    ErrorCase("no_dtype", (rand(3), 0), "dtype must be a floating dtype", {"dtype": "half"}),
)


def _backward(grad: Any, mask: tuple[bool, ...], x: Any, dim: Any, dtype: Any, y: Any) -> tuple[Any, ...]:
    return grad, y, dim, x.dtype


def spec_of(
    name: str, reference: Callable[..., Tensor], magnitude: Callable[..., Tensor], flops: int
) -> OpSpec:
    """Return the spec of an operator on the rows along one axis."""
    return OpSpec(
        name=name,
        params=(Param("x", "tensor"), Param("dim", "static"), Param("dtype", "static", None, keyword=True)),
        reference=reference,
        check=check,
        holds="alike",
        cost=lambda x, dim, dtype: Cost(
            bytes=x.nbytes + x.numel() * (dtype or x.dtype).itemsize, flops=flops * x.numel()
        ),
        samples=_samples(),
        errors=ERRORS,
        magnitude=magnitude,
        terms=lambda x, dim, dtype: along(x, dim),
        gradient=Gradient(f"{name}_backward", _backward, result=True),
        ways=lambda x, dim, dtype: ways(x, dim, 1),
        outputs=outputs,
    )


def ways(x: Any, dim: int, tensors: int) -> tuple[Way, ...]:
    """Return one way for each axis but that of the rows."""
    kept = (d for d in range(x.ndim) if d != dim % x.ndim)
    return tuple(Way((d,) * tensors, d, audits=True) for d in kept)


def _of_result(sample: Sample) -> Sample:
    """Return a sample of the gradient: a gradient and a result, of one dtype."""
    x, dim = sample.args
    dtype = sample.kwargs.get("dtype")
    grad = rand(*x.shape, layout=x.layout, dtype=dtype)
    low, high = RESULT
    y = rand(*x.shape, layout=x.layout, values=x.values, dtype=dtype, low=low, high=high)
    return Sample(sample.name, (grad, y, dim), {"dtype": x.dtype} if dtype else {}, sample.tags)


def backward_spec_of(
    spec: OpSpec, gradient: Callable[..., Tensor], magnitude: Callable[..., Tensor], flops: int
) -> OpSpec:
    """Return the spec of the gradient, which takes the result in place of ``x``."""
    return backward_of(
        spec,
        gradient,
        params=(Param("y", "tensor"), spec.params[1], spec.params[2]),
        check=lambda y, dim, dtype: check(y, dim, dtype, "y"),
        shape=lambda y, dim, dtype: tuple(y.shape),
        same_dtype=True,
        cost=lambda grad, y, dim, dtype: Cost(
            bytes=2 * y.nbytes + y.numel() * (dtype or y.dtype).itemsize, flops=flops * y.numel()
        ),
        magnitude=magnitude,
        given=_of_result,
        samples=(
            Sample("stride_zero_grad", (rand(6, 24, layout="expanded"), rand(6, 24), 1)),
            Sample("gradient_of_a_sum", (rand(6, 24, layout="repeated"), rand(6, 24), 1)),
            Sample("layouts_differ", (rand(6, 24, layout="transposed"), rand(6, 24), 1)),
        ),
        errors=(
            ErrorCase("axis", (rand(3), rand(3), 1), match=r"dim must be in \[-1, 0\]"),
            ErrorCase("flag", (rand(3), rand(3), True), match="dim must be an integer, got True"),
        ),
        terms=lambda grad, y, dim, dtype: along(y, dim),
        ways=lambda grad, y, dim, dtype: ways(y, dim, 2),
        outputs=lambda grad, y, dim, dtype: outputs(y, dim, dtype),
    )


def reference(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return the softmax along ``dim``, accumulating in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Any shape and strides, floating.
    dim : int
        The axis of the rows, each of which adds up to 1.
    dtype : torch.dtype, optional
        That of the result, floating; ``x`` is converted to it first.

    Returns
    -------
    Tensor
        Shape of ``x``, row-major. A row with NaN or plus infinity is NaN, and one of minus infinities alone.

    Raises
    ------
    InvalidInputError
        If ``dim`` isn't an axis of ``x``, or a dtype isn't floating.

    Examples
    --------
    >>> nxcore.ops.softmax(torch.zeros(2, 4), 1)
    tensor([[0.2500, 0.2500, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.2500, 0.2500]])
    """
    return rounded(torch.softmax, x, dim, dtype)


def rounded(function: Any, x: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    """Return torch's result; of float64, which may stand for another dtype, rounded at the end alone."""
    if x.dtype is not torch.float64 or dtype in (None, torch.float64):
        return function(x, dim, dtype=dtype)  # type: ignore[no-any-return]
    return function(x.to(dtype).to(x.dtype), dim).to(dtype)  # type: ignore[no-any-return]


def magnitude(x: Tensor, dim: int, dtype: Any) -> Tensor:
    """Return the softmax, each entry times its sensitivity to the rounding of distances."""
    p, d = torch.softmax(x, dim), apart(x, dim)
    return p * (1 + d + (p * d).sum(dim, keepdim=True))


SPEC = spec_of("softmax", reference, magnitude, flops=5)


def gradient(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return the gradient of ``softmax``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the result, of its shape and dtype.
    y : Tensor
        The result.
    dim : int
        As in ``softmax``.
    dtype : torch.dtype, optional
        That of the gradient; by default that of ``y``.

    Returns
    -------
    Tensor
        Shape of ``y``, row-major.

    Raises
    ------
    InvalidInputError
        As ``softmax``; or if ``grad`` isn't of the shape, dtype and device of ``y``.

    Examples
    --------
    >>> nxcore.ops.softmax_backward(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5]), 0)
    tensor([ 0.2500, -0.2500])
    """
    if y.dtype is torch.float64:  # by the formula: torch's CUDA kernel has other NaNs beside infinities
        return (y * (grad - (grad * y).sum(dim, keepdim=True))).contiguous().to(dtype or y.dtype)
    return differentiated("softmax", grad, y, dim, dtype)


def differentiated(name: str, grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    """Return what torch's own gradient of an operator computes, in the wider of two dtypes."""
    wide = torch.promote_types(y.dtype, dtype or y.dtype)
    found: Tensor = getattr(torch.ops.aten, f"_{name}_backward_data")(grad.to(wide), y.to(wide), dim, wide)
    return found.to(dtype or y.dtype)


def gradient_magnitude(grad: Tensor, y: Tensor, dim: int, dtype: Any) -> Tensor:
    """Return the gradient with positive terms."""
    p, g = y.abs(), grad.abs()
    return p * (g + (p * g).sum(dim, keepdim=True))


BACKWARD = backward_spec_of(SPEC, gradient, gradient_magnitude, flops=4)
