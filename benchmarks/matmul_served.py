"""Time strict products as they are served on a GPU, beside torch's own, in the shapes of ``products.py``.

Each shape is raced first (policy ``measure``). Then the operator, torch and torch again take turns under the
default policy: the device's time of a call after the cache was overwritten, and after the device was kept
busy for as long as a host takes to prepare the call. Then calls one after the other are timed, which is what
a race decides by: a small call takes the host longer than the device. A shape is slower if the operator takes
more than the margin longer than torch: 2%, or twice what torch differs from itself.

    NXCORE_BACKENDS=cuda python benchmarks/matmul_served.py --json record.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from matmul import FLUSH, Call
from products import CASES, Case

import nxcore
from nxcore.store.encoding import encoded

MARGIN = 0.02
CALLS = 40  # of a block of calls one after the other
BUSY = 600_000  # cycles of the device before a call


def cold(calls: dict[str, Call], repeats: int) -> dict[str, float]:
    """Return the median microseconds of calls in turns, none of which waits for the host."""
    trash = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            trash.zero_()
            torch.cuda._sleep(BUSY)  # noqa: SLF001  the host's time isn't the device's
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times[name].append(1000 * start.elapsed_time(end))
    return {name: statistics.median(found) for name, found in times.items()}


def in_a_row(calls: dict[str, Call], repeats: int) -> dict[str, float]:
    """Return the median microseconds of a call among calls one after the other, of blocks in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            torch.cuda.synchronize()
            times[name].append(1e6 * (time.perf_counter() - began) / CALLS)
    return {name: statistics.median(found) for name, found in times.items()}


def compared(times: dict[str, float]) -> dict[str, Any]:
    """Return the operator's gain over torch, the margin, and whether it is slower."""
    noise = abs(times["torch again"] / times["torch"] - 1)
    gain, margin = min(times["torch"], times["torch again"]) / times["nxcore"], max(MARGIN, 2 * noise)
    return {"us": times, "gain": gain, "margin": margin, "slower": gain < 1 / (1 + margin)}


def measured(case: Case, repeats: int) -> dict[str, Any]:
    """Return which kernel serves a case, and the times."""
    a, b = case.operands()
    torch.matmul(a, b)
    began = time.perf_counter()
    with nxcore.policy("measure"):
        decision = nxcore.explain("matmul", a, b).decision
        nxcore.ops.matmul(a, b)
    raced = time.perf_counter() - began
    for _ in range(64):  # the first calls after a choice are watched, which waits for the device
        nxcore.ops.matmul(a, b)
    calls: dict[str, Call] = {
        "torch": lambda: torch.matmul(a, b),
        "nxcore": lambda: nxcore.ops.matmul(a, b),
        "torch again": lambda: torch.matmul(a, b),
    }
    return {
        "case": asdict(case),
        "served": str(decision.chosen),
        "captured": decision.captured.chosen if decision.captured else None,
        **compared(cold(calls, repeats)),
        "in_a_row": compared(in_a_row(calls, repeats)),
        "race_s": raced,
    }


def main() -> None:
    """Time all cases."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=80, help="begins no case after them")
    parser.add_argument("--cases", nargs="*", help="their names; all by default")
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    rows, began = [], time.perf_counter()
    with torch.no_grad():
        for case in CASES:
            if given.cases and case.name not in given.cases:
                continue
            if time.perf_counter() - began > given.seconds:
                print(f"no time for {case.name} and later cases")
                break
            row = measured(case, given.repeats)
            rows.append(row)
            told = []
            for found in (row, row["in_a_row"]):
                us = found["us"]
                told.append(
                    f"{us['nxcore']:.1f} us, torch {us['torch']:.1f} and {us['torch again']:.1f},"
                    f" {found['gain']:.2f}{' SLOWER' * found['slower']}"
                )
            names = f"{case.name} {row['served']}, captured {row['captured']}"
            print(f"{names}: {told[0]}; in a row {told[1]}", flush=True)
    count = Counter(row["served"] for row in rows)
    slower = [row["case"]["name"] for row in rows if row["slower"]]
    in_rows = [row["case"]["name"] for row in rows if row["in_a_row"]["slower"]]
    print(f"{len(rows)} shapes in {time.perf_counter() - began:.0f} s, served by {dict(count)}")
    print(f"slower than torch by more than the margin, on the device: {len(slower)}: {', '.join(slower)}")
    print(f"calls one after the other: {len(in_rows)}: {', '.join(in_rows)}")
    if given.json:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "repeats": given.repeats}
        given.json.write_text(encoded({**about, "cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
