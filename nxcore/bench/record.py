"""A record on disk: JSON lines, a head and then rows. An interrupted run continues where it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nxcore.bench.row import Row
from nxcore.errors import InvalidInputError
from nxcore.store.encoding import decoded, encoded

Key = tuple[str, str, str]


def key_of(row: dict[str, Any]) -> Key:
    """Return the cell of a row."""
    return row["op"], row["sample"], row["dtype"]


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a record, without an incomplete last line.

    Raises
    ------
    InvalidInputError
        If the file can't be read, or isn't a record.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidInputError(
            f"can't read the record {path}: {error.strerror}", argument="record"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path} isn't a record, nor text: {error}", argument="record") from error
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            entry = decoded(line)
        except ValueError as error:
            if found and number == len(lines):
                break
            raise _unknown(path, number) from error
        if not _is_entry(entry):
            raise _unknown(path, number)
        found.append(entry)
    return found


def _unknown(path: Path, number: int) -> InvalidInputError:
    return InvalidInputError(f"{path}, line {number}, is not a line of a record", argument="record")


def _is_entry(line: Any) -> bool:
    """Return whether a line is a head or a row."""
    if not isinstance(line, dict):
        return False
    if line.get("record") == "head":
        return isinstance(line.get("device"), dict)
    known = all(isinstance(line.get(name), str) for name in ("op", "sample", "dtype", "label", "verdict"))
    return known and line.get("record") in ("row", "again", "choice")


def rows(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a record; the last ones of a cell that was measured again."""
    latest = {(*key_of(r), r["label"]): r for r in lines if r["record"] != "head"}
    return list(latest.values())


@dataclass
class RecordWriter:
    """Appends to a record, one cell at a time.

    Attributes
    ----------
    path : Path
    head : dict
        The head of this run.
    done : dict
        Cell -> its rows, for cells that were measured under a head of the same fingerprint.
    """

    path: Path
    head: dict[str, Any]

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.done: dict[Key, list[dict[str, Any]]] = {}
        current = None
        if self.path.exists():
            lines = read(self.path)
            self._drop_incomplete_line(len(lines))
            for line in lines:
                if line["record"] == "head":
                    current = line.get("fingerprint")
                elif current == self.head["fingerprint"]:
                    self.done.setdefault(key_of(line), []).append(line)
        if current != self.head["fingerprint"]:
            self._append([self.head])

    def write(self, measured: Sequence[Row]) -> None:
        """Append the rows of a cell in one write."""
        self._append([row.to_dict() for row in measured])

    def _append(self, entries: Sequence[dict[str, Any]]) -> None:
        text = "".join(encoded(entry, default=str) + "\n" for entry in entries)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(text)

    def _drop_incomplete_line(self, whole: int) -> None:
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        if len(lines) != whole or (lines and not lines[-1].endswith("\n")):
            self.path.write_text(
                "".join(line.rstrip("\n") + "\n" for line in lines[:whole]), encoding="utf-8"
            )
