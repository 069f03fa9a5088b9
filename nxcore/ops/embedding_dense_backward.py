"""embedding_dense_backward: the gradient of an embedding's weight.

    y[v] = scale[v] sum of grad_output[i] over all i with indices[i] = v, and 0 for padding_idx

``scale[v]`` is 1, or 1 over the number of such i where ``scale_grad_by_freq``. Semantics of
``torch.ops.aten.embedding_dense_backward``, save that half types are added up in float32 and rounded once.
The kernels add up in the order of the indices, the same bits in every run. torch differentiates it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nxcore.ops.index_add import BENCH, SMOKE, in_float32, index, require_index
from nxcore.plugin import (
    DEGENERATE,
    Cost,
    ErrorCase,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    Way,
    brief,
    rand,
    require_flag,
    require_tensor,
)


def reference(
    grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """Return the gradient of an embedding's weight, accumulating in float32 or wider.

    Parameters
    ----------
    grad_output : Tensor
        The gradient of the looked-up rows: the shape of ``indices`` and one dimension more; floating.
    indices : Tensor
        int32 or int64: the rows that were looked up. One that there isn't ends the call with torch's error,
        on a CUDA device with one of the device.
    num_weights : int
        The number of rows of the weight.
    padding_idx : int
        A row that has no gradient, or -1.
    scale_grad_by_freq : bool
        Whether each row is divided by how often it was looked up.

    Returns
    -------
    Tensor
        Shape (num_weights, columns), dtype of ``grad_output``.

    Raises
    ------
    InvalidInputError
        If shapes, dtypes or devices don't fit, or there are less than 0 rows.

    Examples
    --------
    >>> grad, indices = torch.ones(3, 2), torch.tensor([2, 0, 2])
    >>> nxcore.ops.embedding_dense_backward(grad, indices, 3, -1, False)
    tensor([[1., 1.],
            [0., 0.],
            [2., 2.]])
    """
    if not grad_output.shape[-1]:  # torch's CUDA kernel reads memory that isn't there
        return grad_output.new_zeros(num_weights, 0)

    def added(grad: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten.embedding_dense_backward(
            grad, indices, num_weights, padding_idx, scale_grad_by_freq
        )
        return found

    return in_float32(added, grad_output)


def require_whole(value: Any, name: str, least: int) -> None:
    """Raise unless ``value`` is an integer of 64 bits, and not below ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        raise InvalidInputError(f"{name} must be an integer from {least}, got {brief(value)}", argument=name)


def check(
    grad_output: Any, indices: Any, num_weights: Any, padding_idx: Any, scale_grad_by_freq: Any
) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_tensor(grad_output, "grad_output")
    require_index(indices, "indices", grad_output)
    if tuple(grad_output.shape[:-1]) != tuple(indices.shape) or grad_output.ndim != indices.ndim + 1:
        wanted = (*indices.shape, "columns")
        raise InvalidInputError(
            f"grad_output must have shape {wanted}, got {tuple(grad_output.shape)}", argument="grad_output"
        )
    require_whole(num_weights, "num_weights", 1)
    if num_weights * max(1, grad_output.shape[-1]) * grad_output.element_size() >= 2**63:
        message = f"num_weights must be such that the result fits 64 bits, got {num_weights}"
        raise InvalidInputError(message, argument="num_weights")
    require_whole(padding_idx, "padding_idx", -1)
    require_flag(scale_grad_by_freq, "scale_grad_by_freq")


def magnitude(grad_output: Tensor, *args: Any) -> Tensor:
    """Return the sums of absolute values."""
    return reference(grad_output.abs(), *args)


def outputs(grad_output: Any, indices: Any, num_weights: Any, *_: Any) -> TensorMeta | None:
    """Describe the result; None where there is nothing."""
    shape = (num_weights, grad_output.shape[-1])
    if not num_weights or not shape[1]:
        return None
    return TensorMeta.row_major(shape, grad_output.dtype, grad_output.device)


def _sample(
    name: str,
    shape: tuple[int, ...],
    rows: int,
    *tags: str,
    padding: int = -1,
    freq: bool = False,
    **how: Any,
) -> Sample:
    whole = rand(*shape[:-1], low=0, high=how.pop("high", rows), dtype=how.pop("dtype", torch.int64))
    return Sample(name, (rand(*shape, **how), whole, rows, padding, freq), tags=frozenset(tags or {"edge"}))


SAMPLES = (
    _sample("many_of_few", (90, 12), 7, *SMOKE),
    _sample("padding", (5, 17, 64), 9, *SMOKE, padding=3),
    _sample("by_frequency", (70, 9), 33, *SMOKE, freq=True),
    _sample("all_to_one_row", (1700, 9), 3, *SMOKE, high=1),
    _sample("spans_of_rows", (3000, 8), 2, padding=1, freq=True),
    _sample("nan", (20, 8), 9, *SMOKE, values="nan"),
    _sample("infinities", (20, 8), 9, values="inf"),
    _sample("few_of_many", (11, 5), 300),
    _sample("narrow_index", (20, 6), 9, dtype=torch.int32),
    _sample("one_row", (5, 6), 1),
    _sample("one_column", (20, 1), 9),
    _sample("one_index", (6,), 5),
    Sample("no_indices", (rand(0, 6), index(0, 5), 5, -1, False), tags=DEGENERATE),
    _sample("no_columns", (5, 0), 4, *DEGENERATE),
    _sample("odd_storage_offset", (20, 8), 9, layout="sliced"),
    _sample("transposed", (20, 8), 9, layout="transposed"),
    _sample("gaps_in_memory", (20, 8), 9, layout="strided"),
    _sample("stride_zero_grad", (20, 8), 9, layout="expanded"),
    _sample("channels_last", (4, 5, 3, 2), 9, layout="channels_last"),
    _sample("tokens", (4, 4096, 768), 50257, *BENCH),
)

ERRORS = (
    ErrorCase("not_a_tensor", (3.5, index(2, 3), 3, -1, False), "grad_output must be a tensor, got float"),
    ErrorCase(
        "floating_index", (rand(2, 3), rand(2), 3, -1, False), "indices must have dtype torch.int32 or"
    ),
    ErrorCase("shape", (rand(2, 3), index(4, 3), 3, -1, False), r"must have shape \(4, 'columns'\), got"),
    ErrorCase("no_rows", (rand(2, 3), index(2, 3), 0, -1, False), "num_weights must be an integer from 1"),
    ErrorCase("padding", (rand(2, 3), index(2, 3), 3, -2, False), "padding_idx must be an integer from -1"),
    ErrorCase("flag", (rand(2, 3), index(2, 3), 3, -1, 1), "scale_grad_by_freq must be True or False, got 1"),
)

SPEC = OpSpec(
    name="embedding_dense_backward",
    params=(
        *(Param("grad_output", "tensor"), Param("indices", "tensor")),
        *(Param(name, "static") for name in ("num_weights", "padding_idx", "scale_grad_by_freq")),
    ),
    reference=reference,
    check=check,
    cost=lambda grad_output, indices, rows, *_: Cost(
        bytes=grad_output.nbytes + indices.nbytes + rows * grad_output.shape[-1] * grad_output.element_size(),
        flops=grad_output.numel(),
    ),
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda grad_output, indices, *_: max(int(indices.numel()), 1),
    outputs=outputs,
    ways=lambda grad_output, *_: (Way((grad_output.ndim - 1, None), 1, audits=True),),
    sketches=lambda grad_output, indices, rows, *_: {
        "indices": rand(*indices.shape, low=0, high=rows, dtype=indices.dtype)
    },
)
