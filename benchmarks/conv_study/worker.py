"""A process of the study: ``python -m benchmarks.conv_study.worker JOB`` writes JSON lines.

Toolkits are loaded here alone, so that the process of the command stays as it was, and a crash ends one job.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.conv_study import blocks
from benchmarks.conv_study.entrants import BASELINE, ENTRANTS, Bound, Entrant, conv2d
from benchmarks.conv_study.shapes import Shape
from nxcore.errors import FOREIGN
from nxcore.measure.decision import MARGIN, interval
from nxcore.spec.device import synchronize
from nxcore.spec.kernel import Verdict
from nxcore.spec.precision import coarser, precision_class
from nxcore.store.encoding import encoded
from nxcore.trust.gate import brief

AGAIN = f"{BASELINE} again"
TOY = Shape(8, 3, 1)
Line = dict[str, Any]


def first_calls(
    device: torch.device, which: list[Entrant], shapes: list[Shape], began: float
) -> Iterator[Line]:
    """Yield the seconds of a toolkit's start, then of each entrant's first call on each shape.

    The start is all from the moment ``began`` until the first entrant has convolved another shape.
    """
    started = False
    for entrant in which:
        if not (able := entrant.able(device)):
            yield _absent(entrant, able)
            continue
        try:
            _first(entrant, TOY, device)
            if not started:
                started = True
                yield {"toolkit": entrant.toolkit, "start_s": round(time.time() - began, 3)}
            for shape in shapes:
                seconds = _first(entrant, shape, device)
                yield {"label": entrant.label, "shape": shape.key, "first_s": round(seconds, 4)}
        except FOREIGN as raised:
            yield {"label": entrant.label, "absent": f"raised {brief(raised)}"}


def _absent(entrant: Entrant, verdict: Verdict) -> Line:
    return {"label": entrant.label, "absent": f"{verdict.reason}; {verdict.hint}".removesuffix("; ")}


def _first(entrant: Entrant, shape: Shape, device: torch.device) -> float:
    x, weight = shape.tensors(device)
    synchronize(device)
    began = time.perf_counter()
    bound = entrant.bind(x, weight, shape.padding)
    bound.wait(bound.call())
    synchronize(device)
    return time.perf_counter() - began


def race(
    device: torch.device, which: list[Entrant], shapes: list[Shape], effort: blocks.Effort, until: float
) -> Iterator[Line]:
    """Yield why an entrant is absent, then a cell for each shape, until the time is over."""
    able = []
    for entrant in which:
        if verdict := entrant.able(device):
            able.append(entrant)
        else:
            yield _absent(entrant, verdict)
    for shape in shapes:
        if time.time() < until:
            yield {"cell": cell(device, able, shape, effort)}


def cell(device: torch.device, able: list[Entrant], shape: Shape, effort: blocks.Effort) -> Line:
    """Return the rows of one shape, and the A/A noise: how far the baseline's interval is from itself."""
    x, weight = shape.tensors(device)
    exact = conv2d(x.double(), weight.double(), shape.padding)
    rows = {entrant.label: _checked(entrant, x, weight, shape, exact) for entrant in able}
    running = {label: bound for label, (bound, _) in rows.items() if bound is not None}
    times = blocks.timed({**running, AGAIN: running[BASELINE]}, device, effort)
    base = times[BASELINE].total_us
    twice = interval([a / b for a, b in zip(base, times[AGAIN].total_us, strict=True)])
    noise = max(twice.high - 1, 1 - twice.low, 0.0)
    found = []
    for label, (bound, row) in rows.items():
        more: Line = {}
        if bound is not None:
            more = _measured(bound, times[label], device)
            ratio = interval([a / b for a, b in zip(base, times[label].total_us, strict=True)])
            more["ratio"] = [round(v, 4) for v in (ratio.median, ratio.low, ratio.high)]
        found.append({"label": label, **row, **more})
    return {
        "shape": shape.key,
        "name": str(shape),
        "same": shape.same,
        "noise": round(noise, 4),
        "margin": round(max(MARGIN, 2 * noise), 4),
        "rows": found,
    }


def _checked(
    entrant: Entrant, x: torch.Tensor, weight: torch.Tensor, shape: Shape, exact: torch.Tensor
) -> tuple[Bound | None, Line]:
    """Run an entrant once; one that raises or is wrong isn't timed."""
    try:
        bound = entrant.bind(x, weight, shape.padding)
        result = bound.call()
        bound.wait(result)
        error = blocks.error(bound.tensor(result), exact)
    except FOREIGN as raised:
        return None, {"reason": f"raised {brief(raised)}"}
    precision = precision_class(error)
    row: Line = {"error": error if math.isfinite(error) else None, "precision": precision}
    if coarser(precision, entrant.promised):
        why = f"wrong: its error is {error:.1e}, and {entrant.promised} was promised"
        return None, row | {"reason": why, "wrong": True}
    return bound, row


def _measured(bound: Bound, times: blocks.Blocks, device: torch.device) -> Line:
    found: Line = {
        "total_us": round(statistics.median(times.total_us), 3),
        "host_us": round(statistics.median(times.host_us), 3),
        "blocks_us": [round(us, 3) for us in times.total_us],
        "kernel": bound.kernel(),
    }
    found["device_us"] = found["total_us"] if device.type == "cpu" else None
    if device.type == "cuda":
        try:
            found["device_us"] = blocks.device_us(bound, device)
        except FOREIGN as raised:  # the profiler's: the other times are known nevertheless
            found["unseen"] = brief(raised)
    return found


def lines(job: Line) -> Iterator[Line]:
    """Yield the lines of a job."""
    device = torch.device(job["device"])
    which = [e for e in ENTRANTS if e.label in job["entrants"]]
    shapes = [Shape(*numbers) for numbers in job["shapes"]]
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
    with torch.no_grad():
        if job["what"] == "first":
            yield from first_calls(device, which, shapes, job["began"])
        else:
            effort = blocks.Effort(*job["effort"])
            yield from race(device, which, shapes, effort, job["until"])


def main() -> None:
    """Run the job of the command line; what toolkits print goes to standard error."""
    with os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in lines(json.loads(sys.argv[1])):
            answers.write(encoded(line) + "\n")


if __name__ == "__main__":
    main()
