"""``nxcore bench conv-study``: one small convolution by several toolkits, and the pages about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

STEM = "conv-study"


def written(record: Any, folder: Path) -> Iterator[Path | str]:
    """Write the record and its pages into a folder that exists; yield each file, or why one can't be made."""
    from nxcore.cli import render
    from nxcore.errors import NxcoreError
    from nxcore.report.study import markdown, page

    for suffix, made in ((".json", render.dumps), (".md", markdown.markdown), (".html", page.html)):
        file = folder / f"{STEM}{suffix}"
        try:
            text = made(record)
        except NxcoreError as error:  # plotly is an extra
            yield str(error)
            continue
        file.write_text(text, encoding="utf-8")
        yield file


def command(
    input_size: Annotated[
        list[int] | None, typer.Option(help="Only images of this height and width: 32, 64 or 128.")
    ] = None,
    kernel_size: Annotated[
        list[int] | None, typer.Option(help="Only filters of this height and width: 3, 5 or 7.")
    ] = None,
    entrants: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this one, and im2col: inductor-im2col, inductor-conv2d, jax, torch-conv2d, cudnn-tf32 "
            "or nxcore."
        ),
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="At most a minute: three shapes, fewer blocks.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. By default cuda if available.")] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Start nothing after this many seconds; 300 by default, 60 if fast.", min=0.0),
    ] = None,
    first_calls: Annotated[
        bool, typer.Option(help="Time first calls too, in processes of their own: most of a run's time.")
    ] = True,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the record and its pages into this folder.")
    ] = Path(STEM),
    from_record: Annotated[
        Path | None, typer.Option("--from", help="Measure nothing: make the pages of this record.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON and write no file.")] = False,
) -> None:
    """Time a small convolution by im2col, Inductor, JAX, cuDNN or oneDNN, and nxcore, all on one device.

    Exit status 1 if a result is wrong, or if nothing was timed.
    """
    from nxcore.cli import destination, render, study_tables
    from nxcore.report.study import facts

    record = None if from_record is None else facts.read(from_record)
    if not json:
        destination.folder(output, "--output")
    if record is None:
        from nxcore.bench.study.study import Wanted, run
        from nxcore.spec.device import available

        wanted = Wanted(
            tuple(input_size or ()),
            tuple(kernel_size or ()),
            tuple(entrants or ()),
            fast,
            budget,
            first_calls,
        )
        where = available(device)
        with render.progress(STEM) as advance:
            record = run(where, wanted, advance)
    if not any("total_us" in row for cell in record["cells"] for row in cell["rows"]):
        seconds = f"{record['budget_s']:g} s were" if "budget_s" in record else "time was"
        render.error(f"nothing was timed, so nothing is written: {seconds} too short here; raise --budget")
        raise typer.Exit(1)
    if json:
        render.json(record)
    else:
        study_tables.study(record)
        for found in written(record, output):
            render.error(found) if isinstance(found, str) else render.line(f"Written to {found}")
    if facts.wrong(record):
        raise typer.Exit(1)
