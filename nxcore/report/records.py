"""Lines of JSON -> runs and cells.

A line is a head, which opens a run, or a row of that run: a kernel, the A/A row, or the choice. A cell is one
operator, sample and element type on one device. Ratios are paired within a run, so that rows of two runs are
never mixed: the latest run that has a cell has all of it. What a line lacks is absent; what can't be read is
a note with file and line.
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
SHARED = ("bytes", "flops", "floor_us", "noise")  # of a cell, and written in each of its rows
LEFT_OUT = ("device_blocks_us", "host_blocks_us")  # what medians and intervals were taken from
OWN = frozenset(
    {"record", "op", "sample", "label"}
)  # a line that has one of these was meant as a head or row
UNKNOWN = "unknown device"


@dataclass(frozen=True, slots=True)
class Run:
    """What stood in one head.

    Attributes
    ----------
    file : str
        Where it was read.
    device : str
        The device's name; a CPU's with its threads.
    head : dict
        As it was written: device, ceilings, versions, date, method and whatever else there was.
    """

    file: str
    device: str
    head: Mapping[str, Any]

    @property
    def date(self) -> str:
        """When it began, as text that sorts; empty where the head doesn't say."""
        return str(self.head.get("date") or "")


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel in one cell; what wasn't recorded is None.

    Attributes
    ----------
    record : str
        ``row``; ``again`` for torch's second entry, the A/A row; ``choice`` for what the chooser takes.
    label, verdict, reason : str
        Which kernel, how it ended, and why it wasn't timed.
    numbers : dict
        Those of `NUMBERS` that were recorded.
    ratio : tuple of float, optional
        How many times as fast as torch at its best: median, low, high.
    more : dict
        All other fields as they were written.
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
        """It is torch's own, in one idiom or another."""
        return is_native(self.label)


@dataclass(frozen=True, slots=True)
class Cell:
    """One operator, sample and element type on one device, of the latest run that has it."""

    device: str
    op: str
    sample: str
    dtype: str
    run: int
    numbers: Mapping[str, float]
    rows: tuple[Row, ...]


@dataclass
class Records:
    """What a set of files holds.

    Attributes
    ----------
    runs : list of Run
        In the order of reading.
    cells : list of Cell
        By device, operator, size, sample and element type.
    notes : list of str
        What couldn't be read: file, line and why.
    others : list of str
        Files of JSON that hold no line of such a record: they are of another kind, and left out whole.
    replaced : int
        How many cells a later run measured again.
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
        JSONL files; of a folder, every ``*.jsonl`` in it and below.

    Returns
    -------
    Records
        Every line that could be read.

    Raises
    ------
    InvalidInputError
        If there is no such file, or no row in any of them.
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
            f"RECORDS must hold rows as `nxcore bench --record` writes them, got none in "
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
                f"RECORDS must be files or folders, got {path}, which isn't there", argument="RECORDS"
            )


def _of_another_kind(file: Path) -> bool:
    """Tell whether every line is a JSON object and none has a field that a head or a row is known by."""
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
    """Return why a line is no row, or nothing."""
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
    if is_native(line["label"]) and verdict == "BELOW_FLOOR":  # a record from before the floor was doubted
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
    """Tell whether a label is torch's own, in one idiom or another."""
    return label == "torch" or label.startswith("torch-")


def is_number(value: Any) -> bool:
    """Tell whether a value of JSON is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def ratio_of(value: Any) -> tuple[float, float, float] | None:
    """Return a ratio as its median, low and high, or None if it is anything else."""
    if not isinstance(value, list) or len(value) != 3 or not all(is_number(v) and v > 0 for v in value):
        return None
    median, low, high = value
    return median, low, high
