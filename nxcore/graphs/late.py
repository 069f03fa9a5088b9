"""Late: updates of running statistics that wait until the end of a call, and are a few launches there.

A cell of a search network has a hundred norms, whose updates would be two launches each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn


class Late:
    """Updates that wait, each with the statistics of a batch.

    Buffers show no old value: whatever looks at those of a norm that waits makes all updates first.

    Parameters
    ----------
    module : torch.nn.Module, optional
        The module that is called.

    Attributes
    ----------
    rows : dict
        The rows of matrices, as ``nxcore.graphs.rows`` keeps them for the block.
    readers : dict
        Tensors that several operations read, as ``nxcore.graphs.branches`` keeps them for the block.
    sums : optional
        The weights whose gradients become one sum, as ``nxcore.graphs.together`` keeps them.
    norms : int
        The norms that were computed with the sum of an edge or a node.
    grouped, calls : int
        The separable convolutions that were computed together, and the calls that they took.
    alone : str
        Why some were not; empty if nothing prevented it.
    """

    def __init__(self, module: nn.Module | None = None) -> None:
        self.module = module
        self.sums: Any = None
        self.norms = self.grouped = self.calls = 0
        self.alone = ""
        self.rows: dict[Any, Any] = {}
        self.readers: dict[tuple[int, int], tuple[Tensor, list[Tensor]]] = {}
        self._waiting: list[tuple[nn.Module, dict[str, Any]]] = []
        self._running: dict[float, tuple[list[Tensor], list[Tensor]]] = {}
        self._counts: list[Tensor] = []

    @property
    def groups(self) -> str:
        """How many separable convolutions are computed together, and why others are not, as text."""
        said = f"; {self.grouped} separable convolutions take {self.calls} calls" if self.calls else ""
        return said + (f"; separable convolutions by themselves: {self.alone}" if self.alone else "")

    def add(self, norm: nn.Module, mean: Tensor, var: Tensor, momentum: float) -> None:
        """Update running mean and variance of ``norm`` by those of a batch, and its count of batches."""
        buffers: dict[str, Any] = norm._buffers  # torch has no public way as fast
        running = [buffers["running_mean"], buffers["running_var"]]  # the update that waits, if there is one
        own, batch = self._running.setdefault(momentum, ([], []))
        own += running
        batch += [mean, var]
        if (count := buffers.get("num_batches_tracked")) is not None:
            self._counts.append(count)
        held = vars(norm)["_buffers"]
        self._waiting.append((norm, held))
        vars(norm)["_buffers"] = _Watched(held, self)

    def end(self) -> None:
        """Make all updates that wait."""
        for norm, held in self._waiting:
            vars(norm)["_buffers"] = held
        running, counts = self._running, self._counts
        self._waiting, self._running, self._counts = [], {}, []
        with torch.no_grad():
            for momentum, (own, batch) in running.items():
                torch._foreach_lerp_([t.data for t in own], batch, momentum)  # unseen, as in ``track``
            if counts:
                torch._foreach_add_(counts, 1)


class _Watched(dict[str, Any]):
    """The buffers of a norm whose update waits: a look at one makes the update happen first."""

    def __init__(self, held: dict[str, Any], late: Late) -> None:
        super().__init__(held)
        self._held, self._late = held, late

    def _now(self) -> dict[str, Any]:
        self._late.end()
        return self._held

    def __getitem__(self, name: str) -> Any:
        return self._now()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._now()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._now()[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self._now().get(name, default)

    def items(self) -> Any:
        return self._now().items()

    def values(self) -> Any:
        return self._now().values()

    def pop(self, *args: Any) -> Any:
        return self._now().pop(*args)

    def copy(self) -> dict[str, Any]:
        return self._now().copy()

    def __reduce__(self) -> Any:
        return dict, (self.copy(),)


LATE: ContextVar[Late | None] = ContextVar("nxcore_late", default=None)


@contextlib.contextmanager
def late(module: nn.Module | None = None) -> Iterator[Late]:
    """Let updates of running statistics within the block wait for its end, or for that of one around it.

    ``module`` is the one that is called within the block.
    """
    if (around := LATE.get()) is not None:
        yield around
        return
    waiting = Late(module)
    token = LATE.set(waiting)
    try:
        yield waiting
    except BaseException:
        with contextlib.suppress(RuntimeError):  # a failed capture refuses all work
            waiting.end()
        raise
    finally:
        LATE.reset(token)
        if waiting.sums is not None:
            waiting.sums.end()
    waiting.end()
