"""Layouts as data: which tensors share a memory layout, and strides in the fewest dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nxcore.spec.problem import Problem, TensorMeta

Strides = tuple[int, ...]

LAYOUTS = ("contiguous", "channels_last", "permuted", "gaps", "expanded")
"""Layout classes, the plainest first."""

WIDEST = 16
"""The bytes of a kernel's widest load."""


def layout_class(metas: Sequence[TensorMeta]) -> str:
    """Return the layout class of a call: that of its least plain tensor.

    ``contiguous`` (row-major), ``channels_last``, ``permuted`` (dense in another order of dimensions),
    ``gaps`` (between elements) or ``expanded`` (elements that share memory).
    """
    return LAYOUTS[max((_rank(m) for m in metas), default=0)]


def _rank(meta: TensorMeta) -> int:
    if meta.is_contiguous():
        return 0
    if not meta.is_dense():
        return 4 if overlaps(meta) else 3
    order = (0, *range(2, meta.ndim), 1)[: meta.ndim]
    strides = [meta.strides[d] for d in order if meta.shape[d] != 1]
    return 1 if meta.ndim == 4 and strides == sorted(strides, reverse=True) else 2


def alike(*metas: TensorMeta) -> bool:
    """Return whether all tensors are dense and have the same layout, so that a flat index fits all.

    >>> alike(TensorMeta.of(torch.ones(2, 3)), TensorMeta.of(torch.ones(3, 2).T))
    False
    """
    first = metas[0]
    return first.is_dense() and all(
        m.extent == first.extent and m.strides_of_extent == first.strides_of_extent for m in metas
    )


def overlaps(meta: TensorMeta) -> bool:
    """Return whether two elements may share memory; kernels must not write to such a tensor.

    >>> overlaps(TensorMeta.of(torch.ones(1).expand(4)))
    True
    """
    reach = 0
    for stride, size in sorted(zip(meta.strides_of_extent, meta.extent, strict=True)):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def broadcast_shapes(a: Sequence[int], b: Sequence[int]) -> Strides:
    """Return the shape that two shapes broadcast to.

    Raises
    ------
    RuntimeError
        If they don't broadcast.

    >>> broadcast_shapes((3, 1), (2, 1, 4))
    (2, 3, 4)
    """
    if any(type(n) is not int for n in (*a, *b)):
        return tuple(torch.broadcast_shapes(a, b))  # a compiler's symbols; it imports the compiler
    return tuple(torch._C._infer_size(torch.Size(a), torch.Size(b)))  # noqa: SLF001  see above


def broadcast_strides(meta: TensorMeta, shape: Sequence[int]) -> Strides:
    """Return the strides of ``meta`` expanded to ``shape``: 0 where it is repeated.

    >>> broadcast_strides(TensorMeta.of(torch.ones(3, 1)), (2, 3, 4))
    (0, 1, 0)
    """
    lead = len(shape) - meta.ndim
    own = (0 if n == 1 else s for n, s in zip(meta.shape, meta.strides, strict=True))
    return (*(0,) * lead, *own)


def collapse(shape: Sequence[int], *strides: Sequence[int]) -> tuple[Strides, tuple[Strides, ...]]:
    """Describe strided operands of one shape in the fewest dimensions.

    Dimensions of size 1 are dropped, the others put in the memory order of the first operand,
    outermost first, and neighbours merged where every operand's strides allow.

    Parameters
    ----------
    shape : sequence of int
    *strides : sequence of int
        One per operand.

    Returns
    -------
    sizes : tuple of int
    strides : tuple of tuple of int
        One per operand.

    Examples
    --------
    >>> collapse((2, 3, 4), (12, 4, 1), (12, 4, 1))
    ((24,), ((1,), (1,)))
    """
    axes = [(n, s) for n, *s in zip(shape, *strides, strict=True) if n != 1]
    axes.sort(key=lambda axis: -axis[1][0])
    merged: list[tuple[int, list[int]]] = []
    for n, s in axes:
        if merged and all(outer == n * inner for outer, inner in zip(merged[-1][1], s, strict=True)):
            merged[-1] = (merged[-1][0] * n, s)
        else:
            merged.append((n, s))
    sizes = tuple(n for n, _ in merged)
    return sizes, tuple(tuple(s[k] for _, s in merged) for k in range(len(strides)))


@dataclass(frozen=True)
class Rows:
    """The tensors of a call as rows along the last dimension, with a constant step between rows.

    Attributes
    ----------
    count, length : int
        The number of rows, and of entries in each.
    tensors : tuple of TensorMeta
        The call's tensor arguments without operands, then the output.
    steps : tuple of (int, int)
        For each tensor, the steps from row to row and from entry to entry; 0 where one element is repeated.

    Examples
    --------
    >>> rows = Rows.of(Problem.of(nxcore.ops.entropy.spec, (torch.ones(2, 3, 4),)))
    >>> rows.count, rows.length
    (6, 4)
    """

    count: int
    length: int
    tensors: tuple[TensorMeta, ...]
    steps: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, problem: Problem) -> Rows | None:
        """Describe a call; None where rows of a tensor have no constant step, or no output is requested."""
        named = zip(problem.spec.params, problem.args, strict=True)
        inputs = [a for p, a in named if p.kind == "tensor"]
        out = problem.outputs[0] if isinstance(problem.outputs, tuple) else problem.outputs
        if out is None:
            return None
        shape = max((m.shape for m in (out, *inputs)), key=len)
        lead = len(shape) - 1
        # In the output's order, since it repeats no element.
        sizes, merged = collapse(shape[:lead], *(m.strides[:lead] for m in (out, *inputs)))
        if len(sizes) > 1:
            return None
        outward = [s[0] if s else 0 for s in (*merged[1:], merged[0])]
        inward = [m.strides[lead] if m.ndim > lead else 0 for m in (*inputs, out)]
        count = sizes[0] if sizes else 1
        return cls(count, shape[lead], (*inputs, out), tuple(zip(outward, inward, strict=True)))
