"""Processes that compile and verify the kernels of a benchmark before it measures."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Collection, Iterable
from typing import Any

from nxcore.session import Session
from nxcore.spec.problem import Problem


def entered(
    session: Session, calls: Iterable[tuple[str, tuple[Any, ...]]], only: Collection[str] = ()
) -> None:
    """Compile and verify every kernel for calls, each given as an operator's name and its arguments.

    ``only`` names the backends, all if empty.
    """
    for op, args in calls:
        problem = Problem.of(session.registry.spec(op), args)
        for backend, kernel in session.tuner.taking_part(op):
            if only and backend.name not in only:
                continue
            with contextlib.suppress(Exception):  # the race will say what is wrong
                session.tuner.enter(backend, kernel, problem, args)


def ahead(count: int) -> None:
    """Run this program ``count`` times at once, each with ``--part NUMBER COUNT``, and wait."""
    started = [
        subprocess.Popen([sys.executable, *sys.argv, "--part", str(i), str(count)]) for i in range(count)
    ]
    for process in started:
        process.wait()
