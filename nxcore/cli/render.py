"""Output of commands: tables for a terminal, plain text in a pipe, JSON for machines, checked files."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from nxcore.cli import interruption
from nxcore.errors import InvalidInputError
from nxcore.store.encoding import encoded

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


VERDICT = {
    "verified": "green",
    "not run": "yellow",
    "declined": "yellow",
    "wrong": "red",
    "crashed": "red",
    "hung": "red",
}


def unavailable(rows: Iterable[tuple[str, str]]) -> str:
    """Return one line of (name, reason) pairs, grouped by reason."""
    names: dict[str, list[str]] = {}
    for name, reason in rows:
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(known)}: {reason}" for reason, known in names.items())


def copied(text: str) -> None:
    """Print a line for copying: only the terminal wraps it, so that a copy has no line break."""
    console().print(text, markup=False, soft_wrap=True)


def line(text: str) -> None:
    """Print one line as it is."""
    console().print(text, markup=False)


def error(text: str) -> None:
    """Print an error to standard error."""
    console(stderr=True).print(f"[red]error:[/red] {escape(text)}", soft_wrap=True)


def warning(text: str) -> None:
    """Print a warning to standard error."""
    console(stderr=True).print(f"[yellow]warning:[/yellow] {escape(text)}", soft_wrap=True)


def dumps(data: Any) -> str:
    """Return ``data`` as JSON; values that JSON lacks become text."""
    return encoded(data, indent=2, default=str) + "\n"


def json(data: Any) -> None:
    """Print ``data`` as JSON."""
    text(dumps(data))


def text(content: str) -> None:
    """Print a file's content, neither wrapped nor coloured."""
    sys.stdout.write(content)


@contextlib.contextmanager
def progress(
    title: str, *, quiet: bool = False, every: float = 0.0
) -> Iterator[Callable[[str, int, int], None]]:
    """Show progress: a live bar in a terminal, a line for each step in a pipe, nothing if ``quiet``.

    In a pipe at most a line in ``every`` so many seconds, and one for the first and the last step.
    A step raises an interruption that was lost; so does the beginning of the block.
    """
    interruption.raise_lost()
    with _shown(title, quiet, every) as advance:
        yield interruption.checked(advance)


@contextlib.contextmanager
def _shown(title: str, quiet: bool, every: float) -> Iterator[Callable[[str, int, int], None]]:
    screen = console(stderr=True)
    if quiet:
        yield lambda *_: None
        return
    if not sys.stderr.isatty():
        latest = -math.inf

        def say(what: str, done: int, total: int) -> None:
            nonlocal latest
            if done == total or time.monotonic() - latest >= every:
                latest = time.monotonic()
                screen.print(f"{title} {done}/{total}: {what}", markup=False, soft_wrap=bool(every))

        yield say
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def file(path: Path, option: str) -> Path:
    """Return a file's path, whose folder exists then.

    Raises
    ------
    InvalidInputError
        If it can't be written; the message names the option.
    """
    why = "it is a folder" if path.is_dir() else _unwritable(path.parent)
    if not why and path.exists() and not os.access(path, os.W_OK):
        why = "no permission to write it"
    if why:
        raise InvalidInputError(
            f"{option} must be a file that can be written, got {path}: {why}", argument=option
        )
    return path


def folder(path: Path, option: str) -> Path:
    """Return a folder's path, which exists then.

    Raises
    ------
    InvalidInputError
        If nothing can be written there; the message names the option.
    """
    if why := _unwritable(path):
        raise InvalidInputError(f"{option} must be a folder to write to, got {path}: {why}", argument=option)
    return path


def _unwritable(path: Path) -> str:
    """Make a folder with its parents; return why nothing can be written there, or nothing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{error.filename}: {error.strerror}" if error.filename != str(path) else str(error.strerror)
    return "" if os.access(path, os.W_OK | os.X_OK) else "no permission to write there"
