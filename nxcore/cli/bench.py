"""``nxcore bench``, ``demo`` and ``report``: kernels timed against torch, on workloads and a small model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nxcore.bench.cells import Cell, Wanted
    from nxcore.bench.engine import Bench


def measured(
    bench: Bench,
    cells: Sequence[Cell],
    record: Path | None = None,
    budget_s: float = float("inf"),
    advance: Callable[[str, int, int], None] = lambda *_: None,
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each cell: read from the record if it has them, else measured now and recorded.

    Once the budget is spent, a cell yields one row that gives this as its reason, and isn't recorded.
    """
    from nxcore.bench.record import RecordWriter

    recorder = RecordWriter(record, bench.head) if record else None
    started = time.monotonic()
    for done, cell in enumerate(cells):
        advance(str(cell), done, len(cells))
        if recorder and cell.key in recorder.done:
            yield recorder.done[cell.key]
            continue
        if time.monotonic() - started > budget_s:
            op, sample, dtype = cell.key
            why = f"not measured: the budget of {budget_s:g} s was spent"
            row = {"record": "row", "op": op, "sample": sample, "dtype": dtype, "label": "torch"}
            yield [row | {"verdict": "DECLINED", "reason": why, "error": None}]
            continue
        rows = bench.measure(cell)
        if recorder:
            recorder.write(rows)
        yield [row.to_dict() for row in rows]


def compared(old: Path, new: Path, margin: float, *, as_json: bool) -> bool:
    """Print two records side by side; return whether a kernel has become slower or wrong."""
    from nxcore.bench import compare
    from nxcore.bench.record import read
    from nxcore.bench.row import BAD
    from nxcore.cli import render, scoreboard

    before, now = read(old), read(new)
    lines = compare.compare(before, now, margin)
    apart = compare.differences(before, now)
    if as_json:
        render.json({"cells": lines, "differences": apart})
    else:
        scoreboard.compared(lines, apart)
    return any(line["verdict"] in BAD | {"SLOW"} for line in lines)


def summarised(bench: Bench, rows: Sequence[dict[str, Any]], sizes: Sequence[str]) -> dict[str, Any]:
    """Return rows with what follows from them: by operator, by size class, tests and speed-ups."""
    from nxcore.bench.checks import checks, success
    from nxcore.bench.sizes import reached, speedups
    from nxcore.bench.summary import summary

    shares = list(reached(rows, sizes, bench.ceilings))
    tests = checks(rows, shares)
    return {
        "head": bench.head,
        "rows": rows,
        "summary": summary(rows),
        "sizes": [share.to_dict() for share in shares],
        "tests": tests,
        "speedups": speedups(rows) | {"success": success(tests)},
    }


def show_summary(found: Mapping[str, Any], *, brief: bool) -> None:
    """Print what `summarised` found; ``brief`` leaves out the summary by operator."""
    from nxcore.cli import scoreboard

    if not brief:
        scoreboard.summed_up(found["head"], found["rows"], found["summary"])
    if found["sizes"]:
        scoreboard.by_size(found["sizes"])
    if brief:
        scoreboard.tested(found["tests"])
        scoreboard.sped_up(found["speedups"])


def raced(
    bench: Bench, wanted: Wanted, record: Path | None, budget_s: float, *, as_json: bool, brief: bool
) -> bool:
    """Measure the wanted cells and print them.

    Return whether a row is wrong or faster than possible, or there is no kernel to race.
    """
    from nxcore.bench.cells import cells
    from nxcore.bench.row import BAD
    from nxcore.cli import render, scoreboard
    from nxcore.errors import InvalidInputError

    chosen = cells(bench.session.registry, bench.device, wanted)
    if not chosen:
        raise InvalidInputError("no operator and sample match these filters", argument="op")
    if not any(map(bench.rivals, chosen)):
        render.error(f"nothing to race: no kernel but torch's can run here. {_more(bench)}")
        return True
    rows: list[dict[str, Any]] = []
    with scoreboard.watching(len(chosen), quiet=as_json or brief) as (advance, show):
        for of_cell in measured(bench, chosen, record, budget_s, advance):
            rows += of_cell
            show(of_cell)
    found = summarised(bench, rows, wanted.sizes)
    render.json(found) if as_json else show_summary(found, brief=brief)
    return any(row["verdict"] in BAD for row in rows)


def _more(bench: Bench) -> str:
    """Return what gives a device kernels to race."""
    from nxcore.cli.machine import PLUGINS
    from nxcore.spec.origin import installing

    return f"nxcore doctor says why; or {installing(*PLUGINS[bench.device.type])}"


def bench(
    op: Annotated[list[str] | None, typer.Argument(help="Only these operators.")] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(help="Only this backend, and torch. Also runs a backend that is on request only."),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this element type.")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            help="A size class: small, medium, large, xlarge or batch. Or a word in a workload's name, or a "
            "tag. Huge ones need --size huge."
        ),
    ] = None,
    sample: Annotated[list[str] | None, typer.Option(help="Only this sample, whatever its tags.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Quick: only float32, fewer blocks.")] = False,
    forward: Annotated[bool, typer.Option("--forward", help="Only forward operators.")] = False,
    backward: Annotated[bool, typer.Option("--backward", help="Only backward operators.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. By default cuda if available.")] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="Also race inductor or jax."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Append the rows to this file as JSON lines. Cells in it are not measured again."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Start no cell after this many seconds.", min=0.0)
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="OLD NEW", help="Compare two records.")
    ] = None,
    margin: Annotated[
        float, typer.Option(help="Of --compare: report changes larger than this.", min=0.0)
    ] = 0.05,
    summary: Annotated[
        bool,
        typer.Option(
            "--summary",
            help="Print eight tests and the speed-ups alone; by default, of add in every size class.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time every kernel on real workloads.

    Exit status 1 if one is wrong or faster than possible, or if there is none to race with torch.
    """
    from nxcore.cli import render

    if compare is not None:
        raise typer.Exit(int(compared(*compare, margin, as_json=json)))
    if record is not None:
        render.file(record, "--record")
    from nxcore import session
    from nxcore.bench.cells import Wanted
    from nxcore.bench.engine import FAST, FULL, Bench
    from nxcore.bench.sizes import SIZES
    from nxcore.spec.device import available

    measuring = Bench(
        session.default(), available(device), FAST if fast else FULL, tuple(backend or ()), tuple(peer or ())
    )
    dtypes = dtype or (["float32"] if fast else [])
    if summary and not (op or size or sample):
        op, size = ["add"], list(SIZES)
    wanted = Wanted(tuple(op or ()), tuple(sample or ()), tuple(size or ()), tuple(dtypes), forward, backward)
    seconds = float("inf") if budget is None else budget
    raise typer.Exit(int(raced(measuring, wanted, record, seconds, as_json=json, brief=summary)))


def demo(
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
    from nxcore.cli import render
    from nxcore.spec.device import available

    if json is not None:
        render.file(json, "--json")
    where = available(device)
    if everything and where.type == "cpu":
        # Triton reads this at its import. Its kernels are then verified by the interpreter, though not timed.
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from nxcore.bench import demo as model
    from nxcore.cli import scoreboard

    with render.progress("demo") as advance:
        found = model.run(where, seed=seed, everything=everything, advance=advance)
    scoreboard.demo(found, everything=everything)
    if json is not None:
        json.write_text(render.dumps(found.to_dict()), encoding="utf-8")
        render.line(f"Written to {json}")
    if found.wrong:
        raise typer.Exit(1)
    render.line("Next: nxcore search (searches an architecture for such images in about a minute)")


def report(
    records: Annotated[list[Path], typer.Argument(help="JSONL files, or folders of them.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="An .html or .md file. By default report.html.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the joined data as JSON.")] = False,
) -> None:
    """Join records of `nxcore bench --record` and write a page that compares the backends."""
    from nxcore.cli import render
    from nxcore.errors import InvalidInputError
    from nxcore.report import figures, page
    from nxcore.report.markdown import markdown
    from nxcore.report.records import read

    if output is None and not json:
        output = Path("report.html")
    if output is not None:
        if output.suffix not in (".html", ".md"):
            raise InvalidInputError(f"output must end in .html or .md, got {output}", argument="output")
        render.file(output, "--output")
    found = read(records)
    for note in found.notes:
        render.error(f"left out: {note}")
    if found.others and not json:
        files = f"{len(found.others)} file{'s' * (len(found.others) > 1)}"
        render.copied(f"{files} without rows of `nxcore bench --record` left out: {', '.join(found.others)}")
    data = figures.joined(found)
    if json:
        render.json(data)
    if output is not None:
        text = page.html(data) if output.suffix == ".html" else markdown(data)
        output.write_text(text, encoding="utf-8")
        if not json:
            cells, runs, size = len(found.cells), len(found.runs), len(text.encode()) / 1e6
            render.line(f"{cells} cells of {runs} runs written to {output} ({size:.1f} MB)")
