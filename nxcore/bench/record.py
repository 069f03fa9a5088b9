"""A record on disk: JSON lines, a head and then rows; a run that was broken off goes on where it ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nxcore.bench.row import Row
from nxcore.errors import InvalidInputError

Key = tuple[str, str, str]


def key_of(row: dict[str, Any]) -> Key:
    """Return the cell of a row."""
    return row["op"], row["sample"], row["dtype"]


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a record; the last is left out if it was broken off.

    Raises
    ------
    InvalidInputError
        If there is no such file, or it holds something else.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidInputError(
            f"no record to read at {path}: {error.strerror}", argument="record"
        ) from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            known = entry["record"]
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):
                break
            raise InvalidInputError(
                f"{path}, line {number}, is no line of a record", argument="record"
            ) from error
        if known:
            found.append(entry)
    return found


def rows(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a record, the last where a cell was measured again."""
    latest = {(*key_of(r), r["label"]): r for r in lines if r["record"] != "head"}
    return list(latest.values())


@dataclass
class RecordWriter:
    """Appends to a record, a cell at a time.

    Attributes
    ----------
    path : Path
    head : dict
        Of this run.
    done : dict
        Cell -> its rows, of what was measured under a head of the same fingerprint.
    """

    path: Path
    head: dict[str, Any]

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.done: dict[Key, list[dict[str, Any]]] = {}
        current = None
        if self.path.exists():
            lines = read(self.path)
            self._drop_what_was_broken_off(len(lines))
            for line in lines:
                if line["record"] == "head":
                    current = line.get("fingerprint")
                elif current == self.head["fingerprint"]:
                    self.done.setdefault(key_of(line), []).append(line)
        if current != self.head["fingerprint"]:
            self._append([self.head])

    def write(self, measured: Sequence[Row]) -> None:
        """Append the rows of a cell, all at once."""
        self._append([row.to_dict() for row in measured])

    def _append(self, entries: Sequence[dict[str, Any]]) -> None:
        text = "".join(json.dumps(entry, default=str) + "\n" for entry in entries)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(text)

    def _drop_what_was_broken_off(self, whole: int) -> None:
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        if len(lines) != whole or (lines and not lines[-1].endswith("\n")):
            self.path.write_text(
                "".join(line.rstrip("\n") + "\n" for line in lines[:whole]), encoding="utf-8"
            )
