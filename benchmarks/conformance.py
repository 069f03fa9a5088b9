"""Hold every kernel to every sample of its operator on this machine, and write down how each cell ended.

    python benchmarks/conformance.py run benchmarks/results/<device>/<date>-conformance.json
    python benchmarks/conformance.py render benchmarks/results/<device>/<date>-conformance.json docs/conformance.md

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
and why. Operators whose result is always a view, such as `sum_backward`, have no kernels. `make conformance`
writes this page for your own machine."""


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
    registry = discover(strict=True)
    specs = [s for name, s in registry.ops.items() if not only or name in only]
    turns = list(itertools.product((s.name for s in specs if not _all_views(s)), COLUMNS))
    # Spawned: a forked child can't use CUDA.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        found = pool.map(_column, *zip(*turns, strict=True))
        shown = track(found, "kernels", total=len(turns), disable=not sys.stderr.isatty())
        cells = list(itertools.chain.from_iterable(shown))
    return {
        "device": describe(_device()).to_dict(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "cells": cells,
    }


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@functools.cache
def _registry() -> Registry:
    return discover(strict=True)


def _column(op: str, column: str) -> list[dict[str, Any]]:
    """Return the cells of a kernel, one a dtype."""
    registry, cells = _registry(), []
    owned = [(b, k) for b, k in registry.kernels(op) if b.label(k) == column]
    for dtype in FLOATS:
        cell = {"op": op, "backend": column, "dtype": str(dtype).removeprefix("torch.")}
        cells.append(cell | _ended(registry, registry.spec(op), owned, dtype, _device()))
    return cells


def _all_views(spec: OpSpec) -> bool:
    """Tell whether there is never anything to run, so that no backend has a kernel."""
    samples = spec.tagged("smoke")
    return all(Problem.of(spec, s.build(spec, "cpu", torch.float32)).view for s in samples)


def _ended(
    registry: Registry,
    spec: OpSpec,
    owned: list[tuple[Backend, Kernel]],
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Any]:
    if not owned:
        return {"outcome": "absent"}
    backend, kernel = owned[0]
    machine = registry.probe(backend, kernel)
    if not machine:
        return {"outcome": "declined", "reason": machine.reason}
    if dtype not in kernel.dtypes:
        needed = " or ".join(str(d).removeprefix("torch.") for d in kernel.dtypes)
        return {"outcome": "declined", "reason": f"needs {needed}"}
    where = torch.device("cpu") if backend.name == "numba" and not kernel.variant else device
    agreed, declined = 0, Counter[str]()
    for sample in spec.samples:
        if sample.tags & {"bench", "huge"}:
            continue
        if backend.name == "inductor" and "smoke" not in sample.tags:
            continue  # seconds of compiling each
        args = sample.build(spec, where, dtype)
        problem = Problem.of(spec, args)
        verdict = kernel.accepts(problem)
        if problem.view or not verdict:
            declined["a view: nothing to run" if problem.view else verdict.reason] += 1
            continue
        try:
            found = agreement(kernel.plan(problem), spec, args, Truth.of(spec, args))
            reason = found.reason
        except Exception as error:  # noqa: BLE001  a kernel may raise anything
            reason = f"{type(error).__name__}: {str(error)[:200]}"
        if reason:
            return {"outcome": "wrong", "reason": f"{sample.name}: {reason}"}
        agreed += 1
    if not agreed:
        return {"outcome": "declined", "reason": "; ".join(declined)}
    return {"outcome": "verified", "samples": agreed, "declined": dict(declined)}


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
        lines += ["", "## Declined", ""]
        lines += [f"{i}. {note}" for i, note in enumerate(notes, 1)]
    return "\n".join(lines) + "\n"


def _cell(cell: dict[str, Any], notes: list[str]) -> str:
    if cell["outcome"] in ("absent", "wrong"):
        return f"**{cell['outcome']}**"
    if cell["outcome"] == "declined":
        return "declined" + _mark(cell["reason"], notes)
    marks = "".join(_mark(reason, notes) for reason in cell["declined"])
    return f"{cell['samples']}{marks}"


def _mark(reason: str, notes: list[str]) -> str:
    if reason not in notes:
        notes.append(reason)
    return f"<sup>{notes.index(reason) + 1}</sup>"


if __name__ == "__main__":
    sys.exit(main())
