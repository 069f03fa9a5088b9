"""index_add: rows of ``source`` added to the rows of ``x`` that an index names.

    y[index[i]] = x[index[i]] + alpha source[i], for the slices along one axis; other slices stay

Semantics of ``torch.index_add``, save that half types are added up in float32 and rounded once. A kernel of
the contract ``ordered`` adds up in the order of the index, the same bits in every run; that of ``fast`` in
any order, and it isn't a candidate under ``torch.use_deterministic_algorithms``. The gradients are
``index_add_backward``:

    grad_x = grad;  grad_source[i] = alpha grad[index[i]]
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
    Sketch,
    TensorMeta,
    Way,
    backward_of,
    brief,
    rand,
    require_size,
    require_tensor,
)

INTEGERS = (torch.int32, torch.int64)
SMOKE, BENCH = frozenset({"smoke"}), frozenset({"bench"})


def require_index(value: Any, name: str, like: Any) -> None:
    """Raise unless ``value`` is a tensor of int32 or int64 on the device of ``like``."""
    require_tensor(value, name, floating=False)
    if value.dtype not in INTEGERS:
        raise InvalidInputError(
            f"{name} must have dtype torch.int32 or torch.int64, got {value.dtype}", argument=name
        )
    if value.device != like.device:
        raise InvalidInputError(
            f"{name} must be on the device {like.device}, got {value.device}", argument=name
        )


def in_float32(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Call a function on tensors; on halves in float32, and round its result once."""
    dtype = tensors[0].dtype
    if dtype not in HALVES:
        return function(*tensors)
    return function(*(t.float() for t in tensors)).to(dtype)


def index(count: int, high: int, dtype: torch.dtype = torch.int64) -> Sketch:
    """Describe ``count`` indices below ``high``; few of many are the same."""
    return rand(count, low=0, high=high, dtype=dtype)


def reference(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1) -> Tensor:
    """Return ``x`` with the rows of ``source`` added where ``index`` says, accumulating in float32 or wider.

    Parameters
    ----------
    x : Tensor
        Any shape and strides, floating.
    dim : int
        The axis that ``index`` counts along.
    index : Tensor
        int32 or int64, of one dimension or none. An entry may occur more than once; one that ``x`` doesn't
        have ends the call with torch's error, on a CUDA device with one of the device.
    source : Tensor
        The shape of ``x``, but as long as ``index`` along ``dim``; of its dtype.
    alpha : float, default 1
        A factor of ``source``.

    Returns
    -------
    Tensor
        Shape and dtype of ``x``.

    Raises
    ------
    InvalidInputError
        If shapes, dtypes or devices don't fit.

    Examples
    --------
    >>> nxcore.ops.index_add(torch.zeros(3), 0, torch.tensor([2, 0, 2]), torch.ones(3))
    tensor([1., 0., 2.])
    """
    if torch.compiler.is_compiling():  # a compiler can't compare a symbol with 1, as torch does of alpha
        return in_float32(lambda x, source: torch.index_add(x, dim, index, source * alpha), x, source)
    return in_float32(lambda x, source: torch.index_add(x, dim, index, source, alpha=alpha), x, source)


def sourced(size: Any, dim: int, index: Any) -> tuple[int, ...]:
    """Return the shape of the source."""
    if not size:
        return ()
    return tuple(index.numel() if i == dim % len(size) else n for i, n in enumerate(size))


def require_alpha(alpha: Any) -> None:
    """Raise unless ``alpha`` is a real number."""
    if not isinstance(alpha, int | float) or isinstance(alpha, bool):
        raise InvalidInputError(f"alpha must be a number, got {brief(alpha)}", argument="alpha")
    if isinstance(alpha, int) and not -(2**63) <= alpha < 2**64:
        raise InvalidInputError(f"alpha must fit 64 bits, got {alpha}", argument="alpha")


def require_vector(index: Any, like: Any) -> None:
    """Raise unless ``index`` is an index of at most one dimension, on the device of ``like``."""
    require_index(index, "index", like)
    if index.ndim > 1:
        raise InvalidInputError(f"index must have one dimension, got {index.ndim}", argument="index")


def check(x: Any, dim: Any, index: Any, source: Any, alpha: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(x, "x")
    require_axis(dim, x.ndim)
    require_vector(index, x)
    require_tensor(source, "source")
    if source.dtype != x.dtype or source.device != x.device:
        came = f"{source.dtype} on {source.device}"
        raise InvalidInputError(f"source must be {x.dtype} on {x.device} as x, got {came}", argument="source")
    wanted = sourced(tuple(x.shape), dim, index)
    if tuple(source.shape) != wanted or (not wanted and index.numel() != 1):
        raise InvalidInputError(
            f"source must have shape {wanted} for this index, got {tuple(source.shape)}", argument="source"
        )
    require_alpha(alpha)


def outputs(x: Any, dim: Any, index: Any, source: Any, alpha: Any) -> TensorMeta | None:
    """Describe the result of a row-major ``x``; None of others."""
    if not x.is_contiguous() or 1 in x.shape or not x.numel():
        return None
    return TensorMeta.row_major(tuple(x.shape), x.dtype, x.device)


def kept(ndim: int, dim: int) -> list[int]:
    """Return the axes that nothing is added up along."""
    return [d for d in range(ndim) if d != dim % ndim]


SAMPLES = (
    Sample("many_of_few", (rand(7, 12), 0, index(90, 7), rand(90, 12)), {"alpha": 0.5}, SMOKE),
    Sample("few_of_many", (rand(300, 5), 0, index(11, 300), rand(11, 5)), tags=SMOKE),
    Sample("whole_vectors", (rand(33, 64), 0, index(70, 33), rand(70, 64)), {"alpha": -2}, SMOKE),
    Sample("nan", (rand(9, 8), 0, index(20, 9), rand(20, 8, values="nan")), tags=SMOKE),
    Sample("infinities", (rand(9, 8, values="inf"), 0, index(20, 9), rand(20, 8))),
    Sample("all_to_one_row", (rand(3, 9), 0, index(1700, 1), rand(1700, 9)), tags=SMOKE),
    Sample("spans_of_rows", (rand(2, 8), 0, index(3000, 2), rand(3000, 8))),
    Sample("narrow_index", (rand(9, 6), 0, index(20, 9, torch.int32), rand(20, 6))),
    Sample("last_axis", (rand(5, 9), -1, index(20, 9), rand(5, 20))),
    Sample("middle_axis", (rand(3, 9, 4), 1, index(20, 9), rand(3, 20, 4))),
    Sample("more_dimensions", (rand(9, 3, 4), 0, index(20, 9), rand(20, 3, 4))),
    Sample("vector", (rand(40), 0, index(90, 40), rand(90))),
    Sample("one_row", (rand(1, 6), 0, index(5, 1), rand(5, 6))),
    Sample("one_column", (rand(9, 1), 0, index(20, 9), rand(20, 1))),
    Sample("zero_dimensions", (rand(), 0, index(1, 1), rand())),
    Sample("nothing_added", (rand(5, 6), 0, index(0, 5), rand(0, 6))),
    Sample("no_columns", (rand(5, 0), 0, index(3, 5), rand(3, 0)), tags=DEGENERATE),
    Sample(
        "odd_storage_offset", (rand(9, 8, layout="sliced"), 0, index(20, 9), rand(20, 8, layout="sliced"))
    ),
    Sample("transposed", (rand(9, 8, layout="transposed"), 0, index(20, 9), rand(20, 8))),
    Sample("gaps_in_memory", (rand(9, 8), 0, index(20, 9), rand(20, 8, layout="strided"))),
    Sample("expanded_source", (rand(9, 8), 0, index(20, 9), rand(20, 8, layout="expanded"))),
    Sample("channels_last", (rand(4, 5, 3, 2, layout="channels_last"), 0, index(9, 4), rand(9, 5, 3, 2))),
    Sample("nodes", (rand(10_000, 128), 0, index(100_000, 10_000), rand(100_000, 128)), tags=BENCH),
)

ERRORS = (
    ErrorCase("not_a_tensor", (3.5, 0, index(2, 3), rand(2)), "x must be a tensor, got float"),
    ErrorCase("no_axis", (rand(3), None, index(2, 3), rand(2)), "dim must be an integer, got None"),
    ErrorCase("axis", (rand(3), 1, index(2, 3), rand(2)), r"dim must be in \[-1, 0\]"),
    ErrorCase("floating_index", (rand(3), 0, rand(2), rand(2)), "index must have dtype torch.int32 or"),
    ErrorCase("index_of_two", (rand(3), 0, rand(2, 2, dtype=torch.int64), rand(2)), "index must have one"),
    ErrorCase("shape", (rand(3, 4), 0, index(2, 3), rand(2, 5)), r"source must have shape \(2, 4\)"),
    ErrorCase("dtype", (rand(3), 0, index(2, 3), rand(2, dtype=torch.float64)), "must be torch.float32 on"),
    ErrorCase("alpha", (rand(3), 0, index(2, 3), rand(2)), "alpha must be a number", {"alpha": "a"}),
    ErrorCase("elsewhere", (rand(3), 0, rand(2, dtype=torch.int64, device="meta"), rand(2)), "on the device"),
)


def cost(x: Any, dim: Any, index: Any, source: Any, alpha: Any) -> Cost:
    """Count all read once, the result written once; an addition for each element of the source."""
    return Cost(bytes=2 * x.nbytes + index.nbytes + source.nbytes, flops=2 * source.numel())


def _backward(
    grad: Any, mask: tuple[bool, ...], x: Any, dim: Any, index: Any, source: Any, alpha: Any
) -> tuple[Any, ...]:
    return grad, tuple(x.shape), dim, index, alpha, mask


SPEC = OpSpec(
    name="index_add",
    params=(
        *(Param("x", "tensor"), Param("dim", "static"), Param("index", "tensor"), Param("source", "tensor")),
        Param("alpha", "scalar", 1, keyword=True),
    ),
    reference=reference,
    check=check,
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=lambda x, dim, index, source, alpha: torch.index_add(
        x.abs(), dim, index, source.abs(), alpha=abs(alpha)
    ),
    terms=lambda x, dim, index, source, alpha: 1 + int(index.numel()),
    idioms=MappingProxyType(
        {
            "index_add": lambda x, dim, index, source, alpha: torch.index_add(
                x, dim, index, source, alpha=alpha
            )
        }
    ),
    gradient=Gradient("index_add_backward", _backward, saves=("index",)),
    ways=lambda x, dim, *_: tuple(Way((d, None, d), d, audits=True) for d in kept(x.ndim, dim)),
    outputs=outputs,
    sketches=lambda x, dim, index, source, alpha: {"index": _below(x.shape, dim, index)},
)


def _below(size: Any, dim: int, index: Any) -> Any:
    """Describe indices of a tensor's slices."""
    return rand(*index.shape, low=0, high=size[dim] if size else 1, dtype=index.dtype)


def gradient(
    grad: Tensor,
    size: tuple[int, ...],
    dim: int,
    index: Tensor,
    alpha: float = 1,
    output_mask: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, None, Tensor | None]:
    """Return the gradients of ``index_add``: ``grad`` itself, and its rows that ``index`` names.

    Parameters
    ----------
    grad : Tensor
        The gradient of the result, of shape ``size``.
    size : tuple of int
        The shape of ``x``.
    dim, index, alpha
        As in ``index_add``.
    output_mask : tuple of bool
        Whether the gradients of ``x``, of the index, which has none, and of ``source`` are requested.

    Returns
    -------
    grad_x : Tensor or None
        ``grad``.
    grad_index : None
    grad_source : Tensor or None
        The shape of ``source``.

    Raises
    ------
    InvalidInputError
        As ``index_add``; or if ``grad`` isn't of shape ``size``.

    Examples
    --------
    >>> nxcore.ops.index_add_backward(torch.tensor([1.0, 2.0]), (2,), 0, torch.tensor([1, 1, 0]))[2]
    tensor([2., 2., 1.])
    """
    rows = torch.index_select(grad, dim, index) * alpha if output_mask[2] else None
    return grad if output_mask[0] else None, None, rows


def gradient_check(size: Any, dim: Any, index: Any, alpha: Any) -> None:
    """Raise unless the gradients are defined for the arguments after the incoming one."""
    require_size(size, "size")
    require_axis(dim, len(size))
    require_vector(index, index)
    require_alpha(alpha)


def gradient_cost(grad: Any, size: Any, dim: Any, index: Any, alpha: Any, output_mask: Any) -> Cost:
    """Count the index read once, the named rows read and written once."""
    rows = torch.Size(sourced(size, dim, index)).numel() if output_mask[2] else 0
    return Cost(bytes=index.nbytes + 2 * rows * grad.element_size(), flops=rows)


def _of(sample: Sample) -> Sample:
    """Return a sample of the gradients."""
    x, dim, index, _ = sample.args
    return Sample(
        sample.name, (rand(*x.shape, layout=x.layout), x.shape, dim, index), sample.kwargs, sample.tags
    )


BACKWARD = backward_of(
    SPEC,
    gradient,
    params=(Param("size", "size"), *SPEC.params[1:3], SPEC.params[4]),
    check=gradient_check,
    shape=lambda size, dim, index, alpha: tuple(size),
    gradients=3,
    cost=gradient_cost,
    magnitude=lambda grad, size, dim, index, alpha, mask: gradient(
        grad.abs(), size, dim, index, abs(alpha), mask
    ),
    given=_of,
    samples=(
        Sample("stride_zero_grad", (rand(9, 8, layout="expanded"), (9, 8), 0, index(20, 9))),
        Sample("gaps_in_grad", (rand(9, 8, layout="strided"), (9, 8), 0, index(20, 9))),
    ),
    terms=lambda *_: 1,
    view=lambda *args: not args[-1][2],
    ways=lambda grad, size, dim, index, alpha, mask: tuple(
        Way((d, None), None, audits=True, results=(d,) * (mask[0] + mask[2])) for d in kept(grad.ndim, dim)
    ),
    sketches=lambda grad, size, dim, index, alpha, mask: {"index": _below(size, dim, index)},
)
