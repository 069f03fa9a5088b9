"""``nxcore wisdom``: the measured problems, as a table, as a file for another machine, and as a lock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="Show, transfer and lock the measured problems.")
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
File = Annotated[Path, typer.Argument(help="The file.")]


def collect(op: str = "") -> list[dict[str, Any]]:
    """Return one row for each measured problem, of every device in the wisdom."""
    from nxcore import session
    from nxcore.errors import present
    from nxcore.store.pages import page
    from nxcore.store.transfer import gathered
    from nxcore.store.wisdom import is_pair

    current = session.default()
    if op:
        current.registry.spec(op)  # or an error that names the nearest
    environments, pages = gathered(current.wisdom.store)
    rows = []
    for (name, _), (key, document) in pages.items():
        if op and key["op"] != op:
            continue
        found = present(page(document), "page")  # gathered yields readable pages only
        rows.append(
            {
                "device": environments[name]["name"],
                "problem": key["forward"] | {"op": key["op"]} if is_pair(key) else key,
                "chosen": found.decision.chosen,
                "rule": found.decision.rule,
                "noise": found.decision.noise,
                "unclear": found.decision.unclear,
                "reason": found.decision.reason,
                "policy": found.policy,
                "date": found.date,
                "kernels": {c.label: c.timing.median_us for c in found.decision.candidates if c.timing},
            }
        )
    return rows


@app.command()
def show(
    op: Annotated[str, typer.Argument(help="Only this operator.", show_default="all")] = "",
    json: Json = False,
) -> None:
    """List the measured problems: winner, reason, policy and age."""
    from nxcore.cli import measured, render

    rows = collect(op)
    render.json(rows) if json else measured.wisdom(rows)


@app.command()
def shipped(
    json: Json = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove them from the files: figures of changed kernels.")
    ] = False,
) -> None:
    """List the kernels for which the package's own measurements don't count any more, and why.

    Exit status 1 if there are some.
    """
    from nxcore import session
    from nxcore.cli import measured, render
    from nxcore.offline import shipped as records
    from nxcore.store import owner
    from nxcore.store.transfer import read_json

    why = records.compared(session.default())
    rows = [found.to_dict() for found in records.stale(why, records.files())]
    render.json(rows) if json else measured.shipped(rows, [path.name for path in records.files()])
    if prune:
        for path in records.files():
            records.write(path, records.pruned(read_json(path, owner.packaged), why))
    elif rows:
        raise typer.Exit(1)


@app.command()
def export(file: File) -> None:
    """Write all measured problems into one file."""
    from nxcore import session
    from nxcore.cli import destination, render
    from nxcore.store import transfer

    destination.file(file, "FILE")
    document = transfer.exported(session.default().wisdom.store)
    transfer.write(file, document)
    render.line(f"{sum(len(e['entries']) for e in document['environments'])} problems written to {file}")


@app.command(name="import")
def take(file: File) -> None:
    """Add the problems of a file that are new or more recent. Each stays tied to its own device."""
    from nxcore import session
    from nxcore.cli import render
    from nxcore.store import transfer

    count = transfer.imported(session.default().wisdom.store, *transfer.read(file))
    render.line(f"{count} problems imported from {file}")


@app.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="Files that `export` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
) -> None:
    """Merge files into one. If two clear measurements are of one problem, the later one is kept."""
    from nxcore.cli import destination, render
    from nxcore.store import transfer

    destination.file(output, "--output")
    environments, pages = transfer.merged(map(transfer.read, files))
    transfer.write(output, transfer.document_of(environments, pages))
    render.line(f"{len(pages)} problems written to {output}")


@app.command()
def prune(
    days: Annotated[float, typer.Option(help="Only problems older than this many days.")] = 0.0,
    others: Annotated[
        bool, typer.Option("--others", help="Only problems that other devices measured.")
    ] = False,
) -> None:
    """Remove measured problems. They are measured again when needed."""
    import time

    import torch

    from nxcore import session
    from nxcore.cli import render
    from nxcore.store.transfer import gathered
    from nxcore.store.wisdom import digest, environment

    store = session.default().wisdom.store
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    ours = {digest(environment(torch.device(kind))) for kind in kinds}
    gone = 0
    for (name, _), (key, document) in gathered(store)[1].items():
        if time.time() - document["date"] < days * 86_400 or (others and name in ours):
            continue
        store.remove(f"{name}/entries", key)
        gone += 1
    render.line(f"{gone} problems removed")


@app.command()
def lock(file: File, device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None) -> None:
    """Write the winner of every problem into a lock. NXCORE_LOCK=FILE makes later runs choose alike."""
    from nxcore import session
    from nxcore.cli import destination, render
    from nxcore.spec.device import available
    from nxcore.store import lock as locks
    from nxcore.store import transfer
    from nxcore.store.wisdom import digest, environment

    destination.file(file, "FILE")
    name = digest(environment(available(device)))
    document = locks.locked(session.default().wisdom.store, name)
    transfer.write(file, document)
    render.line(f"{len(document['locked'])} winners locked in {file}")
