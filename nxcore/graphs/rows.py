"""Rows: parts of a matrix's rows, whose gradients become the matrix's in three launches.

A row that is selected by itself has a gradient of the matrix's size, which is added to those of the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.call.unusual import PLAIN
from nxcore.graphs.late import LATE, Late
from nxcore.interop import internals

SELECT, UNBIND = "SelectBackward0", "UnbindBackward0"
VIEWS = (SELECT, UNBIND, "SliceBackward0", "AliasBackward0")
"""The views by which an element of a matrix is reached: their gradients are the element's."""


def span_of(row: Tensor, begin: int, end: int) -> Tensor:
    """Return ``row[begin:end]``; in a captured call with a gradient that is put together with other rows'.

    Parameters
    ----------
    row : Tensor
        Any vector; its gradient is the one that waits for others if it is a row of a matrix.
    begin, end : int
        Elements of the row.
    """
    waiting = None if torch.compiler.is_compiling() else LATE.get()
    if waiting is None or (place := _place(row)) is None:
        whole = begin == 0 and isinstance(row, Tensor) and row.shape == (end,)
        return row if whole else row[begin:end]
    return _part(waiting, *place, begin, end)


def vector_of(elements: Sequence[Tensor], kept: Sequence[int]) -> Tensor:
    """Return some of ``elements`` as a vector; in a captured call, as parts of the row that they are from.

    Parameters
    ----------
    elements : sequence of Tensor
        Tensors without dimensions. Each gets a gradient, which is 0 where it isn't kept.
    kept : sequence of int
        At least one index, in ascending order.
    """
    waiting = None if torch.compiler.is_compiling() else LATE.get()
    found = [] if waiting is None else [p for p in map(_element, elements) if p is not None]
    if waiting is None or len(found) < len(elements) or len({(id(m), i) for m, i, _ in found}) > 1:
        stacked = torch.stack(list(elements))
        if len(kept) == len(elements):
            return stacked
        return _joined([stacked[begin:end] for begin, end in _spans(kept)])
    matrix, row = found[0][:2]
    spans = _spans([found[k][2] for k in kept])
    return _joined([_part(waiting, matrix, row, begin, end) for begin, end in spans])


def _spans(columns: Sequence[int]) -> list[tuple[int, int]]:
    """Return the begin and the end of each sequence of consecutive numbers."""
    ends = [k for k in range(1, len(columns)) if columns[k] != columns[k - 1] + 1]
    return [(columns[a], columns[b - 1] + 1) for a, b in itertools.pairwise([0, *ends, len(columns)])]


def _joined(spans: Sequence[Tensor]) -> Tensor:
    return spans[0] if len(spans) == 1 else torch.cat(list(spans))


def _part(waiting: Late, matrix: Tensor, i: int, begin: int, end: int) -> Tensor:
    """Return elements of row ``i`` of a matrix, or of a vector."""
    if matrix.ndim == 1:
        return matrix if (begin, end) == (0, len(matrix)) else matrix[begin:end]
    key: Any = id(matrix), matrix._version, begin, end  # it has no public name
    if key not in waiting.rows:
        waiting.rows[key] = matrix, _rows(matrix, begin, end)  # the matrix too: its id must stay its own
    found: Tensor = waiting.rows[key][1][i]
    return found


def _element(element: Tensor) -> tuple[Tensor, int, int] | None:
    """Return the matrix or vector that an element was selected from, its row and its column."""
    if not _followed(element) or element.ndim:
        return None
    matrix, node = element._base, element.grad_fn  # torch has no public name for either's origin
    if type(matrix) not in PLAIN or matrix is None or matrix.ndim not in (1, 2) or min(matrix.stride()) <= 0:
        return None
    while node is not None and node.name() in VIEWS:
        node = node.next_functions[0][0]
    if node is None or not _is_of(node, matrix):
        return None
    offset, row = int(element.storage_offset() - matrix.storage_offset()), 0
    if matrix.ndim == 2:
        if matrix.stride(0) < matrix.stride(1) * matrix.shape[1]:  # not row by row
            return None
        row, offset = divmod(offset, matrix.stride(0))
    column, rest = divmod(offset, matrix.stride(-1))
    return None if rest else (matrix, row, column)


def _followed(tensor: Any) -> bool:
    """Return whether autograd, and nothing else, follows a tensor that has no hooks of its own."""
    if type(tensor) not in PLAIN or not (torch.is_grad_enabled() and tensor.requires_grad):
        return False
    if internals.transformed() or internals.in_forward_mode() or internals.tracing_state() is not None:
        return False
    return not (tensor._backward_hooks or tensor.retains_grad)


def _is_of(node: Any, matrix: Tensor) -> bool:
    """Return whether an autograd node is the one of ``matrix``."""
    return node.variable is matrix if hasattr(node, "variable") else node is matrix.grad_fn


def _place(row: Any) -> tuple[Tensor, int] | None:
    """Return the matrix that a row was selected from, and the row's index; None if it isn't known."""
    if not _followed(row) or row.ndim != 1:
        return None
    matrix, node = row._base, row.grad_fn  # torch has no public name for either's origin
    if matrix is None or node is None or node.name() not in (SELECT, UNBIND):
        return None
    if type(matrix) not in PLAIN or matrix.ndim != 2 or row.shape != matrix.shape[1:]:
        return None
    same = _is_of(node.next_functions[0][0], matrix)
    step, offset = matrix.stride(0), row.storage_offset() - matrix.storage_offset()
    if not same or step <= 0 or offset % step or row.stride(0) != matrix.stride(1):
        return None
    return matrix, offset // step


class _Rows(torch.autograd.Function):
    """Elements ``begin`` to ``end`` of each row of a matrix, with its memory."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, begin: int, end: int) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.pad = begin, matrix.shape[1] - end
        return tuple(row[begin:end].detach() for row in matrix.unbind(0))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        first = next((g for g in grads if g is not None), None)
        if first is None:
            return None, None, None
        none = first.new_zeros(first.shape) if any(g is None for g in grads) else first
        stacked = torch.stack([none if g is None else g for g in grads])
        return functional.pad(stacked, ctx.pad) if any(ctx.pad) else stacked, None, None


_rows: Any = _Rows.apply  # untyped in torch
