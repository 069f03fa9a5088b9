"""Size classes: arrays of so many elements, and the shares of the bandwidth to reach in each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from nxcore.measure.ceilings import Ceilings
from nxcore.spec.sample import Sample
from nxcore.spec.spec import OpSpec

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """A class: the shapes of its arrays, and the least share of the bandwidth, and the one aimed at."""

    shapes: tuple[Shape, ...]
    minimum: float
    aim: float


SIZES = {
    "small": Size(((1 << 16,), (1 << 18,)), 0.15, 0.25),
    "medium": Size(((1 << 22,),), 0.25, 0.40),
    "large": Size(((1 << 24,),), 0.10, 0.30),
    "xlarge": Size(((1 << 26,),), 0.10, 0.25),
    "batch": Size(((256, 64, 64),), 0.25, 0.45),
}
"""Every class by its name."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The share of the bandwidth that the chooser's winner reached in one cell of a class.

    Attributes
    ----------
    op, size, sample, dtype, label : str
        The cell, its class, and the kernel.
    device_us, host_us : float
        Median time of a call on the device and on the host.
    share : float
        Its bytes per second, as a share of the measured bandwidth.
    minimum, aim : float
        The shares of the class.
    met : str
        ``aim``, ``minimum`` or ``missed``.
    """

    op: str
    size: str
    sample: str
    dtype: str
    label: str
    device_us: float
    host_us: float
    share: float
    minimum: float
    aim: float
    met: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def classes(spec: OpSpec, sizes: Iterable[str]) -> tuple[Sample, ...]:
    """Return the samples of an operator's size classes; none if its tensors aren't arrays of one length.

    >>> [sample.name for sample in classes(nxcore.ops.add.spec, ["small"])]
    ['small_65536', 'small_262144']
    """
    pattern = next((s for s in spec.tagged("bench") if _is_array(s)), None)
    if pattern is None:
        return ()
    return tuple(
        replace(pattern.shaped(shape), name=_name(size, shape), tags=frozenset({"bench"}))
        for size in sizes
        if size in SIZES
        for shape in SIZES[size].shapes
    )


def _name(size: str, shape: Shape) -> str:
    return f"{size}_{'x'.join(map(str, shape))}"


def _is_array(sample: Sample) -> bool:
    shapes = {sketch.shape for sketch in sample.sketches}
    return len(shapes) == 1 and all(len(shape) == 1 for shape in shapes)


def reached(rows: Sequence[dict[str, Any]], sizes: Iterable[str], best: Ceilings) -> Iterator[Reached]:
    """Yield what was reached in each cell of a class.

    Parameters
    ----------
    rows : sequence of dict
        The rows of a record.
    sizes : iterable of str
        Classes.
    best : Ceilings
        The measured bandwidths.
    """
    names = {_name(size, shape): size for size in sizes if size in SIZES for shape in SIZES[size].shapes}
    ran = [row for row in rows if row["record"] == "row" and "device_us" in row]
    timed = {(*_cell(row), row["label"]): row for row in ran}
    for choice in rows:
        size = names.get(choice["sample"])
        row = timed.get((*_cell(choice), choice.get("chosen")))
        if choice["record"] != "choice" or size is None or row is None:
            continue
        share = 1e6 * row["bytes"] / row["device_us"] / best.bandwidth(row["bytes"])
        least, aim = SIZES[size].minimum, SIZES[size].aim
        met = "aim" if share >= aim else "minimum" if share >= least else "missed"
        times = row["device_us"], row["host_us"]
        op, sample, dtype = _cell(row)
        yield Reached(op, size, sample, dtype, row["label"], *times, round(share, 4), least, aim, met)


def speedups(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how the chooser did over all cells.

    Returns
    -------
    dict
        ``cells``; ``mean`` (geometric), ``max`` and ``min`` of the winner's speed-up.
    """
    medians = [r["ratio"][0] for r in rows if r["record"] == "choice" and r.get("ratio")]
    return {
        "cells": len(medians),
        "mean": round(math.exp(sum(map(math.log, medians)) / len(medians)), 4) if medians else None,
        "max": max(medians, default=None),
        "min": min(medians, default=None),
    }


def _cell(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["op"], row["sample"], row["dtype"]
