"""column_sums: the sums of the columns of several matrices, one matrix after another.

    out = [sum over rows of xs[0], sum over rows of xs[1], ...]

Each row may be the share of one block of a kernel in the gradients of some weights, and each matrix those of
one convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

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
    is_tensor,
    rand,
    require_same,
    require_tensor,
)


def reference(xs: Sequence[Tensor] | Tensor) -> Tensor:
    """Return the sums of the columns of matrices as one vector, accumulating in float32 or wider.

    Parameters
    ----------
    xs : sequence of Tensor, or Tensor
        At least one matrix (rows, columns); all of one floating dtype and device, of any sizes. Or one
        tensor (N, rows, columns) that stacks them.

    Returns
    -------
    Tensor
        Shape (all columns,), dtype of ``xs``. A sum of no rows is 0.

    Raises
    ------
    InvalidInputError
        If there is no matrix, one isn't a matrix, or they differ in dtype or device.

    Examples
    --------
    >>> nxcore.ops.column_sums([torch.ones(2, 3), torch.ones(4, 1)])
    tensor([2., 2., 2., 4.])
    """
    return torch.cat([x.sum(0) for x in (xs.unbind(0) if isinstance(xs, Tensor) else xs)])


def check(xs: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    if isinstance(xs, Tensor):
        require_tensor(xs, "xs")
        if xs.ndim != 3 or xs.shape[0] == 0:
            raise InvalidInputError(
                f"xs must be (N, rows, columns) with N >= 1, got shape {tuple(xs.shape)}", argument="xs"
            )
        return
    if not isinstance(xs, list | tuple):
        raise InvalidInputError(
            f"xs must be a tensor or a sequence of tensors, got {type(xs).__name__}", argument="xs"
        )
    if not xs:
        raise InvalidInputError("xs must hold at least one tensor, got none", argument="xs")
    for i, x in enumerate(xs):
        require_tensor(x, f"xs[{i}]")
        if x.ndim != 2:
            raise InvalidInputError(
                f"xs[{i}] must be (rows, columns), got shape {tuple(x.shape)}", argument="xs"
            )
    require_same(xs, "xs", "dtype", "device")


def sizes(xs: Any) -> list[tuple[int, int]]:
    """Return the rows and columns of each matrix."""
    if is_tensor(xs):
        return [(xs.shape[1], xs.shape[2])] * xs.shape[0]
    return [(x.shape[0], x.shape[1]) for x in xs]


def outputs(xs: Any) -> TensorMeta:
    """Describe the result."""
    first = xs if is_tensor(xs) else xs[0]
    return TensorMeta.row_major((sum(columns for _, columns in sizes(xs)),), first.dtype, first.device)


def cost(xs: Any) -> Cost:
    """Count all matrices read once, the sums written once."""
    first, found = xs if is_tensor(xs) else xs[0], sizes(xs)
    read, made = sum(rows * columns for rows, columns in found), sum(columns for _, columns in found)
    return Cost(bytes=(read + made) * first.element_size(), flops=read)


def ways(xs: Any) -> tuple[Way, ...]:
    """Add up the sums of parts of the rows, where all matrices have as many."""
    if len({rows for rows, _ in sizes(xs)}) > 1:
        return ()
    return (Way((1,) if is_tensor(xs) else (0,) * len(xs), None, audits=True, joins="sum"),)


def magnitude(xs: Any) -> Tensor:
    """Return the sums of absolute values."""
    return reference([x.abs() for x in xs])


def terms(xs: Any) -> int:
    """Return the rows of the longest matrix."""
    return max(1, *(rows for rows, _ in sizes(xs)))


SMOKE = frozenset({"smoke"})
BENCH = frozenset({"bench"})


def _cell(channels: int, rows: int) -> tuple[Any, ...]:
    """Describe what the separable convolutions of a cell of 14 edges leave: six an edge."""
    each = (9, 9, 25, 25, 9, 25)
    return tuple(rand(rows, channels * (taps + channels)) for _ in range(14) for taps in each)


SAMPLES = (
    Sample("two_sizes", ((rand(7, 45), rand(64, 33)),), tags=SMOKE),
    Sample("stacked", (rand(3, 17, 40),), tags=SMOKE),
    Sample("some_of_many_sizes", (tuple(rand(3 + 5 * i, 1 + 7 * i) for i in range(20)),), tags=SMOKE),
    Sample("one_matrix", ((rand(129, 65),),)),
    Sample("one_row", ((rand(1, 70), rand(1, 3)),)),
    Sample("one_column", ((rand(300, 1), rand(5, 1)),)),
    Sample("one_element", ((rand(1, 1),),)),
    Sample("more_than_a_launch", (tuple(rand(2, 1 + i % 3) for i in range(300)),)),
    Sample("power_of_two", ((rand(256, 512), rand(512, 256)),)),
    Sample("power_of_two_plus_one", ((rand(257, 513), rand(33, 129)),)),
    Sample("no_rows", ((rand(0, 5), rand(3, 4)),), tags=DEGENERATE),
    Sample("no_columns", ((rand(3, 0), rand(3, 4), rand(2, 0)),), tags=DEGENERATE),
    Sample("nothing_left", ((rand(3, 0),),), tags=DEGENERATE),
    Sample("odd_storage_offset", ((rand(9, 31, layout="sliced"), rand(5, 7)),)),
    Sample("transposed", ((rand(9, 31, layout="transposed"), rand(5, 7)),)),
    Sample("gaps_in_memory", ((rand(9, 31, layout="strided"), rand(5, 7)),)),
    Sample("expanded", ((rand(9, 31, layout="expanded"), rand(5, 7)),)),
    Sample("nan", ((rand(40, 30, values="nan"), rand(6, 9)),), tags=SMOKE),
    Sample("inf_minus_inf", ((rand(40, 30, values="inf"), rand(6, 9)),)),
    Sample(
        "denormal",
        ((rand(30, 30, values="denormal", dtype=torch.float32), rand(6, 9, dtype=torch.float32)),),
        tags=DEGENERATE,
    ),
    Sample("accumulator_drift", ((rand(3001, 20, low=0, high=2), rand(1056, 7, low=0, high=2)),)),
    Sample("cell_16_channels", (_cell(16, 256),), tags=BENCH),
    Sample("cell_64_channels", (_cell(64, 64),), tags=BENCH),
)

ERRORS = (
    ErrorCase("no_matrices", ((),), match="xs must hold at least one tensor, got none"),
    ErrorCase("stack_of_none", (rand(0, 4, 2),), match=r"N >= 1, got shape \(0, 4, 2\)"),
    ErrorCase("vector", ((rand(3, 2), rand(3)),), match=r"xs\[1\] must be \(rows, columns\), got shape"),
    ErrorCase(
        "mixed_dtypes",
        ((rand(4, 2), rand(4, 2, dtype=torch.float16)),),
        match=r"share one dtype: xs\[0\] has torch.float32, xs\[1\] has torch.float16",
    ),
    ErrorCase("mixed_devices", ((rand(4, 2), rand(4, 2, device="meta")),), match="share one device"),
    ErrorCase("integers", ((rand(4, 2, dtype=torch.int64),),), match="floating dtype, got"),
    ErrorCase("not_a_tensor", (3.5,), match="xs must be a tensor or a sequence .* got float"),
)

SPEC = OpSpec(
    name="column_sums",
    params=(Param("xs", "tensors"),),
    reference=reference,
    check=check,
    holds="alike",
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=terms,
    outputs=outputs,
    ways=ways,
    autocast=MappingProxyType({"cpu": "same", "cuda": "float32"}),  # as torch.sum
)
