"""The terminal: its width, tables, and figures as text."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.table import Column

WIDTH = 100
WIDEST = 1000
WHOLE = frozenset(
    {
        "backend", "check", "chosen", "days", "error", "from", "kernel", "median", "of roofline", "operator",
        "outcome", "policy", "status", "times as fast as torch", "type", "verdict", "was",
    }
)  # fmt: skip
"""Columns of names and figures. Their lines are never broken, so that names can be copied."""


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal, at most `WIDTH`; in a pipe as ``COLUMNS``, or `WIDTH`."""
    stream = sys.stderr if stderr else sys.stdout
    live = stream is not None and stream.isatty()  # None where it was closed
    width = min(Console(stderr=stderr).width, WIDTH) if live else asked() or WIDTH
    return Console(stderr=stderr, width=width, highlight=False)


def asked() -> int:
    """Return the width in ``COLUMNS``, 0 if it is unset or no width."""
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0


def table(*columns: str, title: str = "", right: tuple[str, ...] = ()) -> Table:
    """Return an empty table; columns of numbers are named in ``right``."""
    shown = Table(title=escape(title) or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        justify: JustifyMethod = "right" if column in right else "left"
        shown.add_column(column, justify=justify, overflow="fold", no_wrap=column in WHOLE)
    return shown


def show(shown: Table) -> None:
    """Print a table. No word is cut: see `_print`."""
    _print(shown, whole=False)


def show_whole(shown: Table) -> None:
    """Print a table of names and figures. No cell is broken into lines: see `_print`."""
    _print(shown, whole=True)


def _print(shown: Table, *, whole: bool) -> None:
    """Print a table as wide as the screen, or as its cells need.

    A terminal that is too narrow for that, or a pipe whose ``COLUMNS`` are, gets a block of lines for each
    row. Another pipe has no such limit.
    """
    screen = console()
    ranges = [_range(screen, column) for column in shown.columns]
    between = Measurement.get(screen, screen.options.update(width=WIDEST), shown).maximum
    between -= sum(r.maximum for r in ranges)  # what separates the columns
    needed = between + sum(r.maximum if whole else r.minimum for r in ranges)
    if needed > screen.width and (screen.is_terminal or asked()):
        _print_rows(screen, shown)
        return
    screen.width = max(screen.width, needed)  # the width that print takes is at most the console's
    if not whole:
        # Rich's own division of a width may leave a column less than its longest word.
        widths = _divided(screen.width - between, ranges)
        for column, width in zip(shown.columns, widths, strict=True):
            column.width = width
    screen.print(shown, crop=False)


def _range(screen: Console, column: Column) -> Measurement:
    """Return how wide a column must be for its longest word, and for its longest line."""
    options = screen.options.update(width=WIDEST)
    cells = [Measurement.get(screen, options, cell) for cell in (column.header, *column.cells)]
    most = max(cell.maximum for cell in cells)
    least = most if column.no_wrap else max(cell.minimum for cell in cells)
    return Measurement(max(least, column.min_width or 0), max(most, column.min_width or 0))


def _divided(width: int, ranges: list[Measurement]) -> list[int]:
    """Divide ``width`` over columns: each has its minimum, and a share of the rest by what it lacks."""
    rest = max(0, width - sum(r.minimum for r in ranges))
    widths = []
    lacking = sum(r.span for r in ranges)
    for each in ranges:
        more = min(each.span, rest * each.span // max(lacking, 1))
        widths.append(each.minimum + more)
        rest, lacking = rest - more, lacking - each.span
    return widths


def _print_rows(screen: Console, shown: Table) -> None:
    """Print each row as a block: what the row is of, and below it a line for each other cell."""
    if shown.title:
        screen.print(shown.title)
    columns = [(str(column.header), list(column.cells)) for column in shown.columns]
    # A first column may have no header: a sign before the name.
    named = next(n for n, (header, _) in enumerate(columns, 1) if header)
    for row in range(shown.row_count):
        screen.print(*(cells[row] for _, cells in columns[:named]))
        block = Table.grid(padding=(0, 2, 0, 0))
        block.add_column(no_wrap=True)
        block.add_column(overflow="fold")
        for header, cells in columns[named:]:
            if cells[row]:
                block.add_row(f"  {header}", cells[row])
        screen.print(block)


def ratio_text(ratio: Any) -> str:
    """Return a ratio with its interval."""
    median, low, high = ratio
    return f"{median:.2f} [dim]\\[{low:.2f}, {high:.2f}][/dim]"


def error_text(value: float | None) -> str:
    """Return an error against float64; nothing where none was measured."""
    return "" if value is None else f"{value:.1e}"
