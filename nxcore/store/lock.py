"""Lock: a fixed winner for each problem, and for each pair of forward and backward, whatever was measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nxcore.errors import InvalidInputError
from nxcore.spec.problem import Problem
from nxcore.store import owner
from nxcore.store.files import Document, Store
from nxcore.store.transfer import FORMAT, gathered, read_json
from nxcore.store.wisdom import PATH, digest, is_pair, pair_key


class Lock:
    """A fixed winner for each problem: the same choice on every machine.

    Parameters
    ----------
    chosen : Mapping
        The digest of a problem -> the label of its kernel. The digest of a pair, with the kernels that were
        raced together -> their label, or ``torch``.
    held : bool
        Whether there is a lock, which may be empty.
    """

    def __init__(self, chosen: Mapping[str, str], *, held: bool = True) -> None:
        self.chosen, self.held = dict(chosen), held

    @classmethod
    def read(cls, path: Path) -> Lock:
        """Read a lock from a file.

        Raises
        ------
        InvalidInputError
            If it isn't a lock.
        """
        found = read_json(path)
        entries = found.get("locked")
        if found.get("format") != FORMAT or not isinstance(entries, list):
            raise InvalidInputError(f"{path} isn't a lock of format {FORMAT}")
        try:
            return cls({digest(e["problem"]): _label(e["kernel"]) for e in entries})
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(f"{path}: an entry is invalid: {error}") from None

    @classmethod
    def set_by(cls, path: Path | None, *, strict: bool) -> Lock:
        """Return the lock that a setting names.

        A file that is no lock, or that another user may have written, is none and a warning.

        Raises
        ------
        InvalidInputError
            If there is no such file; under ``strict`` also if it is no lock.
        """
        if path is None:
            return cls({}, held=False)
        try:
            return cls.read(path)
        except InvalidInputError as error:
            if strict or not os.path.lexists(path):
                raise
            owner.warn(str(path), f"NXCORE_LOCK: {error}; kernels are chosen without it")
            return cls({}, held=False)

    def label(self, key: Mapping[str, Any]) -> str:
        """Return the label of a problem's kernel; empty if the lock has no entry for it."""
        return self.chosen.get(digest(key), "")

    def pair(self, problem: Problem, mask: tuple[bool, ...], backward: Problem, kernels: str) -> str:
        """Return the winner of a differentiable call with these kernels: their label, or ``torch``.

        Empty if the lock has no entry for it.
        """
        return self.label(pair_key(problem, mask, backward) | {KERNELS: kernels}) if self.chosen else ""


def _label(kernel: Any) -> str:
    if not isinstance(kernel, str) or not kernel:
        raise TypeError(f"expected a kernel's label, got {kernel!r:.40}")
    return kernel


KERNELS = "kernels"
"""The name of the kernels in the key of a pair: its winner holds for these alone."""


def entry(key: Document, document: Document) -> tuple[Document, str]:
    """Return the key under which a lock holds the winner of a page, and that winner's label."""
    decision = document["decision"]
    if is_pair(key):
        kernels = next(c["label"] for c in decision["candidates"] if c["label"] != "torch")
        key = {name: value for name, value in key.items() if name != PATH} | {KERNELS: kernels}
    return key, decision["chosen"]


def locked(store: Store, environment: str) -> Document:
    """Return the winners in an environment's pages, as the document of a lock."""
    _, pages = gathered(store)
    held = [entry(*found) for (of, _), found in sorted(pages.items()) if of == environment]
    return {"format": FORMAT, "locked": [{"problem": key, "kernel": label} for key, label in held]}
