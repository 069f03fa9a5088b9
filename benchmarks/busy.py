"""Verdicts of races beside busy processes, against those of the quiet machine.

    python benchmarks/busy.py [--beside 0 1 4] [--seconds 60] [--json FILE] [--against FILE]

The problems are those of a step of the demo's model and of a ResNet's, on the CPU. Each is raced again until
it has a verdict, for so many seconds at most, beside so many processes that never wait; for a sixth of the
seconds beside more processes than processors. The quiet machine's verdicts are those beside none: run it on
an idle machine, or give the file of such a run. A verdict is wrong if it isn't the quiet machine's, and the
quiet times of the two kernels differ by more than 3%. None may be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from models import resnet
from torch import nn
from workloads import by_operators, step

import nxcore
from nxcore.bench.example import network
from nxcore.choose.tuner import Tuner
from nxcore.measure.busy import INCONCLUSIVE
from nxcore.session import default
from nxcore.spec.problem import Problem
from nxcore.store import problems
from nxcore.store.encoding import encoded

BUSY = "while True: pass"
TIE = 0.03
"""Quiet times that differ by less are a tie: either verdict is right."""

PAUSE_S = 0.2
"""Seconds between two races of a problem."""

MODELS = {
    "demo": (network, (64, 1, 32, 32)),
    "resnet": (lambda: resnet((1, 1, 1, 1), wide=False), (4, 3, 64, 64)),
    "resnet, many small images": (lambda: resnet((1, 1, 1, 1), wide=False), (32, 3, 32, 32)),
    "resnet, few large images": (lambda: resnet((1, 1, 1, 1), wide=False), (2, 3, 112, 112)),
}


def met() -> Iterator[Problem]:
    """Yield the problems of the models' steps, in training and in evaluation, each once."""
    known = set()
    for build, shape in MODELS.values():
        torch.manual_seed(0)
        model: nn.Module = build()
        nxcore.accelerate(model, watch=False)
        for training in (True, False):
            model.train(training)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "step.jsonl"
                with by_operators(), nxcore.policy("frozen"), nxcore.record(path):
                    step(model, torch.randn(shape))
                for _, line in problems.read(path):
                    found = problems.described(default().registry.spec(line["op"]), line)
                    if found not in known and default().tuner.accepting(found):
                        known.add(found)
                        yield found


@contextlib.contextmanager
def beside(count: int) -> Iterator[None]:
    """Run so many processes that never wait."""
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def raced(tuner: Tuner, problem: Problem, seconds: float) -> dict[str, Any]:
    """Race a problem until there is a verdict; return that, the times, and how long it took."""
    began, races = time.monotonic(), 0
    args = problems.arguments(problem)
    entries = [tuner.enter(b, k, problem, args, first=races == 0) for b, k in tuner.taking_part(problem.op)]
    while True:
        decision = tuner.measured(problem, args, entries).decision
        races += 1
        took = time.monotonic() - began
        if decision.rule != INCONCLUSIVE or took > seconds:
            break
        time.sleep(PAUSE_S)
    return {
        "problem": str(problem),
        "chosen": "" if decision.rule == INCONCLUSIVE else decision.chosen,
        "us": {c.label: c.timing.median_us for c in decision.candidates if c.timing},
        "ratio": {c.label: str(c.ratio) for c in decision.candidates if c.ratio},
        "seconds": round(took, 2),
        "races": races,
        "reason": decision.reason,
    }


def wrong(row: dict[str, Any], quiet: dict[str, Any]) -> bool:
    """Return whether a verdict isn't the quiet machine's, nor a tie there."""
    if not (row["chosen"] and quiet["chosen"]) or row["chosen"] == quiet["chosen"]:
        return False
    mine, best = (quiet["us"].get(of["chosen"]) for of in (row, quiet))
    return mine is None or best is None or mine > best * (1 + TIE)


def told(count: int, rows: Sequence[dict[str, Any]], quiet: dict[str, dict[str, Any]]) -> str:
    """Return a line that counts the verdicts beside so many processes."""
    decided = [row for row in rows if row["chosen"]]
    longest = max(r["seconds"] for r in rows)
    text = f"beside {count}: {len(decided)} of {len(rows)} decided, in {longest:.1f} s at most"
    if quiet:
        bad = [r for r in decided if r["problem"] in quiet and wrong(r, quiet[r["problem"]])]
        open_ = sum(not quiet.get(r["problem"], {}).get("chosen") for r in decided)
        text += f"; {len(bad)} wrong" + (f" ({open_} without a quiet verdict)" if open_ else "")
        for r in bad:
            was = quiet[r["problem"]]
            text += (
                f"\n  wrong: {r['problem']}: {r['chosen']} {r['ratio']}, quiet {was['chosen']} {was['ratio']}"
            )
    return text


def main() -> None:
    """Race the problems, print a table, and end with status 1 if a verdict is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", type=int, nargs="+", default=[0, 1, 4], help="numbers of processes")
    parser.add_argument("--seconds", type=float, default=60.0, help="the most for one problem")
    parser.add_argument("--most", type=int, default=0, help="the most problems; 0 for all")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--against", type=Path, help="a file with the quiet machine's verdicts")
    given = parser.parse_args()
    tuner, every = default().tuner, list(met())
    every = every[: given.most or None]
    found: dict[str, list[dict[str, Any]]] = {}
    if given.against:
        found["0"] = json.loads(given.against.read_text(encoding="utf-8"))["0"]
    print(
        f"{len(every)} problems, {os.cpu_count()} processors, {torch.get_num_threads()} threads", flush=True
    )
    for problem in every:  # compiled and verified before anything is timed
        for backend, kernel in tuner.taking_part(problem.op):
            tuner.enter(backend, kernel, problem, problems.arguments(problem))
    for count in given.beside:
        with beside(count):
            seconds = given.seconds / (6 if count > (os.cpu_count() or 1) else 1)
            found[str(count)] = [raced(tuner, problem, seconds) for problem in every]
        quiet = {row["problem"]: row for row in found.get("0", [])}
        print(told(count, found[str(count)], quiet if count else {}), flush=True)
        if given.json:
            given.json.write_text(encoded(found, indent=1) + "\n", encoding="utf-8")
    quiet = {row["problem"]: row for row in found.get("0", [])}
    rows = [row for count in given.beside if count for row in found[str(count)]]
    if any(r["problem"] in quiet and wrong(r, quiet[r["problem"]]) for r in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
