"""Peers: other libraries to compare with. Some are backends on request; FlagGems is a guest."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Collection
from typing import Any

from nxcore.bench.cells import Cell
from nxcore.bench.entrants import Guest
from nxcore.errors import FOREIGN, InvalidInputError, one_of

BACKENDS = {"eager": "torch", "compile": "inductor", "jax": "jax"}
"""Peer -> its backend."""

FLAGGEMS = "flaggems"
NAMES = (*BACKENDS, FLAGGEMS)


def require_peers(names: Collection[str]) -> None:
    """Check that all names are peers.

    Raises
    ------
    InvalidInputError
        If one isn't. The message suggests the nearest.
    """
    for name in names:
        if name not in NAMES:
            raise InvalidInputError(one_of("peer", name, NAMES), argument="peer")


def requested(peers: Collection[str], known: Collection[str]) -> tuple[str, ...]:
    """Return the installed backends on request that ``peers`` names."""
    return tuple(BACKENDS[p] for p in peers if p in BACKENDS and BACKENDS[p] in known)


def guests(peers: Collection[str], known: Collection[str], cell: Cell) -> list[Guest]:
    """Return the peers that are guests of a cell, with a refusal if they can't run."""
    found = [
        Guest(peer, None, f"there is no backend {BACKENDS[peer]!r} here; see `nxcore backends`")
        for peer in peers
        if peer in BACKENDS and BACKENDS[peer] not in known
    ]
    return [*found, flaggems(cell)] if FLAGGEMS in peers else found


def flaggems(cell: Cell) -> Guest:
    """Return FlagGems' equivalent of the operator, or the reason why there is none."""
    if cell.spec.name not in _FLAGGEMS:
        return Guest(FLAGGEMS, None, f"FlagGems has no operator for {cell.spec.name}")
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
    def add(x: Any, y: Any, alpha: Any, _out: Any) -> Any:  # no benchmark sample has an out
        return gems.add(x, y, alpha=alpha)

    return add


def _sum(gems: Any) -> Callable[..., Any]:
    def total(x: Any, dim: Any, keepdim: bool) -> Any:
        if dim is None:
            return gems.sum(x)
        return gems.sum_dim(x, [dim] if isinstance(dim, int) else list(dim), keepdim)

    return total


_FLAGGEMS: dict[str, Callable[[Any], Callable[..., Any]]] = {"add": _add, "sum": _sum}
