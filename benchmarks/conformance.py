"""Write the page of a support matrix, which `pytest --nxcore-report=PATH --pyargs nxcore.testing` records.

    python benchmarks/conformance.py benchmarks/results/<device>/<date>-conformance.json docs/conformance.md

A cell is an operator, a backend and a dtype. Its outcome is verified (with the number of samples, and of
those that the kernel declined, by reason), declined (all samples), wrong, or absent.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

COLUMNS = ("cuda", "cupy", "triton", "numba", "numba-cuda", "jax", "inductor")
LEGEND = """\
A number is the count of samples that agreed with the float64 reference. A raised figure refers to
the list of rejected samples, with their reasons. A kernel that is wrong on a machine runs no call
there. Operators whose result is always a view, such as `sum_backward`, have no kernels.
`make conformance` writes this page for your own machine."""


def main() -> None:
    """Write the page, and print the number of cells by outcome."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    options.page.write_text(render(options.record), encoding="utf-8")
    cells = json.loads(options.record.read_text(encoding="utf-8"))["cells"]
    print(Counter(cell["outcome"] for cell in cells))


def render(path: Path) -> str:
    """Return the page of a record."""
    record = json.loads(path.read_text(encoding="utf-8"))
    notes: list[str] = []
    made = f"{record['device']['name']}, torch {record['torch']}, {record['date'][:10]}"
    lines = [
        "# Which kernels exist, and how each was verified",
        "",
        "This page lists every kernel. Each was verified on the samples of its operator's spec.",
        f"{made}; the record is",
        f"`{path.as_posix()}`.",
        "",
        LEGEND,
        "",
        "| operator | dtype | " + " | ".join(COLUMNS) + " |",
        "|---|---|" + "---|" * len(COLUMNS),
    ]
    cells = {(c["op"], c["dtype"], c["backend"]): c for c in record["cells"]}
    last = ""
    for op, dtype in dict.fromkeys((c["op"], c["dtype"]) for c in record["cells"]):
        row = [_cell(cells.get((op, dtype, column)), notes) for column in COLUMNS]
        lines.append(f"| {f'`{op}`' if op != last else ''} | {dtype} | " + " | ".join(row) + " |")
        last = op
    if notes:
        lines += ["", "## Rejected, or wrong", ""]
        lines += [f"{i}. {note}" for i, note in enumerate(notes, 1)]
    return "\n".join(lines) + "\n"


def _cell(cell: dict[str, Any] | None, notes: list[str]) -> str:
    if cell is None:
        return "**absent**"
    if cell["outcome"] == "wrong":
        return "**wrong**" + _mark(cell["reason"], notes)
    if cell["outcome"] == "declined":
        return "declined" + _mark(cell["reason"], notes)
    marks = "".join(_mark(reason, notes) for reason in cell["declined"])
    return f"{cell['samples']}{marks}"


def _mark(reason: str, notes: list[str]) -> str:
    reason = re.sub(r"0x[0-9a-f]+", "0x...", reason)
    if reason not in notes:
        notes.append(reason)
    return f"<sup>{notes.index(reason) + 1}</sup>"


if __name__ == "__main__":
    main()
