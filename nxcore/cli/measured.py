"""What ``nxcore tune`` and ``nxcore wisdom`` show: problems that were measured, and who was chosen."""

from __future__ import annotations

import time
from typing import Any

from rich.markup import escape

from nxcore.cli.render import _console, _ratio, _table, show
from nxcore.timing import duration


def tune(found: dict[str, Any]) -> None:
    """Print what was measured, and in one line what wasn't."""
    table = _table("problem", "tensors", "chosen", "times as fast as torch", "was")
    rows = found["rows"]
    for row in rows:
        if row["status"] == "known":
            continue
        served = row["status"] != "left out"
        table.add_row(
            escape(f"{row['op']} {row['name']}"),
            escape(_shapes(row["problem"])),
            escape(row["chosen"]),
            _ratio(row["ratio"]) if served and row["ratio"] else escape(row["reason"]),
            escape(row["was"]),
        )
    console = _console()
    if table.row_count:
        show(table)
    for row in (r for r in rows if r["status"] == "unclear"):
        console.print(
            f"[yellow]unclear[/yellow] {escape(row['op'])} {escape(row['name'])}: {escape(row['reason'])}"
        )
    counts = {
        status: sum(r["status"] == status for r in rows)
        for status in dict.fromkeys(r["status"] for r in rows)
    }
    told = [f"{n} {status}" for status, n in counts.items()]
    if found["stopped"]:
        why = "interrupted" if found["stopped"] == "interrupted" else "the budget is spent"
        told.append(f"{found['left']} left: {why}; the same command goes on from here")
    console.print(", ".join(told) or "nothing to measure")


def tiles(found: list[dict[str, Any]]) -> None:
    """Print the tiles of each sample, the one that the kernel takes first."""
    console = _console()
    for entry in found:
        if entry["reason"]:
            console.print(f"{escape(entry['sample'])}: {escape(entry['reason'])}")
            continue
        columns = ("tile", "median", "of floor", "times as fast as chosen")
        table = _table(*columns, title=entry["sample"], right=("median", "of floor"))
        for row in entry["rows"]:
            timed = row["device_us"] is not None
            table.add_row(
                escape(row["tile"]),
                duration(row["device_us"]) if timed else "",
                f"{row['share']:.0%}" if timed else "",
                _ratio(row["ratio"]) if timed else escape(row["reason"]),
            )
        show(table)


def wisdom(rows: list[dict[str, Any]]) -> None:
    """Print what was measured."""
    console = _console()
    for device in dict.fromkeys(row["device"] for row in rows):
        table = _table(
            "operator", "problem", "chosen", "why", "policy", "days", title=device, right=("days",)
        )
        for row in (r for r in rows if r["device"] == device):
            days = f"{(time.time() - row['date']) / 86_400:.0f}"
            cells = (
                row["problem"]["op"],
                _shapes(row["problem"]),
                row["chosen"],
                row["reason"],
                row["policy"],
                days,
            )
            table.add_row(*map(escape, cells))
        show(table)
    if not rows:
        console.print("nothing was measured yet")


def _shapes(problem: dict[str, Any]) -> str:
    """Return the tensors of a problem as text: element type and shape of each, and how often."""
    values = [v for value in problem.values() for v in (value if isinstance(value, list) else [value])]
    found = [f"{m['dtype']}{m['shape']}" for m in values if isinstance(m, dict) and "shape" in m]
    counts = {text: found.count(text) for text in found}
    return ", ".join(f"{n} x {text}" if n > 1 else text for text, n in counts.items())
