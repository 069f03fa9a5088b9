"""A bar on the standard error of a terminal, while a step waits for compilers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Advance = Callable[[str, int, int], None]
"""Called with what is done, how many are done, and how many there are."""


@contextlib.contextmanager
def shown(title: str, *, lines: bool = False) -> Iterator[Advance]:
    """Show progress within this block: a bar in a terminal; elsewhere a line each, if ``lines`` is set."""
    if not sys.stderr.isatty():
        yield _line if lines else _silent
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of)


def told(line: str) -> None:
    """Write a line to the standard error of a terminal; nothing elsewhere, where logs have it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{line}\n")


def _line(what: str, done: int, of: int) -> None:
    sys.stderr.write(f"compiled {done}/{of}: {what}\n")


def _silent(_what: str, _done: int, _of: int) -> None:
    pass
