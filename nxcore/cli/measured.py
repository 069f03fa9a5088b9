"""Output of ``nxcore tune`` and ``nxcore wisdom``: measured problems and their winners."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

from rich.markup import escape

from nxcore.cli import terminal
from nxcore.measure.timing import duration
from nxcore.spec.problem import plain
from nxcore.spec.spec import REQUIRED

FLAGS = {"needs_grad": "with a gradient", "aliased": "out is an input", "deterministic": "deterministic"}
"""Texts of a problem's flags, shown where the flag is set."""


def tune(found: dict[str, Any]) -> None:
    """Print the measured problems, then one line that counts all."""
    table = terminal.table("problem", "tensors", "chosen", "times as fast as torch", "was")
    rows = found["rows"]
    for row in rows:
        if row["status"] == "known":
            continue
        served = row["status"] != "left out"
        table.add_row(
            escape(f"{row['op']} {row['name']}"),
            escape(described(row["problem"])),
            escape(row["chosen"]),
            terminal.ratio_text(row["ratio"]) if served and row["ratio"] else escape(row["reason"]),
            escape(row["was"]),
        )
    console = terminal.console()
    if table.row_count:
        terminal.show(table)
    for row in (r for r in rows if r["status"] in ("unclear", "inconclusive")):
        told = f"[yellow]{row['status']}[/yellow] {escape(row['op'])} {escape(row['name'])}"
        console.print(f"{told}: {escape(row['reason'])}")
    counts = {
        status: sum(r["status"] == status for r in rows)
        for status in dict.fromkeys(r["status"] for r in rows)
    }
    texts = [f"{n} {status}" for status, n in counts.items()]
    if found["stopped"]:
        why = "interrupted" if found["stopped"] == "interrupted" else "the budget is spent"
        texts.append(f"{found['left']} left ({why}); run the same command again to continue")
    console.print(", ".join(texts) or "nothing to measure")


def shipped(rows: list[dict[str, Any]], files: list[str]) -> None:
    """Print the kernels for which shipped entries don't count."""
    console = terminal.console()
    if not rows:
        console.print(f"every kernel in {', '.join(files) or 'no file'} is as it was measured")
        return
    table = terminal.table("from", "device", "operator", "kernel", "problems", "why", right=("problems",))
    for row in rows:
        count = f"{row['entries']} of {row['of']}"
        table.add_row(*map(escape, (row["file"], row["device"], row["op"], row["kernel"], count, row["why"])))
    terminal.show(table)


def tiles(found: list[dict[str, Any]]) -> None:
    """Print the tiles of each sample, the kernel's own choice first."""
    console = terminal.console()
    for entry in found:
        if entry["reason"]:
            console.print(f"{escape(entry['sample'])}: {escape(entry['reason'])}")
            continue
        columns = ("tile", "median", "of floor", "times as fast as chosen")
        table = terminal.table(*columns, title=entry["sample"], right=("median", "of floor"))
        for row in entry["rows"]:
            timed = row["device_us"] is not None
            table.add_row(
                escape(row["tile"]),
                duration(row["device_us"]) if timed else "",
                f"{row['share']:.0%}" if timed else "",
                terminal.ratio_text(row["ratio"]) if timed else escape(row["reason"]),
            )
        terminal.show(table)


def wisdom(rows: list[dict[str, Any]]) -> None:
    """Print the measured problems, one table for each device."""
    console = terminal.console()
    for device in dict.fromkeys(row["device"] for row in rows):
        table = terminal.table(
            "operator", "problem", "chosen", "why", "policy", "days", title=device, right=("days",)
        )
        for row in (r for r in rows if r["device"] == device):
            days = f"{(time.time() - row['date']) / 86_400:.0f}"
            cells = (
                row["problem"]["op"],
                described(row["problem"]),
                row["chosen"],
                f"unclear, A/A noise of {row['noise']:.0%}: {row['reason']}"
                if row["unclear"]
                else row["reason"],
                row["policy"],
                days,
            )
            table.add_row(*map(escape, cells))
        terminal.show(table)
    if not rows:
        console.print("nothing is measured yet")


def described(problem: dict[str, Any]) -> str:
    """Return a problem as text, without its operator. Different problems have different texts.

    The text has the dtype and shape of each tensor, strides that aren't row-major, parameters that
    differ from their defaults, and the flags of the problem.
    """
    from nxcore import session

    spec = session.default().registry.ops.get(problem.get("op", ""))  # nothing is known of what is left out
    defaults = {p.name: p.default for p in spec.params} if spec else {}
    found = []
    for name, value in problem.items():
        values = value if isinstance(value, list) else [value]
        if any(isinstance(v, dict) for v in values):
            runs = ((text, len(list(run))) for text, run in itertools.groupby(map(_tensor, values)))
            text = ", ".join(f"{n} x {text}" if n > 1 else text for text, n in runs)
            optional = spec is not None and defaults.get(name, REQUIRED) is not REQUIRED
            found.append(f"{name}={text}" if optional else text)
        elif name in FLAGS:
            found += [FLAGS[name]] if value else []
        elif name not in ("op", "device", "devices"):
            usual = defaults.get(name, REQUIRED)
            found += [] if value in (plain(usual), type(usual).__name__) else [f"{name}={value}"]
    return ", ".join(found)


def _tensor(meta: dict[str, Any]) -> str:
    """Return dtype and shape, and the strides if they aren't row-major."""
    shape, strides = meta["shape"], meta["strides"]
    sizes = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    expected = [math.prod(n for n, _ in sizes[i + 1 :]) for i in range(len(sizes))]
    plain = not math.prod(shape) or [s for _, s in sizes] == expected
    return f"{meta['dtype']}{shape}" + ("" if plain else f" strides {strides}")
