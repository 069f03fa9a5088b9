"""Reductions by device time, inputs out of cache: every kernel beside torch's own, and the aims of each row.

    python benchmarks/reductions.py --output FILE.json [--device cuda] [--dtypes float32 bfloat16]
                                    [--backends cuda cupy triton] [--sweep [NAME ...]]

Each kernel is verified against float64 on the very cell before it is timed. ``--sweep`` times every tile of
CUDA C++ too: of the cells at (4, 512, 896), or of those named, such as ``matrix_outer``. It prints a line an
operator, and a line a cell of the fastest tiles.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from workers import ahead, entered

from nxcore.bench.cells import Cell
from nxcore.bench.engine import Bench
from nxcore.measure.race import Effort
from nxcore.offline.tiles import swept
from nxcore.session import default
from nxcore.spec.device import available, describe
from nxcore.spec.sample import Sample, rand
from nxcore.store.encoding import encoded

EFFORT = Effort(looks=(12,), warm_s=0.02, budget_s=0.3)
SWEEP = Effort(looks=(12,), warm_s=0.02, budget_s=2.5)
ATTENTION, MATRIX = (4, 512, 896), (4096, 16384)
AXES: dict[str, tuple[tuple[int, ...], tuple[Any, ...]]] = {
    "attention all": (ATTENTION, (None,)),
    "attention inner": (ATTENTION, (-1,)),
    "attention (0, 1)": (ATTENTION, ((0, 1),)),
    "attention middle": (ATTENTION, (1,)),
    "matrix inner": (MATRIX, (-1,)),
    "matrix outer": (MATRIX, (0,)),
    "matrix all": (MATRIX, (None,)),
}
OPS = ("sum", "amax", "argmax", "any", "max", "mean", "amin", "all")
MOST_US, LEAST_SHARE = 7.0, 0.92
"""The aims: device us of a row of (4, 512, 896), and the share of the bandwidth of one of (4096, 16384)."""


def cells(bench: Bench, op: str, dtype: torch.dtype) -> list[Cell]:
    """Return the cells of an operator: the choices of axes that it takes."""
    spec = bench.session.registry.spec(op)
    single = op in ("max", "min", "argmax", "argmin")
    return [
        Cell(spec, Sample(name.replace(" ", "_"), (rand(*shape), *axes)), dtype, bench.device)
        for name, (shape, axes) in AXES.items()
        if not (single and isinstance(axes[0], tuple)) and not (op in ("max", "min") and axes[0] is None)
    ]


def row_of(bench: Bench, cell: Cell) -> dict[str, Any]:
    """Race a cell; return each kernel's device time, or why it has none."""
    found = {r.label: r for r in bench.measure(cell) if r.record == "row"}
    timed = {label: r for label, r in found.items() if r.device_us}
    torchs = min(r.device_us for label, r in timed.items() if label.startswith("torch"))
    ours = {k: r.device_us for k, r in timed.items() if not k.startswith("torch") and r.verdict != "WRONG"}
    best = min(ours, key=ours.__getitem__, default="torch")
    us = ours.get(best, torchs)
    some = next(iter(timed.values()))
    ceiling = bench.ceilings.bandwidth(some.bytes)
    share = 1e6 * some.bytes / us / ceiling
    attention = cell.sample.name.startswith("attention")
    return {
        "op": cell.spec.name,
        "sample": cell.sample.name,
        "dtype": str(cell.dtype).removeprefix("torch."),
        "torch_us": torchs,
        "best": best,
        "us": us,
        "gain": round(torchs / us, 3),
        "copy_gb_per_s": round(ceiling / 1e9, 1),
        "of_bandwidth": round(share, 4),
        "met": us <= MOST_US if attention else share >= LEAST_SHARE,
        "kernels": ours,
        "refused": {k: f"{r.verdict}: {r.reason}" for k, r in found.items() if k not in timed},
    }


def tiles_of(bench: Bench, cell: Cell) -> dict[str, Any]:
    """Time the tiles of a cell's kernel in CUDA C++; return them by device time, the chosen one first."""
    tuner, spec = bench.session.tuner, cell.spec
    backend, kernel = next((b, k) for b, k in tuner.taking_part(spec.name) if b.name == "cuda")
    found = swept(spec, backend, kernel, cell.build(), effort=SWEEP)
    return {"op": spec.name, "sample": cell.sample.name, "tiles": [r.to_dict() for r in found]}


def brief(row: dict[str, Any]) -> str:
    """Return a row in a few characters: the best kernel, its time and torch's; ! where an aim is missed."""
    name = row["sample"].replace("attention_", "a:").replace("matrix_", "m:")
    mark = "" if row["met"] else "!"
    return f"{name}={row['best'][:4]} {row['us']:.1f}/{row['torch_us']:.1f}{mark}"


def main() -> None:
    """Measure, print a line a cell, write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", help="cpu or cuda; by default cuda if available")
    parser.add_argument("--ops", nargs="+", default=OPS)
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--backends", nargs="+", default=(), help="only these and torch")
    parser.add_argument("--seconds", type=float, default=80, help="start no cell after so many")
    parser.add_argument("--sweep", nargs="*", help="time the tiles of CUDA C++ of these cells afterwards")
    parser.add_argument("--cells", nargs="+", default=(), help="only cells whose names begin so")
    parser.add_argument("--ahead", type=int, default=0, help="processes that compile first")
    parser.add_argument("--part", type=int, nargs=2, help="compile this part of so many, and end")
    given = parser.parse_args()
    bench = Bench(default(), available(given.device), EFFORT, given.backends)
    wanted = [c for t in given.dtypes for op in given.ops for c in cells(bench, op, getattr(torch, t))]
    wanted = [c for c in wanted if c.sample.name.startswith(tuple(given.cells or [""]))]
    swept_cells = () if given.sweep is None else tuple(given.sweep or ["attention"])
    wanted.sort(key=lambda cell: cell.sample.name.startswith("matrix"))  # large ones take the longest
    if given.part:
        number, count = given.part
        calls = ((cell.spec.name, cell.build()) for cell in wanted[number::count])
        entered(bench.session, calls, given.backends)
        return
    ahead(given.ahead)
    ends = time.monotonic() + given.seconds
    head = {"device": describe(bench.device).name, "torch": str(torch.__version__)}
    rows: list[dict[str, Any]] = []
    sweeps: list[dict[str, Any]] = []
    steps = [(row_of, rows, c) for c in wanted]
    steps += [(tiles_of, sweeps, c) for c in wanted if c.sample.name.startswith(swept_cells)]
    for measure, found, cell in sorted(steps, key=lambda step: step[2].sample.name.startswith("matrix")):
        if time.monotonic() >= ends:
            break
        found.append(measure(bench, cell))  # written at once: a run that is ended keeps its rows
        record = head | {"rows": rows} | ({"sweeps": sweeps} if swept_cells else {})
        given.output.write_text(encoded(record, indent=1) + "\n", encoding="utf-8")
    for op, dtype in dict.fromkeys((r["op"], r["dtype"]) for r in rows):
        of = [r for r in rows if (r["op"], r["dtype"]) == (op, dtype)]
        print(f"{op} {dtype}: {' '.join(map(brief, of))}")
    for sweep in sweeps:
        timed = [t for t in sweep["tiles"] if t["device_us"]]
        print(
            sweep["op"], sweep["sample"], *(f"{t['device_us']:.2f} {t['tile']}" for t in timed[:4]), sep=" | "
        )


if __name__ == "__main__":
    main()
