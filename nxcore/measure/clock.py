"""Clock: what a race reads time by, as it was at this module's import, and results of calls that are timed.

A kernel is code of another author in the same process. It may replace the functions by which a race reads
time, and it may return another result where it sees that it is timed. A race with either gives no figures.
"""

from __future__ import annotations

import math
import statistics
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nxcore.errors import MeasurementError
from nxcore.spec.problem import leaves

FAR = 0.5
"""The distance of two results, in the norm of the one, from which on they can't be of one function.

Verification holds kernels to far less. This finds a result that was left out, or kept from another call.
"""

_NAMES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (time, ("perf_counter_ns", "perf_counter", "process_time", "process_time_ns", "thread_time")),
    (time, ("clock_gettime_ns", "monotonic_ns")),
    (statistics, ("median",)),
    (torch.cuda, ("synchronize", "current_stream", "_sleep")),
    (torch.cuda.Event, ("record", "query", "synchronize", "elapsed_time")),
)
second = (
    partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC_RAW)
    if hasattr(time, "CLOCK_MONOTONIC_RAW")
    else time.monotonic_ns
)
"""Another clock of the CPU, in nanoseconds, which nothing sets or slows."""

AGREE = 1.2
"""The most of the time by one clock, relative to that by another."""

READ = tuple((owner, name, getattr(owner, name, None)) for owner, names in _NAMES for name in names)
"""The functions that a race calls: owner, name, and the function at the import."""


def replaced() -> str:
    """Return the function that was replaced since the import, as text; empty if none was."""
    for owner, name, bound in READ:
        if getattr(owner, name, None) is not bound:
            return f"{owner.__name__}.{name}"
    return ""


def apart(took: int, least: int, most: int) -> str:
    """Return that two clocks disagree on a time of 100 us or more; empty if they don't.

    By the other one it is between ``least`` and ``most`` nanoseconds: one is read after the other.
    """
    if max(took, least) < 100_000 or least / AGREE <= took <= AGREE * most:
        return ""
    return f"two clocks disagree: {took / 1e3:,.0f} us by the one, {most / 1e3:,.0f} us by the other"


def unlike(result: Any, reference: Any) -> str:
    """Return how a result differs from the reference's, if they can't be of one function; else nothing.

    Integers, such as the offsets of a pool, may differ at ties, and are not compared.
    """
    for got, want in zip(leaves(result), leaves(reference), strict=False):
        if type(got) is not type(want):  # its work may still be to come
            return f"they are of {type(got).__name__}, torch's of {type(want).__name__}"
        if got is want or not _comparable(got, want):
            continue
        norm, far = _norm(want), _norm(got - want)
        if math.isfinite(norm) and not far <= FAR * norm:  # NaN is far
            return f"its distance from torch's is {far:.2g}, and the norm of torch's is {norm:.2g}"
    return ""


def held(result: Any, reference: Any) -> None:
    """Raise a MeasurementError where a result can't be of the reference's function."""
    if why := unlike(result, reference):
        raise MeasurementError(f"its results are wrong while it is timed: {why}")


def _norm(tensor: Tensor) -> float:
    kind = torch.float32 if tensor.element_size() < 4 else tensor.dtype  # half precision overflows
    return float(torch.linalg.vector_norm(tensor, dtype=kind))


def _comparable(got: Tensor, want: Tensor) -> bool:
    return got.shape == want.shape and got.dtype == want.dtype and got.dtype.is_floating_point
