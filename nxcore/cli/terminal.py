"""The terminal: its width, tables, and figures as text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import JustifyMethod

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
    """Return a console as wide as the terminal, at most `WIDTH`, and `WIDTH` in a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    wide = Console(stderr=stderr)
    live = stream is not None and stream.isatty()  # None where it was closed
    return Console(stderr=stderr, width=min(wide.width, WIDTH) if live else WIDTH, highlight=False)


def table(*columns: str, title: str = "", right: tuple[str, ...] = ()) -> Table:
    """Return an empty table; columns of numbers are named in ``right``."""
    shown = Table(title=escape(title) or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        justify: JustifyMethod = "right" if column in right else "left"
        shown.add_column(column, justify=justify, overflow="fold", no_wrap=column in WHOLE)
    return shown


def show(shown: Table) -> None:
    """Print a table; wider than the terminal if a word would be cut otherwise, so that it can be copied."""
    screen = console()
    least = Measurement.get(screen, screen.options.update(width=WIDEST), shown).minimum
    screen.print(shown, width=max(screen.width, least), crop=False)


def show_whole(shown: Table) -> None:
    """Print a table of names and figures, wider than the terminal where a cell would be cut otherwise."""
    screen = console()
    needed = Measurement.get(screen, screen.options.update(width=WIDEST), shown).maximum
    screen.width = max(screen.width, needed)  # the width that print takes is at most the console's
    screen.print(shown, crop=False)


def ratio_text(ratio: Any) -> str:
    """Return a ratio with its interval."""
    median, low, high = ratio
    return f"{median:.2f} [dim]\\[{low:.2f}, {high:.2f}][/dim]"


def error_text(value: float | None) -> str:
    """Return an error against float64; nothing where none was measured."""
    return "" if value is None else f"{value:.1e}"
