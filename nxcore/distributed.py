"""Ranks that choose alike: the measurements of one rank hold for all.

A choice never communicates, so no rank waits for another one in a call.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from nxcore import session
from nxcore.errors import InvalidInputError
from nxcore.registry.registry import Registry
from nxcore.session import Session
from nxcore.settings import require_policy
from nxcore.store import transfer
from nxcore.store.files import Document
from nxcore.store.lock import Lock, entry
from nxcore.store.wisdom import Pages, digest, environment, is_pair

LONGEST = dt.timedelta(days=1)
"""How long a rank that has finished waits for the ranks that are still measuring."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The wisdom, devices, kernels and lock of a rank.

    Attributes
    ----------
    environments, pages
        All its wisdom, as ``transfer.gathered`` gives it.
    here : tuple of str
        The environments of this rank's own devices.
    able : Mapping
        Operator -> labels of the kernels that its machine can run.
    locked : Mapping
        The winners that its lock already holds.
    """

    environments: Mapping[str, Document]
    pages: Pages
    here: tuple[str, ...]
    able: Mapping[str, frozenset[str]]
    locked: Mapping[str, str]


def agree(group: Any = None, *, otherwise: str = "frozen") -> int:
    """Make all ranks of a group choose as its first rank does, from now on.

    All ranks must call it. It merges their wisdom; where figures of a problem differ between ranks, those of
    the first rank count, otherwise the latest. From these it makes a lock that is the same on every rank. The
    lock leaves out a kernel that the machine of some rank can't run: torch serves its problems.

    Parameters
    ----------
    group : ProcessGroup, optional
        The default group where None. Under NCCL, each rank's current device must be its own.
    otherwise : str
        The policy for problems that no rank has met yet. ``frozen``: torch serves them, on every rank, until
        the ranks agree again. Under another policy each rank decides for itself.

    Returns
    -------
    int
        The number of problems that the lock holds; forward and backward together count as one more.

    Raises
    ------
    InvalidInputError
        If there is no process group, or this rank isn't in it.

    Examples
    --------
    >>> nxcore.distributed.agree()
    Traceback (most recent call last):
        ...
    nxcore.errors.InvalidInputError: agree needs a process group: ...
    """
    require_policy(otherwise, "otherwise")
    if not (distributed.is_available() and distributed.is_initialized()):
        raise InvalidInputError(
            "agree needs a process group: call torch.distributed.init_process_group first"
        )
    if distributed.get_rank(group) < 0:
        raise InvalidInputError("group must be one that this rank is in", argument="group")
    current = session.default()
    offers: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(offers, offer(current), group=group)
    environments, pages, lock = agreed(offers)
    transfer.imported(current.wisdom.store, environments, pages)
    current.hold(lock, otherwise)
    return len(lock.chosen)


def offer(of: Session) -> Offer:
    """Return the offer of a session."""
    devices = [torch.device("cpu")]
    if torch.cuda.is_available():
        devices.append(torch.device("cuda", torch.cuda.current_device()))
    here = tuple(digest(environment(d)) for d in devices)
    return Offer(*transfer.gathered(of.wisdom.store), here, _able(of.registry), dict(of.chooser.lock.chosen))


def agreed(offers: Sequence[Offer]) -> tuple[dict[str, Document], Pages, Lock]:
    """Return the merged wisdom, and the lock that it gives for the first offer's devices."""
    first = offers[0]
    environments, pages = transfer.merged((o.environments, o.pages) for o in offers)
    environments, pages = environments | dict(first.environments), pages | first.pages
    chosen = {}
    for (of, _), page in pages.items():
        if of in first.here:
            key, label = entry(*page)
            # A pair names its kernels: it holds nowhere if one of them can't run somewhere.
            able = is_pair(key) or all(label in o.able.get(key["op"], ()) for o in offers)
            chosen[digest(key)] = label if able else "torch"
    return environments, pages, Lock(chosen | dict(first.locked))


def _able(registry: Registry) -> dict[str, frozenset[str]]:
    return {
        op: frozenset(
            b.label(k)
            for b, k in registry.kernels(op)
            if (machine := registry.probe(b, k)) and not machine.simulated
        )
        for op in registry.ops
    }


@contextlib.contextmanager
def ranks() -> Iterator[tuple[int, int]]:
    """Yield rank and world size where torchrun started this process, each with a device; otherwise 0, 1."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield 0, 1
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if cuda else "gloo", timeout=LONGEST)
    try:
        yield distributed.get_rank(), world
    finally:
        distributed.destroy_process_group()


def gathered(value: Any) -> list[Any]:
    """Return ``value`` of every rank, in rank order."""
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values
