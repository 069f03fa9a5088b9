"""Hold every kernel to every sample of its operator on this machine, and write down how each cell ended.

    python benchmarks/conformance.py run [--jobs 8] benchmarks/results/<device>/<date>-conformance.json
    python benchmarks/conformance.py render <record> docs/conformance.md

A cell is an operator, a backend and an element type: verified (on so many samples; those that a kernel
declined are counted, with the reason), declined (by the backend as a whole), wrong, or absent.
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import itertools
import json
import multiprocessing
import re
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from nxcore.device import describe
from nxcore.discovery import discover
from nxcore.kernel import Backend, Kernel
from nxcore.problem import Problem
from nxcore.registry import Registry
from nxcore.spec import FLOATS, OpSpec
from nxcore.verify import Truth, agreement

COLUMNS = ("cuda", "cupy", "triton", "numba", "numba-cuda", "jax", "inductor")
LEGEND = """\
A number is how many samples agreed with the float64 reference; a raised figure refers to what was declined,
and why. What is wrong on a machine serves no call there. Operators whose result is always a view, such as
`sum_backward`, have no kernels. `make conformance` writes this page for your own machine."""


def main() -> int:
    """Run or render; return 1 if a cell is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="hold the kernels of this machine to their samples")
    run.add_argument("record", type=Path)
    run.add_argument("--op", action="append", default=[], help="only these operators")
    run.add_argument("--jobs", type=int, default=1, help="processes")
    drawing = verbs.add_parser("render", help="write a record as a page")
    drawing.add_argument("record", type=Path)
    drawing.add_argument("page", type=Path)
    options = parser.parse_args()
    if options.verb == "render":
        options.page.write_text(render(options.record), encoding="utf-8")
        return 0
    record = collect(options.op, options.jobs)
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    wrong = [c for c in record["cells"] if c["outcome"] == "wrong"]
    for cell in wrong:
        print(cell)
    print(Counter(c["outcome"] for c in record["cells"]))
    return int(bool(wrong))


def collect(only: list[str], jobs: int) -> dict[str, Any]:
    """Return the record of this machine."""
    registry, cells, turns = _registry(), [], []
    for name, spec in registry.ops.items():
        if (only and name not in only) or _all_views(spec):
            continue
        for column, dtype in itertools.product(COLUMNS, FLOATS):
            cell = {"op": name, "backend": column, "dtype": str(dtype).removeprefix("torch.")}
            barred = _barred(registry, name, column, dtype)
            cells.append(cell | (barred or {"outcome": "verified", "samples": 0, "declined": {}}))
            if not barred:
                turns += [(len(cells) - 1, name, column, dtype, i) for i in _samples(spec, column)]
    # Spawned: a forked child can't use CUDA.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        found = pool.map(_held, *zip(*(turn[1:] for turn in turns), strict=True))
        shown = track(found, "samples", total=len(turns), disable=not sys.stderr.isatty())
        for (at, *_), ended in zip(turns, shown, strict=True):
            cells[at] = _with(cells[at], *ended)
    return {
        "device": describe(_device()).to_dict(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "cells": [_settled(cell) for cell in cells],
    }


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@functools.cache
def _registry() -> Registry:
    return discover(strict=True)


def _kernel(registry: Registry, op: str, column: str) -> tuple[Backend, Kernel] | None:
    return next(((b, k) for b, k in registry.kernels(op) if b.label(k) == column), None)


def _all_views(spec: OpSpec) -> bool:
    """Tell whether there is never anything to run, so that no backend has a kernel."""
    samples = spec.tagged("smoke")
    return all(Problem.of(spec, s.build(spec, "cpu", torch.float32)).view for s in samples)


def _barred(registry: Registry, op: str, column: str, dtype: torch.dtype) -> dict[str, Any] | None:
    """Return how a cell ends before any sample, None where it doesn't."""
    if (owned := _kernel(registry, op, column)) is None:
        return {"outcome": "absent"}
    if not (machine := registry.probe(*owned)):
        return {"outcome": "declined", "reason": machine.reason}
    if dtype not in owned[1].dtypes:
        needed = " or ".join(str(d).removeprefix("torch.") for d in owned[1].dtypes)
        return {"outcome": "declined", "reason": f"needs {needed}"}
    return None


def _samples(spec: OpSpec, column: str) -> list[int]:
    """Return the places of the samples that a column is held to."""
    found = [i for i, s in enumerate(spec.samples) if not s.tags & {"bench", "huge"}]
    # Those of inductor are seconds of compiling each.
    return [i for i in found if column != "inductor" or "smoke" in spec.samples[i].tags]


def _held(op: str, column: str, dtype: torch.dtype, at: int) -> tuple[str, str]:
    """Return how one sample ended, and why."""
    registry = _registry()
    owned = _kernel(registry, op, column)
    assert owned is not None
    spec, (backend, kernel) = registry.spec(op), owned
    sample = spec.samples[at]
    on_cpu = backend.name == "numba" and not kernel.variant
    args = sample.build(spec, "cpu" if on_cpu else _device(), dtype)
    problem = Problem.of(spec, args)
    verdict = kernel.accepts(problem)
    if problem.view or not verdict:
        return "declined", "a view: nothing to run" if problem.view else verdict.reason
    try:
        reason = agreement(kernel.plan(problem), spec, args, Truth.of(spec, args)).reason
    except Exception as error:  # noqa: BLE001  a kernel may raise anything
        reason = f"{type(error).__name__}: {str(error)[:200]}"
    return ("wrong", f"{sample.name}: {reason}") if reason else ("agreed", "")


def _with(cell: dict[str, Any], ended: str, reason: str) -> dict[str, Any]:
    if cell["outcome"] == "wrong":
        return cell
    if ended == "wrong":
        return {k: cell[k] for k in ("op", "backend", "dtype")} | {"outcome": "wrong", "reason": reason}
    if ended == "agreed":
        return cell | {"samples": cell["samples"] + 1}
    return cell | {"declined": cell["declined"] | {reason: cell["declined"].get(reason, 0) + 1}}


def _settled(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a cell as it is, or declined where no sample was left."""
    if cell["outcome"] != "verified" or cell["samples"]:
        return cell
    reason = "; ".join(cell["declined"])
    return {k: cell[k] for k in ("op", "backend", "dtype")} | {"outcome": "declined", "reason": reason}


def render(path: Path) -> str:
    """Return the page of a record."""
    record = json.loads(path.read_text(encoding="utf-8"))
    notes: list[str] = []
    made = f"{record['device']['name']}, torch {record['torch']}, {record['date'][:10]}"
    lines = [
        "# Which kernels exist, and how each was verified",
        "",
        f"Every kernel was held to the samples of its operator's spec; {made}, `{path.as_posix()}`.",
        "",
        LEGEND,
        "",
        "| operator | dtype | " + " | ".join(COLUMNS) + " |",
        "|---|---|" + "---|" * len(COLUMNS),
    ]
    cells = {(c["op"], c["dtype"], c["backend"]): c for c in record["cells"]}
    last = ""
    for op, dtype in dict.fromkeys((c["op"], c["dtype"]) for c in record["cells"]):
        row = [_cell(cells[op, dtype, column], notes) for column in COLUMNS]
        lines.append(f"| {f'`{op}`' if op != last else ''} | {dtype} | " + " | ".join(row) + " |")
        last = op
    if notes:
        lines += ["", "## Declined, or wrong", ""]
        lines += [f"{i}. {note}" for i, note in enumerate(notes, 1)]
    return "\n".join(lines) + "\n"


def _cell(cell: dict[str, Any], notes: list[str]) -> str:
    if cell["outcome"] == "absent":
        return "**absent**"
    if cell["outcome"] == "wrong":
        return "**wrong**" + _mark(cell["reason"], notes)
    if cell["outcome"] == "declined":
        return "declined" + _mark(cell["reason"], notes)
    marks = "".join(_mark(reason, notes) for reason in cell["declined"])
    return f"{cell['samples']}{marks}"


def _mark(reason: str, notes: list[str]) -> str:
    reason = re.sub(r"0x[0-9a-f]+", "0x...", reason)
    if reason not in notes:
        notes.append(reason)
    return f"<sup>{notes.index(reason) + 1}</sup>"


if __name__ == "__main__":
    sys.exit(main())
