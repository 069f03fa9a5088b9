"""Order: of recorded problems those first that matter most, so that a budget that ends early covers them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from nxcore.offline.ahead import Cell, differentiated
from nxcore.registry.registry import Registry
from nxcore.spec.problem import Problem

LAUNCH = 16 << 20
"""The bytes that memory moves while a call is launched."""


def by_worth(registry: Registry, traces: Iterable[Sequence[Cell]]) -> list[Cell]:
    """Return the cells of several recordings, each problem once, by their share of the work.

    A problem's share of a recording is that of its calls, weighed by the bytes of their tensors and what a
    launch takes; problems of several recordings have the sum. A call and its gradient stay together, the
    gradient first. Cells without a problem are last, in their order.

    Parameters
    ----------
    registry : Registry
    traces : iterable of sequence of Cell
    """
    cells: dict[tuple[Problem, bool], Cell] = {}
    shares: dict[tuple[Problem, bool], float] = {}
    rest: list[Cell] = []
    for trace in traces:
        whole = sum(map(_work, trace))
        for cell in trace:
            if cell.problem is None:
                rest.append(cell)
                continue
            name = cell.problem, cell.deterministic
            shares[name] = shares.get(name, 0.0) + _work(cell) / whole
            earlier = cells.get(name)
            cells[name] = replace(cell, calls=cell.calls + (earlier.calls if earlier else 0))
    together: dict[Hashable, float] = {}
    for name, cell in cells.items():
        layer = _layer(registry, cell)
        together[layer] = together.get(layer, 0.0) + shares[name]

    def rank(of: tuple[tuple[Problem, bool], Cell]) -> tuple[float, str, bool, float]:
        name, cell = of
        layer = _layer(registry, cell)
        forward = differentiated(registry, cell.spec) is cell.spec
        return -together[layer], str(layer), forward, -shares[name]

    return [cell for _, cell in sorted(cells.items(), key=rank)] + rest


def _work(cell: Cell) -> float:
    if cell.problem is None:
        return 0.0
    return max(cell.calls, 1) * float(LAUNCH + sum(t.nbytes for t in cell.problem.tensors))


def _layer(registry: Registry, cell: Cell) -> Hashable:
    """Return what a call and its gradient have in common: operator, dtype and the largest tensor's size."""
    if cell.problem is None:
        return ()
    of = differentiated(registry, cell.spec) or cell.spec
    return of.name, str(cell.problem.dtype), max((t.numel() for t in cell.problem.tensors), default=0)
