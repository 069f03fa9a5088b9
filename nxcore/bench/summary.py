"""Summary of a record, a line for each kernel: geometric mean, worst, and how often torch is faster."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

CALLED = "nxcore, called"
"""Label of the chooser's line that includes the time of a call through the operator."""


def summary(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one line for each kernel, including the A/A row, then two for the chooser.

    Parameters
    ----------
    rows : iterable of dict
        The rows of a record.

    Returns
    -------
    list of dict
        ``label``; ``cells``, the number of timed cells; ``mean`` (geometric), ``p5`` and ``worst`` of the
        ratio to torch's fastest idiom; ``slower``, the number of cells with a median below 1; ``slow``, the
        number of those beyond the margin; ``verdicts``, the number of each verdict.
    """
    found = sorted(rows, key=lambda r: r["record"] == "choice")
    lines = [
        _line(label, [r for r in found if r["label"] == label], "ratio")
        for label in dict.fromkeys(r["label"] for r in found)
    ]
    chosen = [r for r in found if r["record"] == "choice"]
    return [*lines, _line(CALLED, chosen, "ratio_called")] if chosen else lines


def _line(label: str, rows: Sequence[dict[str, Any]], ratio: str) -> dict[str, Any]:
    intervals = [r[ratio] for r in rows if r.get(ratio)]
    medians = sorted(r[0] for r in intervals)
    return {
        "label": label,
        "cells": len(medians),
        "mean": round(math.exp(sum(map(math.log, medians)) / len(medians)), 4) if medians else None,
        "p5": medians[math.ceil(len(medians) * 0.05) - 1] if medians else None,
        "worst": medians[0] if medians else None,
        "slower": sum(m < 1 for m in medians),
        "slow": sum(high < 1 / (1 + _margin(r)) for r in rows if r.get(ratio) for high in (r[ratio][2],)),
        "verdicts": dict(Counter(r["verdict"] for r in rows)),
    }


def _margin(row: dict[str, Any]) -> float:
    return max(0.02, 2 * (row.get("noise") or 0.0))
