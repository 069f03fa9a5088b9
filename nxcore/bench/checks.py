"""Eight tests of a run: right kernels, possible times, each size class's bandwidth, and no slow choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nxcore.bench.sizes import SIZES, Reached

Found = dict[str, Any]


def checks(rows: Sequence[Found], found: Sequence[Reached]) -> list[Found]:
    """Return the eight tests of a run.

    Parameters
    ----------
    rows : sequence of dict
        The rows of a record.
    found : sequence of Reached
        What was reached in the cells of size classes.

    Returns
    -------
    list of dict
        ``test``, its name; ``cells``, the number of cells or kernels that it looked at; ``failed``, how many
        of these failed it; ``passed``, None for a test without cells.

    Examples
    --------
    >>> [test["test"] for test in checks([], [])]
    ['right', 'possible', 'small', 'medium', 'large', 'xlarge', 'batch', 'not slower']
    """
    ran = [r for r in rows if r["record"] == "row" and r["verdict"] != "DECLINED"]
    choices = [r for r in rows if r["record"] == "choice" and r.get("ratio")]
    return [
        _test("right", [r["verdict"] != "WRONG" for r in ran]),
        _test("possible", [r["verdict"] != "BELOW_FLOOR" for r in ran]),
        *(_test(size, [r.met != "missed" for r in found if r.size == size]) for size in SIZES),
        _test("not slower", list(map(not_slower, choices))),
    ]


def not_slower(choice: Found) -> bool:
    """Return whether the chooser's winner in a cell isn't slower than torch beyond the noise."""
    least: float = choice["ratio"][2]
    return least >= 1 / (1 + max(0.02, 2 * (choice.get("noise") or 0.0)))


def _test(name: str, passed: Sequence[bool]) -> Found:
    failed = sum(not one for one in passed)
    return {"test": name, "cells": len(passed), "failed": failed, "passed": not failed if passed else None}


def success(tests: Sequence[Found]) -> float | None:
    """Return the share of the tests that passed, of those that had cells; None where none had.

    >>> success([{"passed": True}, {"passed": False}, {"passed": None}])
    0.5
    """
    ran = [test["passed"] for test in tests if test["passed"] is not None]
    return round(sum(ran) / len(ran), 4) if ran else None
