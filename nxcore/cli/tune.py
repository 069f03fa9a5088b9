"""``nxcore tune`` and ``nxcore wisdom``: problems measured ahead, shown, transferred and locked."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nxcore.cli import interruption
from nxcore.observe.bar import EVERY_S
from nxcore.spec import tally

if TYPE_CHECKING:
    from nxcore.measure.race import Effort
    from nxcore.offline.ahead import Cell


def cells(
    ops: list[str], samples: list[str], dtypes: list[str], device: str | None, trace: Path | None
) -> list[Cell]:
    """Return the problems to measure: operators' real workloads, or the problems of a trace."""
    from nxcore import session
    from nxcore.errors import InvalidInputError
    from nxcore.offline import ahead
    from nxcore.spec.device import available

    registry = session.default().registry
    if trace is None:
        return ahead.of_samples(registry, available(device), ops, samples=samples, dtypes=dtypes)
    if samples or dtypes:
        raise InvalidInputError("--from-trace can't be used with --sample or --dtype: a trace defines both")
    for op in ops:
        registry.spec(op)  # or an error that names the nearest
    found = ahead.of_trace(registry, trace, available(device) if device else None)
    return [cell for cell in found if not ops or cell.spec.name in ops]


def tuned(
    wanted: list[Cell],
    *,
    again: bool,
    budget: float | None,
    quiet: bool = False,
    effort: Effort | None = None,
) -> dict[str, Any]:
    """Measure cells; return ``rows``, the number ``left``, and the reason why it ``stopped`` early."""
    import time

    from nxcore import session
    from nxcore.cli import render
    from nxcore.offline import ahead

    rows: list[dict[str, Any]] = []
    ends, stopped = time.monotonic() + (math.inf if budget is None else budget), ""
    with render.progress("tune", quiet=quiet, every=EVERY_S) as advance:
        pace = Pace()

        def waited(what: str, done: int, of: int) -> None:
            advance(f"{done}/{of} compiled, {what}; {pace.told(len(rows))}", len(rows), len(wanted))

        at_work = ahead.tuned(
            session.default(), wanted, again=again, effort=effort or ahead.THOROUGH, ends=ends, advance=waited
        )
        try:
            for row in at_work:
                rows.append(row.to_dict())
                advance(f"{row.op} {row.name}; {pace.told(len(rows))}", len(rows), len(wanted))
        except KeyboardInterrupt:
            stopped = "interrupted"
        except Ended:
            stopped = "budget"
    left = len(wanted) - len(rows)
    return {"rows": rows, "left": left, "stopped": stopped or ("budget" if left else "")}


class Ended(BaseException):
    """The time is over. Unlike an interruption, it blames nothing that was under way."""


class Pace:
    """The seconds of each problem so far, by what they were spent on."""

    def __init__(self) -> None:
        from time import monotonic

        self._now, self._began, self._before = monotonic, monotonic(), tally.seconds()

    def told(self, done: int) -> str:
        """Return them as text."""
        count = max(done, 1)
        whole = (self._now() - self._began) / count
        spent = {phase: (s - self._before[phase]) / count for phase, s in tally.seconds().items()}
        parts = [f"{phase} {s:.2f}" for phase, s in spent.items()]
        rest = f"the rest {max(0.0, whole - sum(spent.values())):.2f}"
        return f"{whole:.2f} s a problem: {', '.join([*parts, rest])}"


def tune(
    op: Annotated[list[str] | None, typer.Argument(help="Only these operators.", show_default="all")] = None,
    sample: Annotated[
        list[str] | None, typer.Option(help="Only this sample. By default every real workload.")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this element type.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. By default cuda if available.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Start no measurement after this many seconds.", min=0)
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also measure problems that are known.")] = False,
    from_trace: Annotated[
        Path | None, typer.Option(help="Measure the problems that nxcore.record wrote, not samples.")
    ] = None,
    tiles: Annotated[
        str | None,
        typer.Option(help="Time the tiles of this kernel of one operator, for the table in its plugin."),
    ] = None,
    most: Annotated[int, typer.Option(help="Time at most this many tiles.", min=1)] = 24,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure ahead of time: operators' real workloads, or the problems of a recorded run.

    Known problems are skipped unless they are stale, so an interrupted run continues where it ended.
    `torchrun -m nxcore tune` splits the work over ranks, one GPU each.
    Exit status 130 if interrupted, 1 if a tile is wrong.
    """
    from nxcore.cli import render, tables

    ops, samples, dtypes = op or [], sample or [], dtype or []
    if tiles is not None:
        _sweep(ops, tiles, samples, dtypes, device, most, json)
        return
    from nxcore import distributed

    with distributed.ranks() as (rank, world):
        wanted = cells(ops, samples, dtypes, device, from_trace)[rank::world]
        found = tuned(wanted, again=again, budget=budget, quiet=rank > 0)
        if world > 1 and found["stopped"] != "interrupted":  # an interrupted rank waits for no other
            found = together(distributed.gathered(found))
            distributed.agree()
    if rank == 0:
        render.json(found) if json else tables.tune(found)
    if found["stopped"] == "interrupted":
        raise typer.Exit(interruption.STATUS)


def together(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the results of all ranks, in the order of the cells: rank r had every ``world``-th cell."""
    turns = itertools.zip_longest(*(f["rows"] for f in found))
    return {
        "rows": [row for turn in turns for row in turn if row is not None],
        "left": sum(f["left"] for f in found),
        "stopped": next((f["stopped"] for f in found if f["stopped"]), ""),
    }


def _sweep(
    ops: list[str],
    kernel: str,
    samples: list[str],
    dtypes: list[str],
    device: str | None,
    most: int,
    json: bool,
) -> None:
    from nxcore.cli import render, tables
    from nxcore.errors import InvalidInputError

    if len(ops) != 1:
        raise InvalidInputError(f"--tiles needs one operator, got {len(ops)}", argument="op")
    found = swept(ops[0], kernel, samples, dtypes, device, most)
    render.json(found) if json else tables.tiles(found)
    if any(row["wrong"] for entry in found for row in entry["rows"]):
        raise typer.Exit(1)


def swept(
    op: str, kernel: str, samples: list[str], dtypes: list[str], device: str | None, most: int
) -> list[dict[str, Any]]:
    """Return one entry for each sample and dtype: name, and one row for each tile or the reason for none."""
    from nxcore import session
    from nxcore.cli import render
    from nxcore.errors import InvalidInputError, UnsupportedProblemError, nearest
    from nxcore.offline import tiles
    from nxcore.offline.ahead import of_samples
    from nxcore.spec.device import available

    registry = session.default().registry
    spec = registry.spec(op)
    owned = {b.label(k): (b, k) for b, k in registry.kernels(op)}
    if kernel not in owned:
        raise InvalidInputError(f"{op} has no kernel {kernel!r}{nearest(kernel, owned)}", argument="tiles")
    machine = registry.probe(*owned[kernel])
    if not machine or machine.simulated:  # an interpreter's times mean nothing
        raise InvalidInputError(f"{kernel} can't be timed here: {machine.reason}", argument="tiles")
    one = dtypes or ["float32"]  # a table of tiles is made for one dtype at a time
    cells = of_samples(registry, available(device), [op], samples=samples, dtypes=one)
    found: list[dict[str, Any]] = []
    with render.progress(f"tune {op} {kernel}") as advance:
        for cell in cells:
            try:
                rows = tiles.swept(spec, *owned[kernel], cell.build(), most=most, advance=advance)
            except UnsupportedProblemError as error:
                found.append({"sample": cell.name, "reason": str(error), "rows": []})
                continue
            found.append({"sample": cell.name, "reason": "", "rows": [r.to_dict() for r in rows]})
    return found


wisdom = typer.Typer(no_args_is_help=True, help="Show, transfer and lock the measured problems.")
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
File = Annotated[Path, typer.Argument(help="The file.")]


def known(op: str = "") -> list[dict[str, Any]]:
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
                "reason": found.decision.reason,
                "policy": found.policy,
                "date": found.date,
                "kernels": {c.label: c.timing.median_us for c in found.decision.candidates if c.timing},
            }
        )
    return rows


@wisdom.command()
def show(
    op: Annotated[str, typer.Argument(help="Only this operator.", show_default="all")] = "",
    json: Json = False,
) -> None:
    """List the measured problems: winner, reason, policy and age."""
    from nxcore.cli import render, tables

    rows = known(op)
    render.json(rows) if json else tables.wisdom(rows)


@wisdom.command()
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
    from nxcore.cli import render, tables
    from nxcore.offline import shipped as records
    from nxcore.store import owner
    from nxcore.store.transfer import read_json

    why = records.compared(session.default())
    rows = [found.to_dict() for found in records.stale(why, records.files())]
    render.json(rows) if json else tables.shipped(rows, [path.name for path in records.files()])
    if prune:
        for path in records.files():
            records.write(path, records.pruned(read_json(path, owner.packaged), why))
    elif rows:
        raise typer.Exit(1)


@wisdom.command()
def export(file: File) -> None:
    """Write all measured problems into one file."""
    from nxcore import session
    from nxcore.cli import render
    from nxcore.store import transfer

    render.file(file, "FILE")
    document = transfer.exported(session.default().wisdom.store)
    transfer.write(file, document)
    render.line(f"{sum(len(e['entries']) for e in document['environments'])} problems written to {file}")


@wisdom.command(name="import")
def take(file: File) -> None:
    """Add the problems of a file that are new or more recent. Each stays tied to its own device."""
    from nxcore import session
    from nxcore.cli import render
    from nxcore.store import transfer

    count = transfer.imported(session.default().wisdom.store, *transfer.read(file))
    render.line(f"{count} problems imported from {file}")


@wisdom.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="Files that `export` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
) -> None:
    """Merge files into one. If two clear measurements are of one problem, the later one is kept."""
    from nxcore.cli import render
    from nxcore.store import transfer

    render.file(output, "--output")
    environments, pages = transfer.merged(map(transfer.read, files))
    transfer.write(output, transfer.document_of(environments, pages))
    render.line(f"{len(pages)} problems written to {output}")


@wisdom.command()
def prune(
    days: Annotated[float, typer.Option(help="Only problems older than this many days.")] = 0.0,
    others: Annotated[
        bool, typer.Option("--others", help="Only problems that other devices tables.")
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


@wisdom.command()
def lock(file: File, device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None) -> None:
    """Write the winner of every problem into a lock. NXCORE_LOCK=FILE makes later runs choose alike."""
    from nxcore import session
    from nxcore.cli import render
    from nxcore.spec.device import available
    from nxcore.store import lock as locks
    from nxcore.store import transfer
    from nxcore.store.wisdom import digest, environment

    render.file(file, "FILE")
    name = digest(environment(available(device)))
    document = locks.locked(session.default().wisdom.store, name)
    transfer.write(file, document)
    render.line(f"{len(document['locked'])} winners locked in {file}")
