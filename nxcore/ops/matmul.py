"""matmul: products of matrices.

    out[..., i, j] = sum over k of a[..., i, k] * b[..., k, j]

Semantics of ``torch.matmul``: batches broadcast, a vector is one row or one column. In float32 each term is
rounded once, to float32's precision (``ieee32``): no factor is split or shortened, unless ``precision`` or
torch's settings allow a coarser class.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import (
    DEGENERATE,
    LOWER,
    Cost,
    ErrorCase,
    Gradient,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    Way,
    allowing,
    broadcast_shapes,
    in_force,
    rand,
    require_precision,
    require_tensor,
)

Call = Callable[..., Any]


def reference(a: Tensor, b: Tensor, precision: str | None) -> Tensor:
    """Return ``a @ b``, accumulating in float32 or wider.

    Parameters
    ----------
    a : Tensor
        Shape (..., rows, terms) or (terms,), any strides, floating.
    b : Tensor
        Shape (..., terms, columns) or (terms,), dtype and device of ``a``. Leading dimensions broadcast.
    precision : str, optional
        The coarsest class that a float32 product may have: ``"ieee32"``; ``"fp32x"``, products of split
        factors with float32's error on ordinary numbers; ``"tf32"``, one product of factors of 11 bits;
        ``"half"``. Or a word of ``torch.set_float32_matmul_precision``: ``"highest"``, ``"high"`` (tf32),
        ``"medium"`` (half). By default, what torch's settings allow. Other dtypes have no classes.

    Returns
    -------
    Tensor
        Shape (..., rows, columns), without the dimension that a vector lacks; contiguous.

    Raises
    ------
    InvalidInputError
        If shapes don't fit, dtypes or devices differ, or there is no such class.

    Examples
    --------
    >>> nxcore.ops.matmul(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    tensor([[2., 1.],
            [4., 3.]])
    """
    return by_class(precision, a, b)


def by_class(precision: str | None, a: Tensor, b: Tensor) -> Tensor:
    """Return torch's product, in the class that is allowed or the next finer one that torch has."""
    if precision is None or torch.compiler.is_compiling():  # whose graph can't change a setting
        return torch.matmul(a, b)
    with allowing(precision, a):
        return torch.matmul(a, b)


def check(a: Any, b: Any, precision: Any = None) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_precision(precision)
    for name, value in (("a", a), ("b", b)):
        require_tensor(value, name)
        if not value.ndim:
            raise InvalidInputError(f"{name} must have a dimension, got a number", argument=name)
    for attribute in ("dtype", "device"):
        wanted, got = getattr(a, attribute), getattr(b, attribute)
        if wanted != got:
            raise InvalidInputError(f"b must have the {attribute} of a, {wanted}, got {got}", argument="b")
    terms, got = a.shape[-1], b.shape[-2:][0]
    if terms != got:
        given = f"as a of shape {tuple(a.shape)}, got shape {tuple(b.shape)}"
        raise InvalidInputError(f"b must have {terms} terms, {given}", argument="b")
    batch(a, b)


def batch(a: Any, b: Any) -> tuple[int, ...]:
    """Return what the leading dimensions broadcast to."""
    shapes = tuple(a.shape[:-2]), tuple(b.shape[:-2])
    if shapes[0] == shapes[1] or not shapes[1]:
        return shapes[0]
    try:
        return broadcast_shapes(shapes[0], shapes[-1])
    except RuntimeError as error:
        given = f"shapes {tuple(a.shape)} and {tuple(b.shape)}"
        raise InvalidInputError(f"b must broadcast with a, got {given}", argument="b") from error


def out_shape(a: Any, b: Any, _precision: Any = None) -> tuple[int, ...]:
    """Return the result's shape."""
    return (*batch(a, b), *a.shape[-2:-1], *(b.shape[-1:] if len(b.shape) > 1 else ()))


def outputs(a: Any, b: Any, _precision: Any) -> TensorMeta:
    """Describe the result."""
    return TensorMeta.row_major(out_shape(a, b), a.dtype, a.device)


def cost(a: Any, b: Any, _precision: Any) -> Cost:
    """Count both operands read once, the result written once; two operations for each term."""
    made = math.prod(out_shape(a, b))
    return Cost(bytes=a.nbytes + b.nbytes + made * a.dtype.itemsize, flops=2 * made * a.shape[-1])


def magnitude(a: Tensor, b: Tensor, _precision: Any) -> Tensor:
    """Return the product of absolute values."""
    return torch.matmul(a.abs(), b.abs())


def ways(a: Any, b: Any, _precision: Any) -> tuple[Way, ...]:
    """Divide by rows, with the same ``b``, or by columns."""
    rank = len(out_shape(a, b))
    rows = (Way((a.ndim - 2, None), rank - 1 - (b.ndim > 1)),) if a.ndim > 1 else ()
    columns = (Way((None, b.ndim - 1), rank - 1),) if b.ndim > 1 else ()
    return rows + columns


SMOKE, BENCH, EXACT = frozenset({"smoke"}), frozenset({"bench"}), frozenset({"smoke", "exact"})
TINY, HUGE = 2.0**-120, 2.0**100

single = partial(rand, dtype=torch.float32)
split = partial(Sample, kwargs={"precision": "fp32x"})

STRICT = (
    Sample("few", (rand(3, 5), rand(5, 4)), tags=SMOKE),
    Sample("odd", (rand(33, 37), rand(37, 35)), tags=SMOKE),
    Sample("whole_vectors", (rand(36, 40), rand(40, 44)), tags=SMOKE),
    Sample(
        "both_transposed", (rand(12, 20, layout="transposed"), rand(20, 8, layout="transposed")), tags=SMOKE
    ),
    Sample("batched", (rand(3, 5, 6), rand(3, 6, 7)), tags=SMOKE),
    Sample("gaps_in_memory", (rand(7, 9, layout="strided"), rand(9, 5, layout="strided")), tags=SMOKE),
    Sample("channels_last", (rand(2, 3, 4, 8, layout="channels_last"), rand(2, 3, 8, 5)), tags=SMOKE),
    Sample("expanded", (rand(6, 8, layout="expanded"), rand(8, 4)), tags=SMOKE),
    # What a product of split or shortened factors gets wrong: see tests/ops/test_matmul.py.
    Sample("infinite", (single(12, 5, values="inf"), single(5, 9, low=0.5, high=1)), tags=SMOKE),
    Sample(
        "overflow", (single(9, 4, low=3.4e38, high=3.4028e38), single(4, 7, low=0, high=1e-3)), tags=SMOKE
    ),
    Sample("tiny", (single(8, 3, low=-TINY, high=TINY), single(3, 9, low=-HUGE, high=HUGE)), tags=SMOKE),
    Sample("denormal", (single(8, 3, values="denormal"), single(3, 9, low=-HUGE, high=HUGE)), tags=SMOKE),
    Sample("cancelling", (single(7, 6, values="cancelling"), single(6, 5, low=1, high=1)), tags=EXACT),
    Sample("nan", (rand(12, 5, values="nan"), rand(5, 9))),
    Sample("accumulator_drift", (rand(3, 3000, low=0, high=1), rand(3000, 2, low=0, high=1))),
    Sample("cancellation", (rand(7, 64, low=1000, high=1001), rand(64, 5))),
    Sample("one_row", (rand(1, 100), rand(100, 33))),
    Sample("one_column", (rand(33, 100), rand(100, 1))),
    Sample("one_term", (rand(9, 1), rand(1, 13))),
    Sample("many_terms", (rand(4, 1025), rand(1025, 8))),
    Sample("several_tiles", (rand(130, 18), rand(18, 132))),
    Sample("vectors", (rand(65), rand(65))),
    Sample("row_vector", (rand(20), rand(20, 9))),
    Sample("column_vector", (rand(3, 7, 20), rand(20))),
    Sample("batch_by_matrix", (rand(3, 5, 6), rand(6, 4))),
    Sample("matrix_by_batch", (rand(5, 6), rand(3, 6, 4))),
    Sample("batches_broadcast", (rand(2, 1, 5, 6), rand(3, 6, 4))),
    Sample("heads", (rand(2, 3, 4, 8), rand(2, 3, 8, 5, layout="transposed"))),
    Sample("no_rows", (rand(0, 5), rand(5, 3)), tags=DEGENERATE),
    Sample("no_terms", (rand(4, 0), rand(0, 3)), tags=DEGENERATE),
    Sample("odd_storage_offset", (rand(16, 12, layout="sliced"), rand(12, 8, layout="sliced"))),
    Sample("repeated", (rand(6, 8, layout="repeated"), rand(8, 4))),
    *(Sample(f"square_{n}", (rand(n, n), rand(n, n)), tags=BENCH) for n in (512, 1024, 2048)),
    Sample("square_4096", (rand(4096, 4096), rand(4096, 4096)), tags=BENCH | {"huge"}),
    Sample("linear", (rand(2048, 1024), rand(1024, 4096, layout="transposed")), tags=BENCH),
    Sample("heads_64", (rand(64, 256, 64), rand(64, 64, 256)), tags=BENCH),
    Sample("sixteen_rows", (rand(16, 4096), rand(4096, 4096)), tags=BENCH),
)

turned = partial(rand, layout="transposed")

# Products that blocks of several slices share: of whole tiles, and with an edge. A "huge" one has the terms
# to go around all stages of shared memory, which takes an emulator too long.
SLICED = (
    Sample("eight_slices", (turned(64, 256), turned(256, 64))),
    Sample("eight_slices_at_an_edge", (turned(260, 132), turned(132, 260))),
    Sample("eight_broad_slices", (rand(64, 256), rand(256, 64))),
    Sample("eight_broad_slices_at_an_edge", (rand(260, 132), rand(132, 260))),
    Sample("two_slices", (rand(64, 32), rand(32, 512))),
    Sample("two_slices_at_an_edge", (turned(516, 36), rand(36, 516))),
    Sample("four_slices", (rand(64, 64), rand(64, 256))),
    Sample("four_slices_at_an_edge", (turned(68, 64), turned(64, 1028))),
    Sample("eight_slices_around", (turned(384, 384), turned(384, 384)), tags=frozenset({"huge"})),
    Sample("eight_broad_slices_around", (rand(544, 640), rand(640, 256)), tags=frozenset({"huge"})),
    Sample("eight_broad_slices_kept", (rand(384, 512), rand(512, 384)), tags=frozenset({"huge"})),
    Sample("two_slices_around", (rand(768, 96), rand(96, 768)), tags=frozenset({"huge"})),
    Sample("four_slices_around", (rand(768, 256), rand(256, 768)), tags=frozenset({"huge"})),
    Sample("sixteen_warps", (rand(1024, 256), rand(256, 3200)), tags=frozenset({"huge"})),
    # Of a batch, and several blocks share a tile.
    Sample("eight_slices_shared", (turned(128, 768), rand(2, 768, 384)), tags=frozenset({"huge"})),
    Sample("eight_broad_slices_shared", (rand(2, 128, 768), rand(2, 768, 384)), tags=frozenset({"huge"})),
    Sample("two_slices_shared", (rand(2, 192, 256), rand(2, 256, 768)), tags=frozenset({"huge"})),
    Sample("four_slices_shared", (rand(2, 192, 384), rand(2, 384, 1024)), tags=frozenset({"huge"})),
    Sample("sixteen_warps_shared", (rand(2, 1024, 768), rand(2, 768, 640)), tags=frozenset({"huge"})),
)

# Samples whose numbers and layouts every class computes.
PLAIN = ("odd", "whole_vectors", "both_transposed", "batched", "gaps_in_memory", "channels_last", "expanded")

SAMPLES = (
    *(replace(s, kwargs={"precision": "ieee32"}) for s in (*STRICT, *SLICED)),
    *(split(f"{s.name}_split", s.args, tags=s.tags) for s in STRICT if s.name in PLAIN),
    split("drift_split", (rand(3, 3000, low=0, high=1), rand(3000, 2, low=0, high=1))),
    split("several_tiles_split", (rand(130, 18), rand(18, 132))),
    split("magnitudes_split", (rand(9, 40, low=-HUGE, high=HUGE), rand(40, 7, low=-1 / HUGE, high=1 / HUGE))),
    Sample("shortened", (rand(33, 37), rand(37, 35)), {"precision": "tf32"}),
)

ERRORS = (
    ErrorCase(
        "terms", (rand(2, 3), rand(4, 5)), match=r"b must have 3 terms, as a of shape \(2, 3\), got .*4, 5"
    ),
    ErrorCase("number", (rand(), rand(4, 5)), match="a must have a dimension, got a number"),
    ErrorCase(
        "batches", (rand(2, 3, 4), rand(3, 4, 5)), match=r"b must broadcast with a, got shapes \(2, 3, 4\)"
    ),
    ErrorCase("dtypes", (rand(2, 3), rand(3, 5, dtype=torch.float64)), match="b must have the dtype of a"),
    ErrorCase("devices", (rand(2, 3), rand(3, 5, device="meta")), match="b must have the device of a, cpu"),
    ErrorCase("not_a_tensor", (rand(2, 3), 1.0), match="b must be a tensor, got float"),
    ErrorCase("no_such_class", (rand(2, 3), rand(3, 5)), "precision must .*, got 'fp'", {"precision": "fp"}),
)

PRECISION = Param("precision", "static", None, keyword=True, read=in_force)

SPEC = OpSpec(
    name="matmul",
    params=(Param("a", "tensor"), Param("b", "tensor"), PRECISION),
    reference=reference,
    check=check,
    holds="alike",
    cost=cost,
    samples=SAMPLES,
    errors=ERRORS,
    magnitude=magnitude,
    terms=lambda a, _b, _precision: int(a.shape[-1]),
    dtypes=(torch.float32,),
    outputs=outputs,
    ways=ways,
    autocast=LOWER,
    gradient=Gradient(
        "matmul_backward",
        lambda grad, mask, *given: (grad, *given, mask),
        saves=("a", "b"),
        reads={"a": ("b",), "b": ("a",)},
    ),
)
