"""What ``nxcore bench`` shows: in a terminal a table that grows, in a pipe a line a row; then the summary."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from nxcore.bench.row import BAD
from nxcore.bench.summary import summary
from nxcore.cli.render import _console, _error, _ratio, _table, progress
from nxcore.measure.timing import duration

Rows = Sequence[dict[str, Any]]
Watched = tuple[Callable[[str, int, int], None], Callable[[Rows], None]]

COLOUR = {"FAST": "green", "SLOW": "yellow", "WRONG": "red", "BELOW_FLOOR": "red", "DECLINED": "dim"}
WORST = 20
"""How many changed cells are listed before the rest is counted."""


@contextlib.contextmanager
def watching(total: int, *, quiet: bool = False) -> Iterator[Watched]:
    """Show how far a run is; yields what to tell before a cell, and what to give its rows."""
    console = _console()
    if quiet:
        with progress("bench") as advance:
            yield advance, lambda _: None
        return
    if not sys.stdout.isatty():

        def say(rows: Rows) -> None:
            for row in rows:
                console.print(line(row), markup=False, soft_wrap=True)

        yield lambda *_: None, say
        return
    from rich.live import Live

    seen: list[dict[str, Any]] = []
    started = time.monotonic()
    with Live(console=console, transient=True, refresh_per_second=4) as live:

        def advance(what: str, done: int, total: int) -> None:
            spent = time.monotonic() - started
            left = f", about {spent / done * (total - done):.0f} s left" if done else ""
            below = f"measuring {what}: {done + 1} of {total}, {spent:.0f} s{left}"
            live.update(Group(_summary(summary(seen)), below) if seen else below)

        def show(rows: Rows) -> None:
            seen.extend(rows)
            live.console.print(cell(rows))

        advance("this device", 0, total)
        yield advance, show


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of plain text."""
    head = f"{row['op']:<21} {row['sample']:<21} {row['dtype']:<9}{row['label']:<14} {row['verdict']:<9}"
    if row["record"] == "choice":
        called = f"; with {duration(row['dispatch_us'])} a call {row['ratio_called'][0]:.2f}x"
        return f"{head}{row['chosen']}, {row['ratio'][0]:.2f}x{called}"
    if "device_us" not in row:
        return f"{head}{row.get('reason', '')}"
    median, low, high = row["ratio"]
    share = f"  {row['share_of_floor']:>4.0%} of floor" if "share_of_floor" in row else ""
    return f"{head}{duration(row['call_us']):>11}  {median:.2f}x [{low:.2f}, {high:.2f}]{share}"


def cell(rows: Rows) -> Table:
    """Return one cell as a table; those that declined share a line a reason."""
    first = rows[0]
    floor = f"  (floor {duration(first['floor_us'])})" if "floor_us" in first else ""
    columns = ("kernel", "verdict", "a call", "times as fast as torch", "of floor", "GB/s", "error")
    right = ("a call", "of floor", "GB/s", "error")
    table = _table(*columns, title=f"{first['op']} {first['sample']} {first['dtype']}{floor}", right=right)
    absent: dict[str, list[str]] = {}
    for row in rows:
        if row["verdict"] == "DECLINED":
            absent.setdefault(row.get("reason", ""), []).append(row["label"])
            continue
        told = "call_us" in row
        said = row["chosen"] if row["record"] == "choice" else row["verdict"]
        table.add_row(
            escape(row["label"]),
            f"[{COLOUR.get(row['verdict'], 'default')}]{escape(said)}[/]",
            duration(row["call_us"]) if told else "",
            _ratio(row["ratio"]) if row.get("ratio") else escape(row.get("reason", "")),
            f"{row['share_of_floor']:.0%}" if "share_of_floor" in row else "",
            f"{row['gb_per_s']:,.1f}" if "gb_per_s" in row else "",
            _error(row["error"]),
        )
    for reason, labels in absent.items():
        table.add_row(
            f"[dim]{escape(', '.join(labels))}[/]", "[dim]DECLINED[/]", "", f"[dim]{escape(reason)}[/]"
        )
    return table


def _summary(lines: Rows) -> Table:
    table = _table(
        "kernel", "cells", "mean", "p5", "worst", "slower than torch", "beyond doubt", "verdicts",
        right=("cells", "mean", "p5", "worst", "slower than torch", "beyond doubt"),
    )  # fmt: skip
    for entry in lines:
        figures = [f"{entry[k]:.2f}x" if entry[k] is not None else "" for k in ("mean", "p5", "worst")]
        counts = (str(entry["slower"]), str(entry["slow"])) if entry["cells"] else ("", "")
        verdicts = ", ".join(f"{n} {v}" for v, n in entry["verdicts"].items())
        table.add_row(escape(entry["label"]), str(entry["cells"]), *figures, *counts, escape(verdicts))
    return table


def summed_up(head: dict[str, Any], rows: Rows, lines: Rows) -> None:
    """Print the summary: a line a kernel, what is wrong, and what was measured where."""
    console = _console()
    console.print(_summary(lines))
    for row in rows:
        if row["verdict"] in BAD:
            console.print(f"[red]{row['verdict']}[/red] {escape(line(row))}", soft_wrap=True)
    unsure = len({(r["op"], r["sample"], r["dtype"]) for r in rows if r.get("floor_unsure")})
    if unsure:
        console.print(
            f"[yellow]unsure[/yellow] the floor of {unsure} cells: torch beat the measured ceilings, "
            "so other work ran beside their measurement"
        )
    device, versions = head["device"], head["versions"]
    console.print(
        f"{escape(device['name'])}, {device['units']} units; torch {versions.get('torch', '')}, "
        f"python {versions['python']}; {escape(head['method'])}; fingerprint {head['fingerprint']}"
    )


def compared(lines: Rows, apart: Sequence[str]) -> None:
    """Print two records against each other: all that changed, the rest counted."""
    console = _console()
    for text in apart:
        console.print(f"[yellow]differs[/yellow] {escape(text)}")
    table = _table(
        "operator", "sample", "type", "kernel", "verdict", "old", "new", "new over old", right=("old", "new")
    )
    told = [found for found in lines if found["verdict"] in BAD | {"SLOW", "FAST"}]
    told.sort(key=lambda found: found["change"][0] if found["change"] else 0.0)
    for found in told[:WORST]:
        table.add_row(
            found["op"],
            found["sample"],
            found["dtype"],
            escape(found["label"]),
            f"[{COLOUR.get(found['verdict'], 'default')}]{found['verdict']}[/]",
            *(f"{found[k][0]:.2f}x" if found[k] else "" for k in ("old", "new")),
            _ratio(found["change"]) if found["change"] else escape(found["reason"]),
        )
    if table.row_count:
        console.print(table)
    if len(told) > WORST:
        console.print(f"and {len(told) - WORST} more; --json has all")
    console.print(", ".join(f"{n} {v}" for v, n in Counter(found["verdict"] for found in lines).items()))
