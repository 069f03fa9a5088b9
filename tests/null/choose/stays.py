"""Stays of a problem: how often it, as an argument, enters a file of ``nxcore/choose`` in a choice.

``python -m tests.null.choose.stays`` prints the files in order.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import nxcore.choose
from nxcore.choose.tuner import Tuner
from nxcore.measure.race import IN_CALL
from nxcore.registry.discovery import discover
from nxcore.spec.problem import Problem
from nxcore.store.files import Store
from nxcore.trust.gate import Gate

FOLDER = str(Path(nxcore.choose.__file__).parent)


def stays(problem: Problem, run: Callable[[], Any]) -> list[str]:
    """Return the files that ``problem`` enters, in order, while ``run`` runs."""
    found: list[str] = []

    def look(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(FOLDER):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        file = Path(code.co_filename).stem
        if any(frame.f_locals.get(name) is problem for name in names) and found[-1:] != [file]:
            found.append(file)

    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def of_a_new_problem() -> list[str]:
    """Return the stays of a call that no process has met, of an operator with kernels of each backend."""
    registry = discover()
    tuner = Tuner(registry, Gate(registry, Store()), IN_CALL)
    spec, x = registry.spec("add"), torch.ones(64)
    problem = Problem.of(spec, (x, x, 1, None))
    return stays(problem, lambda: tuner.choose(problem, (x, x, 1, None)))


if __name__ == "__main__":
    print(len(found := of_a_new_problem()), *found)
