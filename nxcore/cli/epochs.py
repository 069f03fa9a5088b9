"""Output of ``nxcore search``: a growing table in a terminal, a line for each epoch in a pipe; the result."""

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table

from nxcore.cli import interruption, render

Row = Mapping[str, Any]
COLUMNS = "phase", "epoch", "loss", "accuracy", "validation", "held out", "entropy"
LAST = 12
"""How many epochs a terminal shows at once."""


@contextlib.contextmanager
def watching(
    history: Sequence[Row], decided: Callable[[], int] | None = None, *, quiet: bool = False
) -> Iterator[Callable[[Row], None]]:
    """Show epochs as they end, after those of ``history``; yield the function that takes their rows.

    ``decided`` returns the number of problems with a winner, which take most of the first epoch on a GPU. A
    row raises an interruption that was lost.
    """
    interruption.raise_lost()
    with _shown(history, decided, quiet) as take:
        yield interruption.checked(take)


@contextlib.contextmanager
def _shown(
    history: Sequence[Row], decided: Callable[[], int] | None, quiet: bool
) -> Iterator[Callable[[Row], None]]:
    console = render.console()
    if quiet:
        yield lambda _: None
        return
    if not sys.stdout.isatty():
        if decided and not history:
            console.print("the first epoch also compiles and measures kernels, once for each device")
        yield lambda row: console.print(line(row), markup=False, soft_wrap=True)
        return
    from rich.live import Live

    seen, began, over = list(history), time.monotonic(), False

    def waited() -> str:
        if over:
            return ""
        problems = f", {decided()} problems decided" if decided else ""
        return f"{'next' if seen else 'first'} epoch: {time.monotonic() - began:.0f} s so far{problems}"

    def shown() -> Group:
        if not seen:
            return Group(waited())
        row, spent = seen[-1], sum(r["seconds"] for r in seen)
        below = f"{row['phase']}: {row['epoch']} of {row['epochs']} epochs, {spent:.0f} s"
        return Group(table(seen), "; ".join(filter(None, ("" if "run" in row else below, waited()))))

    with Live(get_renderable=shown, console=console, refresh_per_second=4) as live:

        def show(row: Row) -> None:
            nonlocal began
            seen.append(row)
            began = time.monotonic()
            live.refresh()

        live.refresh()
        try:
            yield show
        finally:
            over = True


def table(rows: Sequence[Row]) -> Table:
    """Return the last epochs as a table; of several runs, the last one of each, with a bar."""
    runs = {row["run"]: row for row in rows if "run" in row}
    names = ("run", *COLUMNS[:-1], "") if runs else (*COLUMNS, "dominant operations")
    shown = render.table(*names, right=COLUMNS[1:])
    for row in runs.values() or rows[-LAST:]:
        cells = ("",) * 6 if "grown" in row else _figures(row)
        if runs:
            bar = ProgressBar(row["epochs"], row["epoch"], 6)
            shown.add_row(row["run"], row["phase"], *cells[:-1], bar)
        else:
            end = _grown(row) if "grown" in row else dominant(row["genotype"])
            shown.add_row(row["phase"], *cells, end)
    return shown


def line(row: Row) -> str:
    """Return an epoch as a line."""
    run = f"{row['run']}: " if "run" in row else ""
    if "grown" in row:
        return f"{run}mutation, {row['seconds']:.1f} s: {_grown(row)}"
    epoch, *figures = _figures(row)
    named = zip(COLUMNS[2:], figures, strict=True)
    text = ", ".join(f"{name} {figure}" for name, figure in named if figure)
    of_search = f": {dominant(row['genotype'])}" if row["phase"] == "search" else ""
    return f"{run}{row['phase']} {epoch}, {row['seconds']:.1f} s: {text}{of_search}"


def dominant(genotype: Mapping[str, Any]) -> str:
    """Return the number of occurrences of each operation in a genotype, most frequent first."""
    counts = Counter(name for name, _ in (*genotype["normal"], *genotype["reduce"]))
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def found(report: Mapping[str, Any]) -> None:
    """Print the genotype that a search found, its accuracy, and the files written."""
    console = render.console()
    genotype = report["genotype"]
    for title, genes in (("normal", genotype["normal"]), ("reduction", genotype["reduce"])):
        nodes = [genes[i : i + 2] for i in range(0, len(genes), 2)]
        pairs = ["  ".join(f"{name} of {source}" for name, source in pair) for pair in nodes]
        for node, pair in enumerate(pairs, 2):
            console.print(f"{title if node == 2 else '':10} {node} = {pair}", markup=False, soft_wrap=True)
    if report["held_out_accuracy"] is not None:
        accuracy, images = report["held_out_accuracy"], report["held_out_images"]
        console.print(f"{accuracy:.2%} of {images} held-out images, {report['seconds']:.0f} s of training")
    for file in report["files"]:
        console.print(f"written: {file}", markup=False, soft_wrap=True)


def _grown(row: Row) -> str:
    return f"{row['grown']}, {row['parameters']:,} weights, scores changed by {row['difference']:.1e}"


def _figures(row: Row) -> tuple[str, ...]:
    def percent(key: str) -> str:
        return f"{row[key]:.1%}" if key in row else ""

    return (
        f"{row['epoch']}/{row['epochs']}",
        f"{row['loss']:.3f}",
        percent("accuracy"),
        percent("validation_accuracy"),
        percent("held_out_accuracy"),
        f"{row['entropy']:.3f}" if "entropy" in row else "",
    )
