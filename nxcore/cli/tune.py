"""``nxcore tune``: measure problems before the program that has them runs."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nxcore.cli import interruption
from nxcore.cli import tiles as sweep
from nxcore.spec import tally

if TYPE_CHECKING:
    from nxcore.measure.race import Effort
    from nxcore.offline.ahead import Cell

EVERY_S = 10.0
"""Seconds between two lines of progress, where it isn't a bar."""


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


def collect(
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


def command(
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
    from nxcore.cli import measured, render

    ops, samples, dtypes = op or [], sample or [], dtype or []
    if tiles is not None:
        _sweep(ops, tiles, samples, dtypes, device, most, json)
        return
    from nxcore import distributed

    with distributed.ranks() as (rank, world):
        wanted = cells(ops, samples, dtypes, device, from_trace)[rank::world]
        found = collect(wanted, again=again, budget=budget, quiet=rank > 0)
        if world > 1 and found["stopped"] != "interrupted":  # an interrupted rank waits for no other
            found = together(distributed.gathered(found))
            distributed.agree()
    if rank == 0:
        render.json(found) if json else measured.tune(found)
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
    from nxcore.cli import measured, render
    from nxcore.errors import InvalidInputError

    if len(ops) != 1:
        raise InvalidInputError(f"--tiles needs one operator, got {len(ops)}", argument="op")
    found = sweep.collect(ops[0], kernel, samples, dtypes, device, most)
    render.json(found) if json else measured.tiles(found)
    if any(row["wrong"] for entry in found for row in entry["rows"]):
        raise typer.Exit(1)
