"""``nxcore report``: a page made of records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    records: Annotated[list[Path], typer.Argument(help="JSONL files, or folders of them.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="An .html or .md file. By default report.html.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Also write Markdown to this file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the joined data as JSON.")] = False,
) -> None:
    """Join records of `nxcore bench --record` and write a page that compares the backends."""
    from nxcore.cli import destination, render
    from nxcore.errors import InvalidInputError
    from nxcore.report import figures, page
    from nxcore.report.markdown import markdown as as_markdown
    from nxcore.report.records import read

    if output is None and markdown is None and not json:
        output = Path("report.html")
    if output is not None and output.suffix not in (".html", ".md"):
        raise InvalidInputError(f"output must end in .html or .md, got {output}", argument="output")
    for option, file in (("--output", output), ("--markdown", markdown)):
        if file is not None:
            destination.file(file, option)
    found = read(records)
    for note in found.notes:
        render.error(f"left out: {note}")
    if found.others and not json:
        files = f"{len(found.others)} file{'s' * (len(found.others) > 1)}"
        render.copied(f"{files} without rows of `nxcore bench --record` left out: {', '.join(found.others)}")
    data = figures.joined(found)
    if json:
        render.json(data)
    for file in filter(None, (output, markdown)):
        text = page.html(data) if file == output and file.suffix == ".html" else as_markdown(data)
        file.write_text(text, encoding="utf-8")
        if not json:
            cells, runs = len(found.cells), len(found.runs)
            render.line(f"{cells} cells of {runs} runs written to {file} ({len(text.encode()) / 1e6:.1f} MB)")
