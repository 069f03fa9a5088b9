"""Output of ``nxcore bench conv-study``: a table of all shapes, then the summary."""

from __future__ import annotations

from rich.markup import escape

from nxcore.cli import terminal
from nxcore.report.study import facts
from nxcore.report.study.facts import Record
from nxcore.report.study.sentences import sentences

NARROW = {
    "inductor-im2col": "inductor im2col",
    "inductor-conv2d": "inductor conv2d",
    "torch-conv2d": "torch conv2d",
    "cudnn-tf32": "cudnn tf32",
}
"""Labels that a column's head breaks between words."""


def study(record: Record) -> None:
    """Print a record: times as fast as the baseline, the fastest strict entrant bold, and the sentences."""
    console, known = terminal.console(), facts.labels(record)
    base = record["baseline"]
    heads = [NARROW.get(label, label) for label in known]
    table = terminal.table(
        "shape", *heads, title=f"Times as fast as {base}, whose time is in us", right=tuple(heads)
    )
    first = {tuple(cell["shape"]): label for label, cells in facts.firsts(record).items() for cell in cells}
    for cell in record["cells"]:
        side, taps, padding = cell["shape"]
        row = [f"{side}, filter {taps}, padding {padding}"]
        for label in known:
            found = facts.row_of(cell, label)
            text = "" if found is None else f"{found['ratio'][0]:.2f}"
            if found is not None and label == base:
                text = f"{found['total_us']:,.0f}"
            row.append(f"[bold]{text}[/bold]" if first.get(tuple(cell["shape"])) == label else text)
        table.add_row(*row)
    if known:
        terminal.show(table)
    for sentence in sentences(record):
        console.print(f"- {escape(sentence)}")
