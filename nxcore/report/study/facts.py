"""Figures computed from a study's record: the first place by shape, means, compile times, errors, memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nxcore.errors import InvalidInputError
from nxcore.store.encoding import decoded

OURS = "nxcore"
STRICT = "ieee32"
NOISY = 0.20
"""The A/A noise above which a shape has no places: it reflects the machine's load, not the entrants."""
Record = Mapping[str, Any]
Cell = Mapping[str, Any]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """An entrant on one shape, compared with the fastest strict one.

    Attributes
    ----------
    cell : mapping
        The shape's cell.
    row : mapping
        The entrant's row.
    best : mapping
        The row of the fastest strict entrant.
    behind : float
        Its time, in multiples of the fastest strict entrant's; below one for a less exact result alone.
    first : bool
        It is the fastest strict entrant.
    tied : bool
        It is as fast as that, up to the margin; the first is tied too.
    """

    cell: Cell
    row: Row
    best: Row
    behind: float
    first: bool
    tied: bool


def read(path: Path) -> Record:
    """Return the record of a file.

    Raises
    ------
    InvalidInputError
        If the file can't be read, or isn't a record of the study.
    """
    try:
        found: Record = decoded(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = f"can't read the record {path}: {error.strerror}"
        raise InvalidInputError(why, argument="from") from error
    except ValueError as error:
        raise InvalidInputError(f"{path} is not JSON: {error}", argument="from") from error
    if not isinstance(found, dict) or found.get("record") != "conv-study":
        raise InvalidInputError(f"{path} is not a record of nxcore bench conv-study", argument="from")
    try:
        labels(found), clear(found), wrong(found)
    except (KeyError, TypeError, AttributeError) as error:
        why = f"{path} is not a whole record of nxcore bench conv-study: {type(error).__name__}: {error}"
        raise InvalidInputError(why, argument="from") from error
    return found


def labels(record: Record) -> list[str]:
    """Return the entrants that were timed, in the record's order."""
    timed = {row["label"] for cell in record["cells"] for row in cell["rows"] if "total_us" in row}
    return [e["label"] for e in record["entrants"] if e["label"] in timed]


def clear(record: Record) -> list[Cell]:
    """Return the shapes in which the baseline differed little enough from itself."""
    return [cell for cell in record["cells"] if cell["noise"] <= NOISY]


def row_of(cell: Cell, label: str) -> Row | None:
    """Return an entrant's row if it was timed."""
    return next((r for r in cell["rows"] if r["label"] == label and "total_us" in r), None)


def places(record: Record, label: str, what: str = "total_us") -> list[Place]:
    """Return an entrant's places, a shape each, where it and a strict entrant were timed without much noise.

    Parameters
    ----------
    record : mapping
    label : str
    what : str
        The time to compare: ``total_us`` or ``device_us``.
    """
    found = []
    for cell in clear(record):
        rows = [r for r in cell["rows"] if r.get(what)]
        mine = next((r for r in rows if r["label"] == label), None)
        strict = [r for r in rows if r["precision"] == STRICT]
        if mine is None or not strict:
            continue
        best = min(strict, key=lambda r: r[what])
        behind = _behind(mine, best, what)
        tied = mine["precision"] == STRICT and behind <= 1 + cell["margin"]
        found.append(Place(cell, mine, best, behind, mine is best, tied))
    return found


def _behind(mine: Row, best: Row, what: str) -> float:
    """Return how many times as long a row takes: of total time, the median of paired blocks."""
    if what == "total_us" and mine.get("blocks_us") and best.get("blocks_us"):
        return statistics.median(
            float(a / b) for a, b in zip(mine["blocks_us"], best["blocks_us"], strict=True)
        )
    return float(mine[what] / best[what])


def leads(record: Record, label: str, what: str = "total_us") -> list[tuple[Cell, Row, float]]:
    """Return the shapes of ``places`` with the fastest other strict entrant, and how far that is behind.

    Returns
    -------
    list of tuple
        The cell, that entrant's row, and its time in multiples of ``label``'s: below one where it is ahead.
    """
    found = []
    for place in places(record, label, what):
        others = [r for r in place.cell["rows"] if r.get(what) and r["precision"] == STRICT]
        others = [r for r in others if r["label"] != label]
        if others:
            best = min(others, key=lambda r: r[what])
            found.append((place.cell, best, _behind(best, place.row, what)))
    return found


def firsts(record: Record, what: str = "total_us") -> dict[str, list[Cell]]:
    """Return entrant -> the shapes in which it is first; the one that is so most often comes first."""
    found = {label: [p.cell for p in places(record, label, what) if p.first] for label in labels(record)}
    return dict(sorted(((k, v) for k, v in found.items() if v), key=lambda item: -len(item[1])))


def mean_ratio(record: Record, label: str) -> float | None:
    """Return the geometric mean of how many times as fast as the baseline an entrant is."""
    ratios = [row["ratio"][0] for cell in record["cells"] if (row := row_of(cell, label))]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def median_of(record: Record, label: str, what: str) -> float | None:
    """Return the median over the shapes of a figure of an entrant's rows."""
    known = [row[what] for row in _rows(record, label) if row.get(what) is not None]
    return statistics.median(known) if known else None


def most_of(record: Record, label: str, what: str) -> float | None:
    """Return the largest of a figure of an entrant's rows."""
    return max((row[what] for row in _rows(record, label) if row.get(what) is not None), default=None)


def _rows(record: Record, label: str) -> Iterable[Row]:
    return (row for cell in record["cells"] for row in cell["rows"] if row["label"] == label)


def absent(record: Record) -> dict[str, str]:
    """Return entrant -> why it ran on no shape."""
    reasons = {e["label"]: e["absent"] for e in record["entrants"] if e["absent"]}
    timed = set(labels(record))
    for cell in record["cells"]:
        for row in cell["rows"]:
            if row["label"] not in timed and row.get("reason"):
                reasons.setdefault(row["label"], row["reason"])
    return reasons


def fails(record: Record) -> list[tuple[Cell, Row]]:
    """Return the rows that ran on other shapes, but raised or were wrong on theirs."""
    timed = set(labels(record))
    return [(c, r) for c in record["cells"] for r in c["rows"] if r.get("reason") and r["label"] in timed]


def wrong(record: Record) -> bool:
    """Return whether a result was less exact than its entrant promised."""
    return any(r.get("wrong") for cell in record["cells"] for r in cell["rows"])


def names(cells: Sequence[Cell]) -> str:
    """Return shapes as text."""
    return "; ".join(cell["name"] for cell in cells)
