"""Recorded: whether a problem of these shapes has a record or a choice, at the cost of a look-up.

A call whose shapes no problem had before has no record, whatever its strides, dtypes and static parameters
are; only where they had is the problem described. Pages of other environments and devices count too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch

from nxcore.choose.contenders import PROBLEMS
from nxcore.registry.registry import Registry
from nxcore.spec.problem import Problem, tensors_of
from nxcore.spec.spec import OpSpec
from nxcore.store.wisdom import Wisdom, environment

Shapes = tuple[tuple[int, ...], ...]


class Recorded:
    """The shapes of all recorded problems, and of those with a choice in this process.

    Parameters
    ----------
    wisdom : Wisdom
        Holds the records. The keys of its pages are read at the first call, those of CUDA at the first call
        after torch has initialised it.
    registry : Registry
        Knows the operators.
    """

    def __init__(self, wisdom: Wisdom, registry: Registry) -> None:
        self._wisdom, self._registry = wisdom, registry
        self._shapes: dict[str, dict[Shapes, None]] = {}
        self._unread = ["cpu", *(["cuda"] if torch.backends.cuda.is_built() else [])]
        self._lock = threading.Lock()

    def tables(self, spec: OpSpec) -> tuple[Mapping[Shapes, None], ...]:
        """Return the shapes of an operator, and of that which runs in place of it where a gradient is needed.

        They are added to as long as the process runs.
        """
        inner = spec.gradient.forward if spec.gradient else ""
        return tuple(self._shapes.setdefault(op, {}) for op in (spec.name, inner) if op)

    def holds(self, spec: OpSpec, args: tuple[Any, ...]) -> bool:
        """Return whether a problem of the shapes of ``args`` may be on record."""
        if self._unread:
            self._read()
        found = self._shapes.get(spec.name)
        # That operator runs in place of it where a gradient is needed.
        inner = self._shapes.get(spec.gradient.forward) if spec.gradient else None
        if not (found or inner):
            return False
        shapes = tuple([t.shape for t in tensors_of(args)])
        return shapes in (found or ()) or shapes in (inner or ())

    def won(self, op: str) -> bool:
        """Return whether a kernel is on record as faster than torch, for any problem of an operator here.

        >>> nxcore.session.default().chooser.recorded.won("no_operator")
        False
        """
        if self._unread:
            self._read()
        if not self._shapes.get(op):  # of most operators no page need be read
            return False
        kinds = ["cpu", *(["cuda"] if torch.cuda.is_initialized() else [])]
        shelves = (self._wisdom.shelf(environment(torch.device(kind)), op) for kind in kinds)
        decisions = (page.decision for shelf in shelves for _, page in shelf.values())
        return any(d[d.chosen].backend != "torch" for d in decisions)

    def add(self, problem: Problem) -> None:
        """Note a problem with a choice."""
        self._add(problem.op, tuple(t.shape for t in problem.tensors))

    def _add(self, op: str, shapes: Shapes) -> None:
        found = self._shapes.setdefault(op, {})
        found[shapes] = None
        if len(found) > PROBLEMS:
            del found[next(iter(found))]

    def _read(self) -> None:
        with self._lock:
            for kind in [k for k in self._unread if k == "cpu" or torch.cuda.is_initialized()]:
                for of in self._wisdom.keys(kind):
                    if spec := self._registry.known(str(of.get("op"))):
                        self._add(spec.name, _shapes(spec, of))
                self._unread.remove(kind)


def _shapes(spec: OpSpec, of: Mapping[str, Any]) -> Shapes:
    """Return the shapes in the key of a page, in the order of the signature."""
    values = [of.get(p.name) for p in spec.params]
    items = [item for v in values for item in (v if isinstance(v, list) else (v,))]
    shapes = (i["shape"] for i in items if isinstance(i, dict) and isinstance(i.get("shape"), list))
    return tuple(map(tuple, shapes))
