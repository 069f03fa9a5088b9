"""``nxcore audit``: every kernel of one package through the kit and the clock, as data and as a page."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nxcore.testing import Row


def backends_of(package: str) -> list[str]:
    """Return the backends that a package offers: by its own name, its plugin's, or its library's.

    Raises
    ------
    UnknownBackendError
        If it offers none. The message suggests the nearest.
    """
    from nxcore import session
    from nxcore.spec.origin import FOLDERS

    registry = session.default().registry
    found = [
        name
        for name, backend in registry.backends.items()
        if package in (name, f"nxcore-{name}") or (backend.toolkit and package in backend.toolkit())
    ]
    short = package.removeprefix("nxcore-") if package in FOLDERS else package
    return found or [registry.backend(short).name]  # raises


def kernel(row: Row) -> dict[str, Any]:
    """Return the outcome of a kernel; each broken rule with the sample, and the seed of its numbers."""
    found = row.to_dict()
    for broken in found["broken"]:
        broken["seed"] = zlib.crc32(f"{broken['sample']}/0".encode()) if broken["sample"] else None
    return found


def timed(
    backends: Sequence[str], rows: Iterable[Row], record: Path, fast: bool, budget_s: float
) -> list[dict[str, Any]]:
    """Return how fast the verified kernels are on the workloads of their operators; write the record."""
    from nxcore import session
    from nxcore.bench.cells import Wanted, cells
    from nxcore.bench.engine import FAST, FULL, Bench
    from nxcore.cli import render
    from nxcore.cli.bench import measured
    from nxcore.spec.device import available

    if not (ops := tuple(dict.fromkeys(row.op for row in rows if row.outcome == "verified"))):
        return []
    dtypes = tuple(dict.fromkeys(row.dtype for row in rows if row.outcome == "verified"))
    bench = Bench(session.default(), available(None), FAST if fast else FULL, backends)
    chosen = cells(bench.session.registry, bench.device, Wanted(ops, dtypes=dtypes))
    chosen = [cell for cell in chosen if bench.rivals(cell)]
    found = []
    with render.progress("time", every=5.0) as advance:
        for of_cell in measured(bench, chosen, record, budget_s, advance):
            found += [row for row in of_cell if row["label"].partition("-")[0] in backends]
    return [{key: row.get(key) for key in TIMED} for row in found]


TIMED = ("op", "sample", "dtype", "label", "verdict", "reason", "device_us", "host_us", "ratio")


def audit(
    package: Annotated[
        str, typer.Argument(help="A backend, the plugin that has it, or the library whose kernels it offers.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a page of the times to this .html file.")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this element type.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Fewer blocks of each time.")] = False,
    budget: Annotated[
        float | None, typer.Option(help="Start no time after this many seconds.", min=0.0)
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one kernel in one type.", min=1.0)] = 600.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Judge every kernel that a package offers: by every rule, then by the clock.

    Exit status 1 if one is wrong, crashes or hangs.
    """
    from nxcore.cli import render, tables
    from nxcore.cli.operators import conclude, verified

    if output is not None:
        render.file(output, "--output")
    names = backends_of(package)
    rows = verified([], names, dtype or [], timeout, None)
    conclude(rows)
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / f"{names[0]}.jsonl"
        cells = timed(names, rows, record, fast, float("inf") if budget is None else budget)
        ratios = any(row["ratio"] for row in cells)
        if output is not None and ratios:
            page_of(record, output)
    kernels = [kernel(row) for row in rows]
    if json:
        render.json({"package": package, "backends": names, "kernels": kernels, "cells": cells})
    else:
        tables.verify(kernels)
        _times(cells)
        if output is not None:
            render.line(f"Written to {output}" if ratios else "No page: no kernel was timed")
    if not all(row.ok for row in rows):
        raise typer.Exit(1)


def page_of(record: Path, output: Path) -> None:
    """Write the report's page of a record."""
    from nxcore.report import figures, page
    from nxcore.report.records import read

    output.write_text(page.html(figures.joined(read([record]))), encoding="utf-8")


def _times(cells: Sequence[dict[str, Any]]) -> None:
    """Print how many times as fast as torch each kernel is, a line a cell."""
    from nxcore.cli import render

    table = render.table("operator", "sample", "type", "kernel", "times as fast as torch", "verdict")
    for row in cells:
        ratio = f"{row['ratio'][0]:.2f}" if row["ratio"] else ""
        names = (row["op"], row["sample"], row["dtype"], row["label"])
        table.add_row(*names, ratio, str(row["verdict"]))
    if table.row_count:
        render.show(table)
