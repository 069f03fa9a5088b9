"""Each kernel held to the rules in a process of its own: one that crashes or hangs spoils one row."""

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
"""Where a child gets its registry: what is installed, as the environment says."""

TIMEOUT = 600.0
"""Seconds for a kernel in one element type; a compiler may need most of it."""

STARTUP = 60.0
"""Seconds that a child may take to import what it runs."""


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
    """Hold kernels to every rule, each in a process of its own.

    Parameters
    ----------
    registry : Registry
        What is to be run; nothing of it runs in this process.
    backends, ops, dtypes : sequence of str
        As in ``examine``.
    timeout : float
        Seconds for a kernel in one element type, after which it counts as hung; imports come before.
    source : str
        ``"module:function"`` that returns the same registry in a child.
    advance : callable
        As in ``examine``.

    Returns
    -------
    list of Row
        One a kernel and element type, in the registry's order.
    """
    asked = wanted(registry, backends=backends, ops=ops, dtypes=dtypes)
    rows: list[Row] = []
    for _, group in groupby(asked, key=lambda cell: (cell.kernel.op, cell.label)):
        left = list(group)
        while left:
            advance(_title(left[0]), len(rows), len(asked))
            if not left[0].machine:
                rows.append(held(left.pop(0)))
                continue
            for row in _in_a_child(tuple(left), timeout, source):
                rows.append(row)
                del left[0]
                if left:
                    advance(_title(left[0]), len(rows), len(asked))
    advance("done", len(asked), len(asked))
    return rows


def _title(cell: Cell) -> str:
    return f"{cell.kernel.op} {cell.label} {cell.type}"


def alone(cell: Cell, timeout: float = TIMEOUT, source: str = INSTALLED) -> Row:
    """Hold one kernel in one element type to every rule, in a process of its own.

    Parameters
    ----------
    cell : Cell
        Which; its sample is not looked at.
    timeout, source
        As in ``isolated``.
    """
    return next(_in_a_child((cell,), timeout, source))


def _in_a_child(cells: Sequence[Cell], timeout: float, source: str) -> Iterator[Row]:
    """Yield a row for each cell of one kernel, as long as the child is sound; at least one."""
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
            _line(reading, time.monotonic() + STARTUP)  # a child that couldn't start has no row either
            for cell in cells:
                line, step = _row(reading, time.monotonic() + timeout)
                if line:
                    row = Row.from_dict(json.loads(line))
                    yield row
                    if row.ok:
                        continue
                elif line is None:
                    yield _lost(cell, "hung", f"no end after {timeout:g} s; its process was killed", step)
                else:
                    yield _lost(cell, "crashed", _death(child.wait(), said), step)
                return  # what is wrong, or worse, may have spoilt its process for the next
        finally:
            child.kill()
            child.wait()
            os.close(reading)


def _row(reading: int, deadline: float) -> tuple[str | None, tuple[str, str] | None]:
    """Return the line of the next row, as ``_line`` does, and the rule and sample that began last."""
    step = None
    while (line := _line(reading, deadline)) and line.startswith("["):
        rule, sample = json.loads(line)
        step = rule, sample
    return line, step


def _line(reading: int, deadline: float) -> str | None:
    """Return the next line, an empty one if the other end is closed, None if none came in time."""
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
    """Return how a child ended, and the last that it said."""
    said.seek(0)
    lines = [line for line in said.read().splitlines() if line.strip()]
    last = f": {lines[-1].strip()[:300]}" if lines else ""
    how = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    return f"its process {how}{last if status >= 0 else ''}"
