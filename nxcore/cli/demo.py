"""``nxcore demo``: accelerate a small model on this machine, with the backends that are installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def command(
    json: Annotated[
        Path | None, typer.Option("--json", help="Also write the results to this file, as JSON.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. By default cuda if available.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also compare add and sum, and show every kernel on every problem.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the choice of images.")] = 0,
) -> None:
    """Accelerate a small convolutional model on real images, and compare the kernels of one of its layers."""
    from nxcore.cli import destination, render
    from nxcore.spec.device import available

    if json is not None:
        destination.file(json, "--json")
    where = available(device)
    if everything and where.type == "cpu":
        # Triton reads this at its import. Its kernels are then verified by the interpreter, though not timed.
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from nxcore.bench import demo
    from nxcore.cli import demo_tables

    with render.progress("demo") as advance:
        report = demo.run(where, seed=seed, everything=everything, advance=advance)
    demo_tables.demo(report, everything=everything)
    if json is not None:
        json.write_text(render.dumps(report.to_dict()), encoding="utf-8")
        render.line(f"Written to {json}")
    if report.wrong:
        raise typer.Exit(1)
    render.line("Next: nxcore search (searches an architecture for such images in about a minute)")
