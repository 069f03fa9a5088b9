"""cumsum: the sums of the first entries along one axis.

    y[i] = x[0] + ... + x[i], for the lines along one axis

Semantics of ``torch.cumsum``, save that half types are added up in float32 on every device. The gradient is
the same from the end on, ``cumsum_backward``:

    grad_x[i] = grad[i] + ... + grad[n - 1]
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.entropy import HALVES
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
    brief,
    rand,
    require_tensor,
)


def reference(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return the sums of the first entries along ``dim``, accumulating in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Any shape, strides and dtype.
    dim : int
        The axis.
    dtype : torch.dtype, optional
        That of the result; ``x`` is converted to it first. By default that of ``x``, int64 for integers.

    Returns
    -------
    Tensor
        Shape of ``x``, row-major.

    Raises
    ------
    InvalidInputError
        If ``dim`` isn't an axis of ``x``, or ``dtype`` isn't a dtype.

    Examples
    --------
    >>> nxcore.ops.cumsum(torch.tensor([1.0, 2.0, 4.0]), 0)
    tensor([1., 3., 7.])
    """
    made = dtype or x.dtype
    if x.is_cuda and made in HALVES:  # there torch adds up in the halves themselves
        return torch.cumsum(x.to(made), dim, dtype=torch.float32).to(made)
    return torch.cumsum(x, dim, dtype=dtype)


def check(x: Any, dim: Any, dtype: Any, name: str = "x") -> None:
    """Raise unless there is one axis, and a dtype where one is given."""
    require_tensor(x, name, floating=False)
    require_axis(dim, x.ndim)
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise InvalidInputError(f"dtype must be a dtype or None, got {brief(dtype)}", argument="dtype")


def outputs(x: Any, dim: Any, dtype: Any) -> TensorMeta | None:
    """Describe the result, which is row-major; None where there is nothing, or no floating result."""
    made = dtype or x.dtype
    if not made.is_floating_point or not x.dtype.is_floating_point or not x.numel():
        return None  # strides of nothing are torch's own
    return TensorMeta.row_major(tuple(x.shape), made, x.device)


def ways(x: Any, dim: Any, dtype: Any) -> tuple[Way, ...]:
    """Divide along any axis but that of the sums."""
    return tuple(Way((d,), d, audits=True) for d in range(x.ndim) if d != dim % x.ndim)


SMOKE, BENCH = frozenset({"smoke"}), frozenset({"bench"})
HALF, SINGLE = torch.float16, torch.float32

SAMPLES = (
    Sample("last_block_partly_filled", (rand(3, 7, 37), -1), tags=SMOKE),
    Sample("nan", (rand(6, 20, values="nan"), 1), tags=SMOKE),
    Sample("longer_than_a_warp", (rand(5, 1031), 1), tags=SMOKE),
    Sample("whole_vectors", (rand(5, 704), 1), tags=SMOKE),
    Sample("middle_axis", (rand(3, 77, 5), 1), tags=SMOKE),
    Sample("neighbours_are_lines", (rand(2, 301, 64), 1), tags=SMOKE),
    Sample("blocks_share_a_line", (rand(2, 20_480), 1), tags=SMOKE),
    Sample("chunks_of_a_line", (rand(270, 2056), 1)),
    Sample("inf_minus_inf", (rand(9, 14, values="inf"), 1)),
    Sample("sums_that_drift", (rand(3, 3001, low=0.0, high=2.0), 1)),
    Sample("first_axis", (rand(37, 6), 0)),
    Sample("one_line", (rand(4099), 0)),
    Sample("wide_result", (rand(4, 40, dtype=HALF), -1), {"dtype": SINGLE}),
    Sample("converted_first", (rand(4, 9, dtype=SINGLE), -1), {"dtype": HALF}),
    Sample("one_entry", (rand(5, 1), 1)),
    Sample("zero_dimensions", (rand(), 0)),
    Sample("no_lines", (rand(0, 4), 1), tags=DEGENERATE),
    Sample("no_entries", (rand(3, 0), 1), tags=DEGENERATE),
    Sample("transposed", (rand(33, 6, layout="transposed"), 1)),
    Sample("transposed_first_axis", (rand(33, 6, layout="transposed"), 0)),
    Sample("odd_storage_offset", (rand(5, 16, layout="sliced"), 1)),
    Sample("gaps_in_memory", (rand(4, 6, layout="strided"), 1)),
    Sample("channels_last", (rand(2, 6, 3, 5, layout="channels_last"), 1)),
    Sample("expanded", (rand(4, 8, layout="expanded"), 1)),
    Sample("repeated", (rand(5, 70, layout="repeated"), 1)),
    Sample("rows", (rand(1024, 4096), -1), tags=BENCH),
    Sample("short_rows", (rand(16384, 1024), -1), tags=BENCH),
    Sample("long_rows", (rand(64, 131072), -1), tags=BENCH),
    Sample("sequences", (rand(8, 2048, 1024), 1), tags=BENCH),
)


def errors(name: str) -> tuple[ErrorCase, ...]:
    """Return calls that are refused, of an operator whose tensor has that name."""
    return (
        ErrorCase("not_a_tensor", (3.5, 0), f"{name} must be a tensor, got float"),
        ErrorCase("no_axis", (rand(3), None), "dim must be an integer, got None"),
        ErrorCase("axis_too_large", (rand(3, 4), 2), r"dim must be in \[-2, 1\]"),
        ErrorCase("axes", (rand(3, 4), (0, 1)), "dim must be an integer, got"),
        ErrorCase("flag", (rand(3), True), match="dim must be an integer, got True"),
        ErrorCase("no_dtype", (rand(3), 0), "dtype must be a dtype or None, got 'half'", {"dtype": "half"}),
    )


def spec_of(name: str, of: str, reference: Callable[..., Tensor], **other: Any) -> OpSpec:
    """Return the spec of a scan of the tensor that is named ``of``."""

    def check_named(x: Any, dim: Any, dtype: Any) -> None:
        check(x, dim, dtype, of)

    dtype = Param("dtype", "static", None, keyword=of == "x")  # a gradient's are all positional
    return OpSpec(
        name=name,
        params=(Param(of, "tensor"), Param("dim", "static"), dtype),
        reference=reference,
        check=check_named,
        holds="alike",
        cost=lambda x, dim, dtype: Cost(
            bytes=x.nbytes + x.numel() * (dtype or x.dtype).itemsize, flops=x.numel()
        ),
        samples=SAMPLES,
        errors=errors(of),
        magnitude=lambda x, dim, dtype: reference(x.abs(), dim),
        terms=lambda x, dim, dtype: max(int(x.shape[dim]) if x.ndim else 1, 1),
        outputs=outputs,
        ways=ways,
        **other,
    )


def _backward(grad: Any, mask: tuple[bool, ...], x: Any, dim: Any, dtype: Any) -> tuple[Any, ...]:
    return grad, dim, x.dtype


SPEC = spec_of(
    "cumsum",
    "x",
    reference,
    gradient=Gradient("cumsum_backward", _backward),
    idioms=MappingProxyType({"cumsum": lambda x, dim, dtype: torch.cumsum(x, dim, dtype=dtype)}),
)


def gradient(grad: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return the gradient of ``cumsum``: its sums from the end on, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the result; any shape and strides.
    dim : int
        As in ``cumsum``.
    dtype : torch.dtype, optional
        That of the result, rounded to at the end; by default that of ``grad``.

    Returns
    -------
    Tensor
        Shape of ``grad``, row-major.

    Raises
    ------
    InvalidInputError
        As ``cumsum``.

    Examples
    --------
    >>> nxcore.ops.cumsum_backward(torch.tensor([1.0, 2.0, 4.0]), 0)
    tensor([7., 6., 4.])
    """
    wide = torch.float32 if grad.dtype in HALVES else None
    found = torch.cumsum(grad.flip(dim), dim, dtype=wide).flip(dim)
    return found.to(dtype or grad.dtype)


BACKWARD = spec_of("cumsum_backward", "grad", gradient)
