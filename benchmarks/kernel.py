"""The kernels of an operator beside torch's own idioms, on its real workloads, inputs out of cache.

    python benchmarks/kernel.py OP [--gradients] [--sweep | --ncu] [--sample NAME ...] [--dtype float32 ...]
                                   [--backend NAME ...] [--device cuda] [--fast] [--json FILE]

Prints a line a kernel: the device's time, its share of the floor, and times as fast as torch with the
interval. Each result is verified against float64 first. ``--gradients`` takes the operator's backward
operator, ``--sweep`` the tiles of each kernel that has some beside the chosen one. ``--ncu`` calls each
kernel once and times nothing:

    ncu --csv --clock-control none python benchmarks/kernel.py matmul --ncu --backend cuda --sample square_512
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nxcore.bench.cells import Cell, Wanted, cells
from nxcore.bench.engine import FAST, FULL, Bench
from nxcore.bench.row import Row
from nxcore.errors import InvalidInputError
from nxcore.offline.tiles import swept
from nxcore.session import default
from nxcore.spec.device import available, describe, synchronize
from nxcore.spec.problem import Problem
from nxcore.store.encoding import encoded


def figures(row: dict[str, Any]) -> str:
    """Return a row's figures, or the reason why it has none."""
    if row.get("device_us") is None:
        return str(row.get("reason") or "not timed")
    share = row.get("share_of_floor") or row.get("share")
    ratio = "{:.2f} [{:.2f}, {:.2f}]".format(*row["ratio"]) if row.get("ratio") else "1"
    return f"{row['device_us']:.1f} us | {share or 0:.0%} of the floor | {ratio}"


def raced(bench: Bench, cell: Cell) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the label of each kernel with its row of one race."""
    rows: list[Row] = bench.measure(cell)
    yield from ((f"{row.label}, {row.verdict}", row.to_dict()) for row in rows if row.record == "row")


def tiles(bench: Bench, cell: Cell) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tiles of each kernel that has some, the chosen one first."""
    for backend, kernel in bench.entry.named(cell.spec.name):
        machine = bench.session.registry.probe(backend, kernel)
        if not machine or machine.simulated or kernel.sweep is None:
            continue
        if len(inspect.signature(kernel.plan).parameters) > 1:
            for row in swept(cell.spec, backend, kernel, cell.build()):
                yield f"{backend.label(kernel)} {row.tile}", row.to_dict()


def called(bench: Bench, cell: Cell) -> Iterator[tuple[str, dict[str, Any]]]:
    """Call each kernel once, for a profiler that counts what it launches."""
    args = cell.build()
    problem = Problem.of(cell.spec, args)
    for backend, kernel in bench.entry.named(cell.spec.name):
        found = bench.session.tuner.enter(backend, kernel, problem, args)
        if found.call is not None:
            synchronize(bench.device)
            with torch.no_grad():
                found.call(*args)
            synchronize(bench.device)
        yield backend.label(kernel), {"reason": "called" if found.call else str(found.candidate.refusal)}


def main(words: list[str] | None = None) -> None:
    """Measure, print a line a kernel, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("op")
    parser.add_argument("--gradients", action="store_true", help="its backward operator")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--sweep", action="store_true", help="tiles of each kernel")
    how.add_argument("--ncu", action="store_true", help="call each kernel once, for a profiler")
    parser.add_argument("--sample", nargs="+", default=(), help="real workloads by name, instead of all")
    parser.add_argument("--dtype", nargs="+", default=("float32",))
    parser.add_argument("--backend", nargs="+", default=(), help="only these and torch")
    parser.add_argument("--device", help="cpu or cuda; by default cuda if available")
    parser.add_argument("--fast", action="store_true", help="half a second a race instead of four")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(words)
    bench = Bench(default(), available(given.device), FAST if given.fast else FULL, given.backend)
    spec = bench.session.registry.spec(given.op)
    if given.gradients and not spec.gradient:
        raise InvalidInputError(f"{spec.name} has no backward operator", argument="gradients")
    op = spec.gradient.op if given.gradients and spec.gradient else spec.name
    wanted = Wanted(ops=(op,), samples=tuple(given.sample), dtypes=tuple(given.dtype))
    measure = tiles if given.sweep else called if given.ncu else raced
    rows: list[dict[str, Any]] = []
    for cell in cells(bench.session.registry, bench.device, wanted):
        print(cell)
        for label, row in measure(bench, cell):
            rows.append({"cell": cell.key, "label": label} | row)
            print(f"  {label}: {figures(row)}", flush=True)
    if given.json:
        head = {"device": describe(bench.device).name, "torch": str(torch.__version__)}
        given.json.write_text(encoded(head | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
