"""Measure every kernel on its operator's real workloads and append a record: one JSON line a cell and kernel.

    python benchmarks/record.py --output benchmarks/results/<device>/<date>.jsonl [--op softmax_sum] [--cpu]

Inputs are rotated over five times the last-level cache (``cold``), all kernels of a cell race in interleaved
blocks, and the reference races itself. A row faster than the device's floor is an error, not a record.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import itertools
import json
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from nxcore.choice import AGAIN
from nxcore.device import describe
from nxcore.errors import MeasurementError
from nxcore.measure import Ceilings, Effort, ceilings, race
from nxcore.problem import Problem
from nxcore.rotation import rotating, rotation
from nxcore.select import Candidate, compare, settled, winners
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec import OpSpec, Sample
from nxcore.verify import Truth

EFFORT = Effort(looks=(12, 20), warm_s=0.05, budget_s=2.0)
SLACK = 0.97  # ceilings are measured, so a row may pass the floor by their own noise


def main() -> int:
    """Measure and write; return 1 if a row is wrong or below the floor."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--op", action="append", default=[], help="only these operators")
    parser.add_argument("--sample", action="append", default=[], help="only these samples")
    parser.add_argument("--dtype", action="append", default=[], help="only these element types")
    parser.add_argument("--cpu", action="store_true", help="on the CPU though there is a CUDA device")
    parser.add_argument("--huge", action="store_true", help="the samples tagged huge too")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and not options.cpu else "cpu")
    session = Session(Settings(), effort=EFFORT)
    best = ceilings(device)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    bad = 0
    with options.output.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"record": "head", **_head(device, best)}) + "\n")
        cells = list(_cells(session, options))
        for spec, sample, dtype in track(cells, "measuring", disable=not sys.stderr.isatty()):
            for row in _measure(session, best, spec, sample, dtype, device):
                stream.write(json.dumps({"record": "row", **row}) + "\n")
                bad += row["verdict"] in ("WRONG", "BELOW_FLOOR")
                print(_line(row), flush=True)
            stream.flush()
            gc.collect()
    return int(bad > 0)


def _head(device: torch.device, best: Ceilings) -> dict[str, Any]:
    packages = ("torch", "triton", "numba", "numba-cuda", "numpy", "cupy-cuda13x")
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "device": describe(device).to_dict(),
        "ceilings": best.to_dict(),
        "versions": versions,
        "cuda": torch.version.cuda,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "method": "cold: inputs rotated over 5 x last-level cache; median of interleaved blocks",
    }


def _cells(session: Session, options: argparse.Namespace) -> Iterator[tuple[OpSpec, Sample, torch.dtype]]:
    for name, spec in session.registry.ops.items():
        if options.op and name not in options.op:
            continue
        for sample, dtype in itertools.product(spec.tagged("bench"), spec.dtypes):
            if "huge" in sample.tags and not options.huge:
                continue
            if options.sample and sample.name not in options.sample:
                continue
            if options.dtype and str(dtype).removeprefix("torch.") not in options.dtype:
                continue
            yield spec, sample, dtype


def _measure(
    session: Session, best: Ceilings, spec: OpSpec, sample: Sample, dtype: torch.dtype, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Race the kernels of one cell and yield a row a kernel, those that can't run among them."""
    args = sample.build(spec, device, dtype)
    problem = Problem.of(spec, args)
    if problem.view:
        return
    sets = rotation(args, describe(device).l2)
    calls: dict[str, Callable[[], Any]] = {}
    candidates: list[Candidate] = []
    errors: dict[str, float] = {}
    truth = Truth.of(spec, args) if problem.tensors[0].numel() < 1 << 25 else None
    for backend, kernel in session.registry.kernels(spec.name):
        entry = session.tuner.enter(backend, kernel, problem, args)
        candidate = entry.candidate
        # What is timed as torch's users write it may return something else, and never serves.
        aside = getattr(kernel, "yardstick", False)
        if entry.call is not None and truth is not None and not aside:
            with torch.no_grad():
                found = truth.judge(entry.call(*args))
            if not found.ok and not candidate.native:  # torch is the baseline, wherever it rounds
                candidate = replace(candidate, refusal=f"wrong: {found.reason}")
            errors[candidate.label] = found.error
        if entry.call is not None and not candidate.refusal and not candidate.simulated:
            calls[candidate.label] = rotating(entry.call, sets)
        candidates.append(candidate)
    del truth
    calls[AGAIN] = rotating(spec.reference, sets)
    with torch.no_grad():
        timings = _raced(calls, candidates, device)
    timed = [replace(c, timing=timings.get(c.label)) for c in candidates]
    judged, noise = compare(timed, timings[AGAIN])
    won = {c.label for c in winners(judged)}
    cost = spec.cost(*args)
    cold = max(b for _, b in best.bandwidths[-2:])
    floor = best.t0_us + 1e6 * max(cost.bytes / cold, cost.flops / best.flops)
    for c in judged:
        row: dict[str, Any] = {
            "op": spec.name,
            "sample": sample.name,
            "dtype": str(dtype).removeprefix("torch."),
            "label": c.label,
            "error": errors.get(c.label),
            "noise": noise,
            "bytes": cost.bytes,
            "floor_us": floor,
        }
        if c.timing is None:
            wrong = c.refusal.startswith("wrong")
            yield row | {"verdict": "WRONG" if wrong else "DECLINED", "reason": c.refusal or "simulated"}
            continue
        t = c.timing
        verdict = "BASE" if c.native else "FAST" if c.label in won else _verdict(c, noise)
        if t.device_median_us < SLACK * (floor - best.t0_us):
            verdict = "BELOW_FLOOR"
        yield row | {
            "verdict": verdict,
            "device_us": round(t.device_median_us, 3),
            "host_us": round(sorted(t.host_us)[len(t.host_us) // 2], 3),
            "call_us": round(t.median_us, 3),
            "ratio": [round(v, 4) for v in (c.ratio.median, c.ratio.low, c.ratio.high)] if c.ratio else None,
            "share_of_floor": round(floor / t.device_median_us, 4),
            "gb_per_s": round(cost.bytes / t.device_median_us * 1e-3, 1),
            "blocks": len(t.device_us),
        }


def _raced(
    calls: dict[str, Callable[[], Any]], candidates: list[Candidate], device: torch.device
) -> dict[str, Any]:
    def clear(seen: Any) -> bool:
        return settled([replace(c, timing=seen.get(c.label)) for c in candidates], seen[AGAIN])

    rivals = frozenset({AGAIN, *(c.label for c in candidates if c.native)})
    try:
        return race(calls, device, effort=EFFORT, rivals=rivals, settled=clear)
    except MeasurementError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return race({k: calls[k] for k in ("torch", AGAIN)}, device, effort=EFFORT)


def _verdict(c: Candidate, noise: float) -> str:
    assert c.ratio is not None
    margin = 1 + max(0.02, 2 * noise)
    if c.ratio.high < 1 / margin:
        return "SLOW"
    return "SAME" if 1 / margin <= c.ratio.low and c.ratio.high <= margin else "AMBG"


def _line(row: dict[str, Any]) -> str:
    head = f"{row['op']:<26}{row['sample']:<35}{row['dtype']:<9}{row['label']:<19}{row['verdict']:<12}"
    if "device_us" not in row:
        return head + row["reason"]
    ratio = f"{row['ratio'][0]:.2f}x" if row["ratio"] else ""
    return (
        f"{head}{row['device_us']:>10.1f} us device {row['host_us']:>7.1f} us host"
        f"{ratio:>8} {row['share_of_floor']:>6.0%} of floor"
    )


if __name__ == "__main__":
    sys.exit(main())
