"""Tables of ``nxcore demo``: one layer by every kernel, the model's step, a summary; all with ``--all``."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from rich.markup import escape
from rich.table import Table

from nxcore.bench.demo import ASKED, Cell, Report, Row
from nxcore.cli import terminal
from nxcore.cli.render import VERDICT, copied, unavailable
from nxcore.measure.timing import duration


def demo(report: Report, *, everything: bool = False) -> None:
    """Print the results of the demo."""
    console, head = terminal.console(), report.head
    device = head["device"]
    versions = ", ".join(f"{k} {v}" for k, v in head["versions"].items())
    console.print(f"[bold]{escape(device['name'])}[/bold], {device['units']} units; {escape(versions)}")
    console.print(f"A small convolutional model on {escape(head['images'])}.")
    for cell in report.cells if everything else report.cells[:1]:
        console.print()
        terminal.show(cell_table(cell if everything else _ran(cell)))
        console.print(f"chosen: [bold]{escape(cell.chosen)}[/bold] ({escape(cell.reason)})")
    if everything:
        _edge(report)
    console.print()
    console.print("One step of the accelerated model, forward and backward:\n")
    copied(report.step.status.table)
    console.print()
    for sentence in summary(report):
        console.print(sentence, soft_wrap=False)


def summary(report: Report) -> list[str]:
    """Return seven lines: the model, its kernels, an edge, an expression, the verification, two of no run."""
    step = report.step
    median, low, high = step.ratio
    counts = Counter(row.chosen for row in step.status.rows if row.state == "kernel")
    served = ", ".join(f"{label} {count}" for label, count in counts.most_common()) or "none"
    blends = [cell for cell in report.cells if cell.title.startswith("softmax_sum")]
    gains = ", ".join(f"{cell.title.split()[1].rstrip(',')} {_gain(cell)}" for cell in blends)
    made = next(cell for cell in report.cells if cell.title.startswith("expression"))
    printed = [row.label for row in made.rows if row.verdict == "verified" and row.label != "torch"]
    rows = [row for cell in report.cells for row in cell.rows]
    wrong = sorted({row.label for row in rows if row.verdict == "wrong"})
    verified = [row.error for row in rows if row.verdict == "verified" and row.error is not None]
    judged = f"[red]{escape(', '.join(wrong))}: wrong[/red]; " if wrong else ""
    away = {row.label: row.detail for row in rows if row.verdict == "not run" and row.detail != ASKED}
    away |= {name: why for name, why in report.absent.items() if name not in away}
    return [
        (
            f"model: {step.plain_ms:.1f} ms a step, accelerated {step.accelerated_ms:.1f} ms: "
            f"{median:.2f}x \\[{low:.2f}, {high:.2f}]; gradients {step.accelerated_error:.1e} from float64"
        ),
        f"kernels: {escape(served)} of the {len(step.status.rows)} problems of a step; torch runs the rest",
        f"weighted sum of eight operations, a DARTS edge: {escape(gains)}",
        f"{escape(made.title)}: {escape(_gain(made))}; made by {escape(', '.join(printed)) or 'none'}",
        f"verified: {judged}{len(verified)} results agree with float64, largest error {max(verified):.1e}",
        f"can't run here: {escape(unavailable(away.items())) or 'none'}",
        f"only on request, by backend=: {', '.join(report.on_request) or 'none'} (why: nxcore backends)",
    ]


def _gain(cell: Cell) -> str:
    row = next(row for row in cell.rows if row.label == cell.chosen)
    return f"{cell.chosen} {row.ratio[0]:.2f}x" if row.ratio else cell.chosen


def _ran(cell: Cell) -> Cell:
    """Return a cell without the kernels that can't run here; the summary lists them in one line."""
    return replace(cell, rows=tuple(row for row in cell.rows if row.verdict != "not run"))


def _edge(report: Report) -> None:
    console, edge = terminal.console(), report.edge
    console.print()
    console.print(
        f"The mixed edge of {len(report.head['operations'])} operations, end to end. Errors against float64: "
        f"output {edge['output_error']:.1e}, gradient of the logits {edge['logits_grad_error']:.1e}, "
        f"gradient of the input {edge['input_grad_error']:.1e}."
    )
    if report.head["unsure"]:
        console.print("The roofline is uncertain: other work ran on this machine during its measurement.")
    elif any((row.share or 0) > 1 for cell in report.cells for row in cell.rows):
        console.print(
            "The roofline is measured: what torch's copy, addition and dot product reach. "
            "A kernel may exceed 100%."
        )


def cell_table(cell: Cell) -> Table:
    """Return one problem of the demo as a table, one row for each kernel."""
    table = terminal.table(
        "kernel",
        "verdict",
        "error",
        "median",
        "times as fast as torch",
        "of roofline",
        title=f"{cell.title}  (roofline {duration(cell.floor_us)})",
        right=("error", "median", "of roofline"),
    )
    for row in cell.rows:
        mark = "[bold]" if row.label == cell.chosen else "[not bold]"
        colour = VERDICT[row.verdict]
        table.add_row(
            f"{mark}{escape(row.label)}[/]",
            f"[{colour}]{row.verdict}[/{colour}]",
            terminal.error_text(row.error),
            duration(row.median_us) if row.median_us is not None else "",
            _note(row),
            f"{row.share:.0%}" if row.share is not None else "",
        )
    return table


def _note(row: Row) -> str:
    if row.ratio is not None:
        return terminal.ratio_text(row.ratio)
    return escape(row.detail)
