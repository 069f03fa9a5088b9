"""A study's record -> Markdown: who is first, and all figures. A shape's places are by paired blocks."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

OURS = "nxcore"
STRICT = "ieee32"
NOISY = 0.20
"""The A/A noise above which a shape has no places: it reflects the machine's load, not the entrants."""
WAYS = {"a call": "total_us", "kernels": "device_us"}
Record = Mapping[str, Any]
Row = Mapping[str, Any]


def read(path: Path) -> Record:
    """Return the record of a file."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or found.get("record") != "conv-study":
        raise SystemExit(f"{path} is no record of the convolution study")
    return found


def labels(record: Record) -> list[str]:
    """Return the entrants that were timed, in the record's order."""
    timed = {row["label"] for cell in record["cells"] for row in cell["rows"] if "total_us" in row}
    return [e["label"] for e in record["entrants"] if e["label"] in timed]


def wrong(record: Record) -> bool:
    """Return whether a result was less exact than its entrant promised."""
    return any(row.get("wrong") for cell in record["cells"] for row in cell["rows"])


def leads(record: Record, what: str = "total_us") -> dict[tuple[int, ...], tuple[str, float]]:
    """Return shape -> the fastest other strict entrant, and its time in multiples of nxcore's.

    Below one it is ahead of nxcore. Shapes with much noise are left out.
    """
    found = {}
    for cell in record["cells"]:
        strict = {r["label"]: r for r in cell["rows"] if r.get(what) and r["precision"] == STRICT}
        ours = strict.pop(OURS, None)
        if ours is None or not strict or cell["noise"] > NOISY:
            continue
        best = min(strict.values(), key=lambda row: row[what])
        found[tuple(cell["shape"])] = best["label"], _behind(best, ours, what)
    return found


def _behind(mine: Row, best: Row, what: str) -> float:
    """Return how many times as long a row takes: of total time, the median of paired blocks."""
    if what == "total_us" and mine.get("blocks_us") and best.get("blocks_us"):
        return statistics.median(
            float(a / b) for a, b in zip(mine["blocks_us"], best["blocks_us"], strict=True)
        )
    return float(mine[what] / best[what])


def beside(records: Mapping[str, Sequence[Record]]) -> list[str]:
    """Return a table: how far the fastest other strict entrant is behind nxcore, by shape and machine.

    Parameters
    ----------
    records : mapping
        Machine -> its records; a shape's cell is of the last one that has it.
    """
    columns: dict[str, dict[tuple[int, ...], str]] = {}
    names = {}
    for machine, found in records.items():
        for record in found:
            names |= {tuple(cell["shape"]): (not cell["same"], cell["name"]) for cell in record["cells"]}
            for way, what in WAYS.items():
                if way == "kernels" and record["head"]["device"]["type"] == "cpu":
                    continue
                column = columns.setdefault(f"{machine}: {way}", {})
                column |= {
                    shape: f"{ratio:.2f} {label}" for shape, (label, ratio) in leads(record, what).items()
                }
    rows = (
        [names[shape][1], *(column.get(shape, "not measured") for column in columns.values())]
        for shape in sorted(names, key=lambda shape: (names[shape][0], shape))
    )
    return _table(("shape", *columns), rows)


def markdown(record: Record) -> str:
    """Return a record's page."""
    head, of, known = record["head"], record["head"]["convolution"], labels(record)
    versions = ", ".join(f"{k} {v}" for k, v in head["versions"].items())
    lines = [
        f"# One small convolution by several toolkits on {head['device']['name']}",
        "",
        f"Batch {of['batch']}, {of['channels']} channels to {of['filters']}, {of['dtype']}. {head['method']}",
        f"Measured {head['date']} in {head['seconds']:.0f} s, with {versions}.",
        "",
        *(f"- {sentence}" for sentence in sentences(record)),
        "",
        f"## Times as fast as {record['baseline']}",
        "",
        *_table(("shape", *known), ([c["name"], *(_ratio(c, k) for k in known)] for c in record["cells"])),
        "",
        "## Time of a call, us: total, host, device",
        "",
        *_table(("shape", *known), ([c["name"], *(_times(c, k) for k in known)] for c in record["cells"])),
        "",
        "## First calls and errors",
        "",
    ]
    columns = ("entrant", "first call, cold", "warm disk cache", "largest error")
    lines += _table(columns, (_entrant(record, label) for label in known))
    return "\n".join(lines)


def sentences(record: Record) -> list[str]:
    """Return who is first, what a toolkit's start takes, and what is absent and why."""
    found = []
    for way, what in WAYS.items():
        ratios = [ratio for _, ratio in leads(record, what).values()]
        if ratios and (way == "a call" or record["head"]["device"]["type"] == "cuda"):
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            found.append(
                f"By {way} nxcore is first in {sum(ratio >= 1 for ratio in ratios)} of {len(ratios)} shapes; "
                f"the fastest other strict entrant takes {min(ratios):.2f} to {max(ratios):.2f} times its "
                f"time, {mean:.2f} in the geometric mean."
            )
    noises = [cell["noise"] for cell in record["cells"]]
    if noises:
        found.append(f"The baseline differs from itself by up to {max(noises):.1%}.")
    starts = [f"{name} {seconds:.1f} s" for name, seconds in record["starts"].items()]
    found += [f"Starts of a process, by disk cache: {', '.join(starts)}."] if starts else []
    found += [f"{e['label']} is absent: {e['absent']}." for e in record["entrants"] if e["absent"]]
    for cell in record["cells"]:
        for row in cell["rows"]:
            if row.get("reason"):
                found.append(f"{row['label']} has no time at {cell['name']}: {row['reason']}.")
    return found + [f"{note[:1].upper()}{note[1:]}." for note in record["notes"]]


def _row(cell: Row, label: str) -> Row:
    return next((r for r in cell["rows"] if r["label"] == label and "total_us" in r), {})


def _ratio(cell: Row, label: str) -> str:
    ratio = _row(cell, label).get("ratio")
    return f"{ratio[0]:.2f} [{ratio[1]:.2f}, {ratio[2]:.2f}]" if ratio else ""


def _times(cell: Row, label: str) -> str:
    row = _row(cell, label)
    times = [row.get(what) for what in ("total_us", "host_us", "device_us")] if row else []
    return ", ".join("?" if t is None else f"{t:.1f}" for t in times)


def _entrant(record: Record, label: str) -> list[str]:
    rows = [row for cell in record["cells"] if (row := _row(cell, label))]
    firsts = [[r[f"{state}_s"] for r in rows if r.get(f"{state}_s")] for state in ("cold", "warm")]
    return [
        label,
        *(f"{statistics.median(seconds):.3f} s" if seconds else "" for seconds in firsts),
        f"{max(row['error'] for row in rows):.1e}",
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]
