"""Peers: whom else a comparison may name. Some are backends on request; FlagGems comes as a guest."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Collection
from typing import Any

from nxcore.bench.cells import Cell
from nxcore.bench.entrants import Guest
from nxcore.errors import FOREIGN, InvalidInputError, nearest

BACKENDS = {"eager": "torch", "compile": "inductor", "jax": "jax"}
"""Peer -> the backend that it is here."""

FLAGGEMS = "flaggems"
NAMES = (*BACKENDS, FLAGGEMS)


def require_peers(names: Collection[str]) -> None:
    """Refuse what is no peer.

    Raises
    ------
    InvalidInputError
        Naming the nearest.
    """
    for name in names:
        if name not in NAMES:
            raise InvalidInputError(
                f"peer must be one of {', '.join(NAMES)}, got {name!r}{nearest(name, NAMES)}", argument="peer"
            )


def requested(peers: Collection[str], known: Collection[str]) -> tuple[str, ...]:
    """Return the backends on request that ``peers`` name, of those that are installed."""
    return tuple(BACKENDS[p] for p in peers if p in BACKENDS and BACKENDS[p] in known)


def guests(peers: Collection[str], known: Collection[str], cell: Cell) -> list[Guest]:
    """Return the peers that take part in a cell as guests, those that can't with the reason."""
    found = [
        Guest(peer, None, f"no backend is named {BACKENDS[peer]!r} here; `nxcore backends` says why")
        for peer in peers
        if peer in BACKENDS and BACKENDS[peer] not in known
    ]
    return [*found, flaggems(cell)] if FLAGGEMS in peers else found


def flaggems(cell: Cell) -> Guest:
    """Return FlagGems' operator of the same meaning, or why there is none."""
    if cell.spec.name not in _FLAGGEMS:
        return Guest(FLAGGEMS, None, f"has no operator for {cell.spec.name}")
    if importlib.util.find_spec("flag_gems") is None:
        return Guest(FLAGGEMS, None, "flag_gems is not installed")
    if cell.device.type != "cuda":
        return Guest(FLAGGEMS, None, f"needs CUDA tensors, got {cell.device.type}")
    try:
        gems = importlib.import_module("flag_gems.ops")
        return Guest(FLAGGEMS, _FLAGGEMS[cell.spec.name](gems))
    except FOREIGN as error:
        return Guest(FLAGGEMS, None, f"flag_gems can't be used: {type(error).__name__}: {error}")


def _add(gems: Any) -> Callable[..., Any]:
    def add(x: Any, y: Any, alpha: Any, _out: Any) -> Any:  # no sample of a benchmark has an out
        return gems.add(x, y, alpha=alpha)

    return add


def _sum(gems: Any) -> Callable[..., Any]:
    def total(x: Any, dim: Any, keepdim: bool) -> Any:
        if dim is None:
            return gems.sum(x)
        return gems.sum_dim(x, [dim] if isinstance(dim, int) else list(dim), keepdim)

    return total


_FLAGGEMS: dict[str, Callable[[Any], Callable[..., Any]]] = {"add": _add, "sum": _sum}
