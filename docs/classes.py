"""Draws ``performance/classes.md``: the bandwidth asked of each size class, beside that reached.

Run it where a record of size classes was added: ``benchmarks/results/MACHINE/DATE-classes.jsonl``, written by
``nxcore bench OP... --size CLASS... --record FILE``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path

from nxcore.bench.record import read, rows
from nxcore.bench.sizes import SIZES, Reached, reached
from nxcore.measure.ceilings import Ceilings

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance" / "classes.md"
BEGIN, END = "<!-- drawn by docs/classes.py -->\n", "<!-- until here -->\n"
MACHINES = {"amd-epyc-2-cores": "AMD EPYC, two cores", "nvidia-h200": "NVIDIA H200"}
SAID = {"aim": "aim met", "minimum": "minimum met", "missed": "missed"}

RATES = {"cpu": 8, "cuda": 9}
"""The sizes at which a record's bandwidth was measured, on each kind of device."""

Cell = tuple[str, str]


def record(machine: str) -> Path | None:
    """Return the newest record of a machine; None if it has none."""
    return max((RESULTS / machine).glob("*-classes.jsonl"), default=None)


def figures(path: Path | None) -> dict[Cell, Reached]:
    """Return what was reached, by operator and sample."""
    if path is None:
        return {}
    best = functools.reduce(Ceilings.raised, ceilings(path.parent))
    return {(r.op, r.sample): r for r in reached(rows(read(path)), SIZES, best)}


def ceilings(folder: Path) -> Iterator[Ceilings]:
    """Yield what a machine reached in each of its records: other work may have slowed one of them."""
    for path in sorted(folder.glob("*.jsonl")):
        first = json.loads(path.read_text(encoding="utf-8").split("\n", 1)[0])
        if (
            first.get("record") == "head"
            and len(first["ceilings"]["bandwidths"]) == RATES[first["device"]["type"]]
        ):
            known = first["ceilings"]
            yield Ceilings(known["t0_us"], tuple(map(tuple, known["bandwidths"])), known["flops"])


def cell(found: Reached | None) -> str:
    """Return the text of one cell of the table."""
    if found is None:
        return "not measured"
    return f"{found.share:.0%}, `{found.label}`: {SAID[found.met]}"


def table() -> str:
    """Return the table of every operator and class."""
    found = {machine: figures(record(machine)) for machine in MACHINES}
    operators = dict.fromkeys(op for of in found.values() for op, _ in of)
    head = ["operator", "class", "elements", "minimum", "aim", *MACHINES.values()]
    lines = [f"| {' | '.join(head)} |", f"|---|---|---|---:|---:|{'---|' * len(MACHINES)}"]
    for op in operators:
        for name, size in SIZES.items():
            for shape in size.shapes:
                of = "x".join(map(str, shape))
                reached_here = (cell(found[machine].get((op, f"{name}_{of}"))) for machine in MACHINES)
                asked = f"{size.minimum:.0%} | {size.aim:.0%}"
                lines.append(f"| `{op}` | {name} | {of} | {asked} | {' | '.join(reached_here)} |")
    return "\n".join([*lines, ""])


def sources() -> str:
    """Return the sentence that names the records."""
    named = ((text, record(machine)) for machine, text in MACHINES.items())
    told = [
        f"{text}: `{path.relative_to(ROOT)}`" if path else f"{text}: no record yet" for text, path in named
    ]
    return "; ".join(told) + "."


def page() -> str:
    """Return the page as it should be."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{sources()}\n\n{table()}\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
