"""Output of ``nxcore bench`` and ``nxcore demo``: a growing table in a terminal, a line a row in a pipe."""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from nxcore.bench.demo import ASKED, Cell, Report
from nxcore.bench.demo import Row as Shown
from nxcore.bench.row import BAD
from nxcore.bench.sizes import SIZES
from nxcore.bench.summary import summary
from nxcore.cli import interruption, render
from nxcore.cli.render import VERDICT, copied, progress, unavailable
from nxcore.measure.timing import duration

Rows = Sequence[dict[str, Any]]
Watched = tuple[Callable[[str, int, int], None], Callable[[Rows], None]]

COLOUR = {"FAST": "green", "SLOW": "yellow", "WRONG": "red", "BELOW_FLOOR": "red", "DECLINED": "dim"}
MEANING = {
    "BASE": "torch's own, which the others are compared with",
    "FAST": "measurably faster than torch",
    "SAME": "as fast as torch, within the margin",
    "SLOW": "measurably slower than torch",
    "AMBG": "none of these: the measurement is too noisy to say",
    "WRONG": "it disagrees with the float64 reference",
    "DECLINED": "it did not run",
    "BELOW_FLOOR": "faster than the device can be, so the measurement is wrong",
}
WORST = 20
"""The number of changed cells that are listed; the rest is counted."""


@contextlib.contextmanager
def watching(total: int, *, quiet: bool = False) -> Iterator[Watched]:
    """Show the progress of a run; yield a function to call before a cell, and one that takes its rows.

    A cell's beginning raises an interruption that was lost.
    """
    interruption.raise_lost()
    with _shown(total, quiet) as (advance, take):
        yield interruption.checked(advance), take


@contextlib.contextmanager
def _shown(total: int, quiet: bool) -> Iterator[Watched]:
    console = render.console()
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


def named(row: dict[str, Any]) -> str:
    """Return a row's label; of the A/A row the idiom that it repeats."""
    return f"{row['repeats']} again" if row.get("repeats") else str(row["label"])


def line(row: dict[str, Any]) -> str:
    """Return a row as a line of plain text."""
    head = f"{row['op']:<21} {row['sample']:<21} {row['dtype']:<9}{named(row):<14} {row['verdict']:<9}"
    if row["record"] == "choice":
        called = f"; with {duration(row['dispatch_us'])} a call {row['ratio_called'][0]:.2f}x"
        return f"{head}{row['chosen']}, {row['ratio'][0]:.2f}x{called}"
    if "device_us" not in row:
        return f"{head}{row.get('reason', '')}"
    median, low, high = row["ratio"]
    share = f"  {row['share_of_floor']:>4.0%} of floor" if "share_of_floor" in row else ""
    return f"{head}{duration(row['call_us']):>11}  {median:.2f}x [{low:.2f}, {high:.2f}]{share}"


def cell(rows: Rows) -> Group:
    """Return one cell as a table, and below it a line for each reason of kernels that declined."""
    first = rows[0]
    floor = f"  (floor {duration(first['floor_us'])})" if "floor_us" in first else ""
    columns = ("kernel", "verdict", "a call", "times as fast as torch", "of floor", "GB/s", "error")
    right = ("a call", "of floor", "GB/s", "error")
    table = render.table(
        *columns, title=f"{first['op']} {first['sample']} {first['dtype']}{floor}", right=right
    )
    absent: dict[str, list[str]] = {}
    for row in rows:
        if row["verdict"] == "DECLINED":
            absent.setdefault(row.get("reason", ""), []).append(row["label"])
            continue
        timed = "call_us" in row
        said = row["chosen"] if row["record"] == "choice" else row["verdict"]
        table.add_row(
            escape(named(row)),
            f"[{COLOUR.get(row['verdict'], 'default')}]{escape(said)}[/]",
            duration(row["call_us"]) if timed else "",
            render.ratio_text(row["ratio"]) if row.get("ratio") else escape(row.get("reason", "")),
            f"{row['share_of_floor']:.0%}" if "share_of_floor" in row else "",
            f"{row['gb_per_s']:,.1f}" if "gb_per_s" in row else "",
            render.error_text(row["error"]),
        )
    below = (f"[dim]DECLINED {escape(', '.join(labels))}: {escape(why)}[/]" for why, labels in absent.items())
    return Group(table, *below)


def _summary(lines: Rows) -> Group:
    """Return the summary as a table, and below it a line of the kernels that declined every cell."""
    table = render.table(
        "kernel", "cells", "mean", "p5", "worst", "slower than torch", "beyond doubt", "verdicts",
        right=("cells", "mean", "p5", "worst", "slower than torch", "beyond doubt"),
    )  # fmt: skip
    absent = [entry["label"] for entry in lines if set(entry["verdicts"]) == {"DECLINED"}]
    for entry in lines:
        if entry["label"] in absent:
            continue
        figures = [f"{entry[k]:.2f}x" if entry[k] is not None else "" for k in ("mean", "p5", "worst")]
        counts = (str(entry["slower"]), str(entry["slow"])) if entry["cells"] else ("", "")
        verdicts = ", ".join(f"{n} {v}" for v, n in entry["verdicts"].items())
        table.add_row(escape(entry["label"]), str(entry["cells"]), *figures, *counts, escape(verdicts))
    return Group(table, *[f"[dim]DECLINED in every cell: {escape(', '.join(absent))}[/]"] * bool(absent))


def summed_up(head: dict[str, Any], rows: Rows, lines: Rows) -> None:
    """Print the summary: one line for each kernel, the wrong rows, device and versions."""
    console = render.console()
    console.print(_summary(lines))
    console.print(
        "mean (geometric), p5 (5th percentile) and worst of the cells: how many times as fast as torch's "
        "best; beyond doubt: cells slower by more than the margin; of floor: the least time that the device "
        "can take, over the time taken"
    )
    met = {row["verdict"] for row in rows}
    console.print("; ".join(f"{name}: {text}" for name, text in MEANING.items() if name in met))
    for row in rows:
        if row["verdict"] in BAD:
            console.print(f"[red]{row['verdict']}[/red] {escape(line(row))}", soft_wrap=True)
    unsure = len({(r["op"], r["sample"], r["dtype"]) for r in rows if r.get("floor_unsure")})
    if unsure:
        console.print(
            f"[yellow]unsure[/yellow] the floor of {unsure} cells is uncertain: torch exceeded the measured "
            "bandwidth or throughput, so other work ran during that measurement"
        )
    device, versions = head["device"], head["versions"]
    console.print(
        f"{escape(device['name'])}, {device['units']} units; torch {versions.get('torch', '')}, "
        f"python {versions['python']}; {escape(head['method'])}; fingerprint {head['fingerprint']}"
    )


MET = {"aim": "green", "minimum": "yellow", "missed": "red"}


def by_size(found: Rows) -> None:
    """Print the share of the bandwidth reached in each size class, beside the class's minimum and aim."""
    right = ("device", "host", "reached")
    ops, types = {row["op"] for row in found}, {row["dtype"] for row in found}
    alone = [names.pop() for names in (set(ops), set(types)) if len(names) == 1]  # these need no column
    first = ["operator"] * (len(ops) > 1) + ["type"] * (len(types) > 1)
    columns = (*first, "size", "kernel", *right, "minimum, aim", "met")
    table = render.table(*columns, title=" ".join(alone), right=right)
    for column in table.columns:
        column.no_wrap = True  # names and figures alone
    for row in found:
        times = duration(row["device_us"]), duration(row["host_us"])
        aims = f"{row['minimum']:.0%}, {row['aim']:.0%}"
        said = f"[{MET[row['met']]}]{row['met']}[/]"
        of = [row["op"]] * (len(ops) > 1) + [row["dtype"]] * (len(types) > 1)
        size = row["sample"].replace("_", " ")
        table.add_row(*of, size, escape(row["label"]), *times, f"{row['share']:.0%}", aims, said)
    render.show_whole(table)


REQUIRED = {
    "right": "every kernel that ran agrees with float64",
    "possible": "no time is below what the device can reach",
    **{size: f"the class {size} reaches its minimum of the bandwidth" for size in SIZES},
    "not slower": "the choice is not slower than torch in any cell",
}
"""The requirement of each of the eight tests."""


def tested(tests: Rows) -> None:
    """Print the eight tests of a run, a line each."""
    table = render.table("test", "requirement", "cells", "failed", "result", right=("cells", "failed"))
    for row in tests:
        said = {True: "[green]passed[/]", False: "[red]failed[/]", None: "[dim]not run[/]"}[row["passed"]]
        table.add_row(row["test"], REQUIRED[row["test"]], str(row["cells"]), str(row["failed"]), said)
    render.console().print(table)


def sped_up(overall: dict[str, Any]) -> None:
    """Print the success rate and the speed-ups over all cells in a sentence."""
    if not overall["cells"]:
        render.console().print("no cell was timed")
        return
    mean, most, least = (f"{overall[k]:.2f}x" for k in ("mean", "max", "min"))
    render.console().print(
        f"{overall['success']:.0%} of the tests that ran passed; {overall['cells']} cells: "
        f"mean speed-up {mean}, max {most}, min {least}",
        soft_wrap=True,
    )


def compared(lines: Rows, apart: Sequence[str]) -> None:
    """Print the changes between two records, and count the rest."""
    console = render.console()
    for text in apart:
        console.print(f"[yellow]differs[/yellow] {escape(text)}")
    table = render.table(
        "operator", "sample", "type", "kernel", "verdict", "old", "new", "new over old", right=("old", "new")
    )
    changed = [found for found in lines if found["verdict"] in BAD | {"SLOW", "FAST"}]
    changed.sort(key=lambda found: found["change"][0] if found["change"] else 0.0)
    for found in changed[:WORST]:
        table.add_row(
            found["op"],
            found["sample"],
            found["dtype"],
            escape(found["label"]),
            f"[{COLOUR.get(found['verdict'], 'default')}]{found['verdict']}[/]",
            *(f"{found[k][0]:.2f}x" if found[k] else "" for k in ("old", "new")),
            render.ratio_text(found["change"]) if found["change"] else escape(found["reason"]),
        )
    if table.row_count:
        console.print(table)
    if len(changed) > WORST:
        console.print(f"and {len(changed) - WORST} more (all with --json)")
    console.print(", ".join(f"{n} {v}" for v, n in Counter(found["verdict"] for found in lines).items()))


def demo(report: Report, *, everything: bool = False) -> None:
    """Print the results of the demo."""
    console, head = render.console(), report.head
    device = head["device"]
    versions = ", ".join(f"{k} {v}" for k, v in head["versions"].items())
    console.print(f"[bold]{escape(device['name'])}[/bold], {device['units']} units; {escape(versions)}")
    console.print(f"A small convolutional model on {escape(head['images'])}.")
    for cell in report.cells if everything else report.cells[:1]:
        console.print()
        render.show(cell_table(cell if everything else _ran(cell)))
        console.print(f"chosen: [bold]{escape(cell.chosen)}[/bold] ({escape(cell.reason)})")
    if everything:
        _edge(report)
    console.print()
    console.print("One step of the accelerated model, forward and backward:\n")
    copied(report.step.status.table)
    console.print()
    for sentence in sentences(report):
        console.print(sentence, soft_wrap=False)


def sentences(report: Report) -> list[str]:
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
    console, edge = render.console(), report.edge
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
    table = render.table(
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
            render.error_text(row.error),
            duration(row.median_us) if row.median_us is not None else "",
            _note(row),
            f"{row.share:.0%}" if row.share is not None else "",
        )
    return table


def _note(row: Shown) -> str:
    if row.ratio is not None:
        return render.ratio_text(row.ratio)
    return escape(row.detail)
