"""Lines: a file of the package, whose entries are parsed where they are needed.

It has an entry a line. A process wants a few of thousands, and all of them as objects would be looked at by
each collection of Python's garbage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from nxcore.store.encoding import DECODER, decoded, encoded
from nxcore.store.files import Document

FORMAT, ENTRIES = '{"format":', '"entries":['
"""How the first line begins, and how a line ends after which an environment's entries follow."""

KEY, PAGE = '{"key":', ',"page":'
"""The text before the key of an entry, and before its page."""


class Line(Sequence[Document]):
    """An entry: its key and its page, empty where the text isn't JSON."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __len__(self) -> int:
        return 2

    @overload
    def __getitem__(self, place: int) -> Document: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Document]: ...
    def __getitem__(self, place: Any) -> Any:
        return self.key if place == 0 else tuple(self)[place]

    def __iter__(self) -> Iterator[Document]:
        try:
            found = decoded(self._text)
            key, page = found["key"], found["page"]
        except (ValueError, RecursionError, KeyError, TypeError):
            key, page = {}, {}
        yield from (key, page)

    @property
    def key(self) -> Document:
        """The key alone, without the page."""
        found, _ = DECODER.raw_decode(self._text, len(KEY))
        return dict(found)

    def names(self, op: str) -> bool:
        """Return whether the text names an operator: that may be in the key."""
        return f'"op":{encoded(op)}' in self._text


def lines(text: str) -> list[tuple[Document, list[tuple[Document, Line]]]] | None:
    """Return the facts of each environment, with the keys and entries in it; None for another layout."""
    first, *rest = text.rstrip("\n").split("\n")
    found: list[tuple[Document, list[tuple[Document, Line]]]] = []
    try:
        if not first.startswith(FORMAT) or "format" not in decoded(first + "]}"):
            return None
        for line in rest:
            if line.startswith(KEY) and found:
                key, end = DECODER.raw_decode(line, len(KEY))
                if not line.startswith(PAGE, end) or not isinstance(key, dict):
                    return None
                found[-1][1].append((key, Line(line.rstrip(","))))
            elif line.endswith(ENTRIES):
                found.append((dict(decoded(line + "]}")["facts"]), []))
            elif line.strip("]},"):
                return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found
