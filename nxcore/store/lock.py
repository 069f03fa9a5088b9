"""Lock: a fixed winner for each problem, whatever was measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nxcore.errors import InvalidInputError
from nxcore.store.files import Document, Store
from nxcore.store.transfer import FORMAT, gathered, read_json
from nxcore.store.wisdom import digest, is_pair


class Lock:
    """A fixed winner for each problem: the same choice on every machine.

    Parameters
    ----------
    chosen : Mapping
        The digest of a problem -> the label of its kernel.
    """

    def __init__(self, chosen: Mapping[str, str]) -> None:
        self.chosen = dict(chosen)

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
            return cls({digest(e["problem"]): str(e["kernel"]) for e in entries})
        except (KeyError, TypeError) as error:
            raise InvalidInputError(f"{path}: an entry is invalid: {error}") from None

    def label(self, key: Mapping[str, Any]) -> str:
        """Return the label of a problem's kernel; empty if the lock has no entry for it."""
        return self.chosen.get(digest(key), "")


def locked(store: Store, environment: str) -> Document:
    """Return the winners in an environment's pages, as the document of a lock."""
    _, pages = gathered(store)
    entries = [
        {"problem": key, "kernel": document["decision"]["chosen"]}
        for (of, _), (key, document) in sorted(pages.items())
        if of == environment and not is_pair(key)
    ]
    return {"format": FORMAT, "locked": entries}
