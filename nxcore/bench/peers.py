"""Peers: backends of other libraries to compare with."""

from __future__ import annotations

from collections.abc import Collection

from nxcore.bench.entrants import Guest
from nxcore.errors import InvalidInputError, one_of

BACKENDS = {"eager": "torch", "compile": "inductor", "jax": "jax", "flaggems": "flaggems"}
"""Peer -> its backend."""


def require_peers(names: Collection[str]) -> None:
    """Check that all names are peers.

    Raises
    ------
    InvalidInputError
        If one isn't. The message suggests the nearest.
    """
    for name in names:
        if name not in BACKENDS:
            raise InvalidInputError(one_of("peer", name, BACKENDS), argument="peer")


def requested(peers: Collection[str], known: Collection[str]) -> tuple[str, ...]:
    """Return the installed backends that ``peers`` names."""
    return tuple(BACKENDS[p] for p in peers if BACKENDS[p] in known)


def absent(peers: Collection[str], known: Collection[str]) -> list[Guest]:
    """Return the peers that aren't installed, each with a refusal that says so."""
    return [
        Guest(peer, None, f"there is no backend {BACKENDS[peer]!r} here; see `nxcore backends`")
        for peer in peers
        if BACKENDS[peer] not in known
    ]
