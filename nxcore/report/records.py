"""Lines of JSON -> runs and cells.

A line is a head, which starts a run, or a row of that run: a kernel, the A/A row or the choice. A cell is one
operator, sample and dtype on one device. Ratios are paired within a run, so rows of two runs are never mixed:
all rows of a cell are from the latest run that has it. Fields that a line lacks are absent. A line that can't
be read becomes a note with file and line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nxcore.errors import InvalidInputError

NUMBERS = (
    "device_us",
    "host_us",
    "call_us",
    "error",
    "share_of_floor",
    "gb_per_s",
    "tflop_per_s",
    "compile_s",
    "blocks",
    "p",
)
SHARED = ("bytes", "flops", "floor_us", "noise")  # properties of a cell, repeated in each of its rows
LEFT_OUT = ("device_blocks_us", "host_blocks_us")  # the data of medians and intervals
OWN = frozenset(
    {"record", "op", "sample", "label"}
)  # a line with one of these fields is meant as a head or row
UNKNOWN = "unknown device"


@dataclass(frozen=True, slots=True)
class Run:
    """A run: one head of a record.

    Attributes
    ----------
    file : str
        The file of the head.
    device : str
        Name of the device; of a CPU with its number of threads.
    head : dict
        All fields of the head: device, ceilings, versions, date, method and others.
    """

    file: str
    device: str
    head: Mapping[str, Any]

    @property
    def date(self) -> str:
        """The start of the run, as text that sorts; empty if the head has no date."""
        return str(self.head.get("date") or "")


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel in one cell; missing fields are None.

    Attributes
    ----------
    record : str
        ``row``; ``again`` for torch's second entry, the A/A row; ``choice`` for the chooser's winner.
    label, verdict, reason : str
        The kernel, its verdict, and why it wasn't timed.
    numbers : dict
        The fields of `NUMBERS` in the record.
    ratio : tuple of float, optional
        Times as fast as torch at its best: median, low, high.
    more : dict
        All other fields.
    """

    record: str
    label: str
    verdict: str
    reason: str
    numbers: Mapping[str, float]
    ratio: tuple[float, float, float] | None
    more: Mapping[str, Any]

    def get(self, name: str) -> float | None:
        """Return a number by name, or None."""
        return self.numbers.get(name)

    @property
    def native(self) -> bool:
        """Whether it is one of torch's idioms."""
        return is_native(self.label)


@dataclass(frozen=True, slots=True)
class Cell:
    """One operator, sample and dtype on one device, from the latest run that has it."""

    device: str
    op: str
    sample: str
    dtype: str
    run: int
    numbers: Mapping[str, float]
    rows: tuple[Row, ...]


@dataclass
class Records:
    """The content of a set of files.

    Attributes
    ----------
    runs : list of Run
        In the order of reading.
    cells : list of Cell
        Ordered by device, operator, size, sample and dtype.
    notes : list of str
        Lines that couldn't be read: file, line and reason.
    others : list of str
        JSON files of another kind: no line of them belongs to a benchmark record.
    replaced : int
        Number of cells that a later run measured again.
    """

    runs: list[Run] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    replaced: int = 0


def read(paths: Iterable[Path]) -> Records:
    """Read and join records.

    Parameters
    ----------
    paths : iterable of Path
        JSONL files, or folders: every ``*.jsonl`` in and below them.

    Returns
    -------
    Records
        The content of all lines that can be read.

    Raises
    ------
    InvalidInputError
        If a file is missing, or no file has a row.
    """
    paths = list(paths)
    found = Records()
    grouped: dict[tuple[str, str, str, str], dict[int, dict[str, Mapping[str, Any]]]] = {}
    for file in _files(paths):
        if _of_another_kind(file):
            found.others.append(str(file))
            continue
        start = len(found.runs)
        for number, line in _lines(file, found.notes):
            where = f"{file}:{number}"
            if line.get("record") == "head":
                found.runs.append(Run(str(file), _name(line.get("device")), line))
                continue
            reason = _refused(line)
            if reason:
                found.notes.append(f"{where}: {reason}")
                continue
            if len(found.runs) == start:
                found.notes.append(f"{where}: a row before any head; its device is unknown")
                found.runs.append(Run(str(file), UNKNOWN, {}))
            key = (found.runs[-1].device, line["op"], line["sample"], line["dtype"])
            grouped.setdefault(key, {}).setdefault(len(found.runs) - 1, {})[line["label"]] = line
    if not grouped:
        raise InvalidInputError(
            f"RECORDS must hold rows of `nxcore bench --record`, got none in "
            f"{', '.join(map(str, paths)) or 'no file'}"
            + "".join(f"\n  {n}" for n in found.notes[:5])
            + "".join(f"\n  {file} holds no such row" for file in found.others[:5]),
            argument="RECORDS",
        )
    for key, runs in grouped.items():
        latest = max(runs, key=lambda i: (found.runs[i].date, i))
        found.replaced += len(runs) - 1
        found.cells.append(_cell(key, latest, list(runs[latest].values())))
    found.cells.sort(key=lambda c: (c.device, c.op, c.numbers.get("bytes", 0.0), c.sample, c.dtype))
    return found


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob("*.jsonl"))
        elif path.is_file():
            yield path
        else:
            raise InvalidInputError(
                f"RECORDS must be files or folders, got {path}, which doesn't exist", argument="RECORDS"
            )


def _of_another_kind(file: Path) -> bool:
    """Return whether every line is a JSON object without a field of heads or rows."""
    notes: list[str] = []
    lines = list(_lines(file, notes))
    return not notes and bool(lines) and not any(OWN & line.keys() for _, line in lines)


def _lines(file: Path, notes: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    with file.open(encoding="utf-8", errors="replace") as stream:
        for number, text in enumerate(stream, 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except (ValueError, RecursionError) as error:
                notes.append(f"{file}:{number}: not JSON: {error}")
                continue
            if isinstance(line, dict):
                yield number, line
            else:
                notes.append(f"{file}:{number}: must be an object, got {type(line).__name__}")


def _refused(line: Mapping[str, Any]) -> str:
    """Return why a line isn't a row; "" if it is."""
    if line.get("record", "row") not in ("row", "again", "choice"):
        return f"record must be head, row, again or choice, got {line['record']!r}"
    missing = [n for n in ("op", "sample", "dtype", "label") if not isinstance(line.get(n), str)]
    return f"a row must have {', '.join(missing)} as text" if missing else ""


def _name(device: Any) -> str:
    if not isinstance(device, dict) or not device.get("name"):
        return UNKNOWN
    name, units = str(device["name"]), device.get("units")
    return f"{name}, {units} threads" if device.get("type") == "cpu" and units else name


def _cell(key: tuple[str, str, str, str], run: int, lines: list[Mapping[str, Any]]) -> Cell:
    device, op, sample, dtype = key
    shared = {k: v for line in reversed(lines) for k, v in _numbers(line, SHARED).items()}
    return Cell(device, op, sample, dtype, run, shared, tuple(map(_row, lines)))


def _row(line: Mapping[str, Any]) -> Row:
    named = ("record", "op", "sample", "dtype", "label", "verdict", "reason", "ratio")
    known = {*NUMBERS, *SHARED, *LEFT_OUT, *named}
    more = {k: v for k, v in line.items() if k not in known}
    verdict = str(line.get("verdict") or "")
    if is_native(line["label"]) and verdict == "BELOW_FLOOR":  # a record older than ``floor_unsure``
        verdict, more["floor_unsure"] = "BASE", True
    return Row(
        record=line.get("record", "row"),
        label=line["label"],
        verdict=verdict,
        reason=str(line.get("reason") or ""),
        numbers=_numbers(line, NUMBERS),
        ratio=ratio_of(line.get("ratio")),
        more=more,
    )


def _numbers(line: Mapping[str, Any], names: Iterable[str]) -> dict[str, float]:
    return {n: line[n] for n in names if is_number(line.get(n))}


def is_native(label: str) -> bool:
    """Return whether a label is of one of torch's idioms."""
    return label == "torch" or label.startswith("torch-")


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def ratio_of(value: Any) -> tuple[float, float, float] | None:
    """Return a ratio as median, low and high; None if the value isn't one."""
    if not isinstance(value, list) or len(value) != 3 or not all(is_number(v) and v > 0 for v in value):
        return None
    median, low, high = value
    return median, low, high
