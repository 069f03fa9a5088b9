"""Rows: parts of a matrix's rows, whose gradients become the matrix's in three launches.

A row that is selected by itself has a gradient of the matrix's size, which is added to those of the others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.call.unusual import PLAIN
from nxcore.graphs.late import LATE
from nxcore.interop import internals

SELECT = "SelectBackward0"


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
    matrix: Any
    matrix, i = place
    key = id(matrix), matrix._version, begin, end  # it has no public name
    if key not in waiting.rows:
        waiting.rows[key] = matrix, _rows(matrix, begin, end)  # the matrix too: its id must stay its own
    found: Tensor = waiting.rows[key][1][i]
    return found


def _place(row: Any) -> tuple[Tensor, int] | None:
    """Return the matrix that a row was selected from, and the row's index; None if nobody can tell."""
    if type(row) not in PLAIN or not (torch.is_grad_enabled() and row.requires_grad and row.ndim == 1):
        return None
    if internals.transformed() or internals.in_forward_mode() or internals.tracing_state() is not None:
        return None
    matrix, node = row._base, row.grad_fn  # torch has no public name for either's origin
    if matrix is None or node is None or node.name() != SELECT or row._backward_hooks or row.retains_grad:
        return None
    if type(matrix) not in PLAIN or matrix.ndim != 2 or row.shape != matrix.shape[1:]:
        return None
    above = node.next_functions[0][0]
    same = above.variable is matrix if hasattr(above, "variable") else above is matrix.grad_fn
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
