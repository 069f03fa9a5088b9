"""Check each kernel in a process of its own, so that one that crashes or hangs affects only its own row."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import IO

from nxcore.registry.registry import Registry
from nxcore.testing.cell import Cell
from nxcore.testing.rows import Advance, Finding, Row, held, wanted

INSTALLED = "nxcore.testing.cell:installed"
"""The function that gives a child process its registry of installed backends."""

TIMEOUT = 600.0
"""Seconds for a kernel in one dtype; a compiler may need most of them."""

STARTUP = 60.0
"""Seconds for the imports of a child process."""


def isolated(
    registry: Registry,
    *,
    backends: Sequence[str] = (),
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    timeout: float = TIMEOUT,
    source: str = INSTALLED,
    advance: Advance = lambda *_: None,
) -> list[Row]:
    """Check kernels by every rule, each in a process of its own.

    Parameters
    ----------
    registry : Registry
        The kernels. None of them runs in this process.
    backends, ops, dtypes : sequence of str
        As in ``examine``.
    timeout : float
        Seconds for a kernel in one dtype, without imports; then it counts as hung.
    source : str
        ``"module:function"`` that returns the same registry in a child process.
    advance : callable
        As in ``examine``.

    Returns
    -------
    list of Row
        One for each kernel and dtype, in the registry's order.

    Examples
    --------
    >>> nxcore.testing.isolated(nxcore.Session().registry, ops=["sum_backward"])
    []
    """
    chosen = wanted(registry, backends=backends, ops=ops, dtypes=dtypes)
    rows: list[Row] = []
    for _, group in groupby(chosen, key=lambda cell: (cell.kernel.op, cell.label)):
        left = list(group)
        while left:
            advance(_title(left[0]), len(rows), len(chosen))
            if not left[0].machine:
                rows.append(held(left.pop(0)))
                continue
            for row in _in_a_child(tuple(left), timeout, source):
                rows.append(row)
                del left[0]
                if left:
                    advance(_title(left[0]), len(rows), len(chosen))
    advance("done", len(chosen), len(chosen))
    return rows


def _title(cell: Cell) -> str:
    return f"{cell.kernel.op} {cell.label} {cell.type}"


def alone(cell: Cell, timeout: float = TIMEOUT, source: str = INSTALLED) -> Row:
    """Check one kernel in one dtype by every rule, in a process of its own.

    Parameters
    ----------
    cell : Cell
        The kernel and dtype; its sample is ignored.
    timeout, source
        As in ``isolated``.
    """
    return next(_in_a_child((cell,), timeout, source))


def _in_a_child(cells: Sequence[Cell], timeout: float, source: str) -> Iterator[Row]:
    """Yield a row for each cell of one kernel until one fails; at least one row."""
    first = cells[0]
    reading, writing = os.pipe()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "nxcore.testing", source, str(writing), first.kernel.op, first.label]
            + [cell.type for cell in cells],
            pass_fds=(writing,),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
        os.close(writing)
        try:
            _line(reading, time.monotonic() + STARTUP)  # a child that fails to start writes no line
            for cell in cells:
                line, step = _row(reading, time.monotonic() + timeout)
                if line:
                    row = Row.from_dict(json.loads(line))
                    yield row
                    if row.ok:
                        continue
                elif line is None:
                    yield _lost(
                        cell, "hung", f"did not finish in {timeout:g} s; its process was killed", step
                    )
                else:
                    yield _lost(cell, "crashed", _death(child.wait(), said), step)
                return  # a failed kernel may have corrupted the process
        finally:
            child.kill()
            child.wait()
            os.close(reading)


def _row(reading: int, deadline: float) -> tuple[str | None, tuple[str, str] | None]:
    """Return the line of the next row, as ``_line`` does, and the rule and sample of the last step."""
    step = None
    while (line := _line(reading, deadline)) and line.startswith("["):
        rule, sample = json.loads(line)
        step = rule, sample
    return line, step


def _line(reading: int, deadline: float) -> str | None:
    """Return the next line; an empty one if the other end is closed, None after the deadline."""
    read = b""
    while not read.endswith(b"\n"):
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        one = os.read(reading, 1)
        if not one:
            return ""
        read += one
    return read.decode()


def _lost(cell: Cell, outcome: str, reason: str, step: tuple[str, str] | None) -> Row:
    broken = () if step is None else ({"rule": step[0], "message": reason, "sample": step[1]},)
    return Row.from_dict(
        {
            "op": cell.kernel.op,
            "kernel": cell.label,
            "dtype": cell.type,
            "device": "",
            "outcome": outcome,
            "reason": reason if step is None else str(Finding(step[0], reason, step[1])),
            "broken": broken,
        }
    )


def _death(status: int, said: IO[str]) -> str:
    """Return how a child process ended, and its last line of output."""
    said.seek(0)
    lines = [line for line in said.read().splitlines() if line.strip()]
    last = f": {lines[-1].strip()[:300]}" if lines else ""
    how = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    return f"its process {how}{last if status >= 0 else ''}"
