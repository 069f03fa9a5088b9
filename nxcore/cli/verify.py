"""``nxcore verify``: check the kernels of this machine against every rule of the conformance kit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nxcore.testing import Row
    from nxcore.trust.quarantine import Kind

RAISES = "raises_nothing"
MANNERS = frozenset(
    {
        "answers_equal_problems_alike",
        "gives_reasons",
        "passes_opcheck",
        "returns_promptly",
        "takes_a_smoke_sample",
    }
)
"""Rules that are not about results: a kernel that breaks only these is not put into quarantine."""


def collect(
    ops: list[str], backends: list[str], dtypes: list[str], timeout: float, isolated: bool | None
) -> list[Row]:
    """Return one row for each kernel and dtype."""
    import torch

    from nxcore import session, testing
    from nxcore.cli import render

    registry = session.default().registry
    filters: dict[str, Any] = {"ops": ops, "backends": backends, "dtypes": dtypes}
    with render.progress("verify") as advance:
        if torch.cuda.is_available() if isolated is None else isolated:
            return testing.isolated(registry, timeout=timeout, advance=advance, **filters)
        return testing.examine(registry, advance=advance, **filters)


def conclude(rows: list[Row]) -> None:
    """Put kernels that are wrong, crash, hang or raise into quarantine; see ``MANNERS`` for exceptions."""
    import torch

    from nxcore import session

    gate = session.default().gate
    owned = {(k.op, b.label(k)): (b, k) for b in gate.registry.backends.values() for k in b.kernels}
    for row in rows:
        rules = set(row.rules) - MANNERS
        if row.ok or (row.outcome == "wrong" and not rules):
            continue
        kind: Kind = "crashed" if row.outcome != "wrong" else "raised" if rules == {RAISES} else "wrong"
        device = torch.device(row.device or "cpu")
        suspect = gate.suspect(*owned[row.op, row.kernel], device, getattr(torch, row.dtype))
        gate.quarantine.add(suspect, kind, row.reason)


def command(
    op: Annotated[list[str] | None, typer.Argument(help="Only these operators.")] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(help="Only this backend; repeatable. Also runs one that is on request only."),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only this element type.")] = None,
    isolated: Annotated[
        bool | None,
        typer.Option(
            "--isolated/--no-isolated",
            help="Each kernel in a process of its own, or all in this one. By default isolated with CUDA.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds for one isolated kernel in one element type.", min=1.0)
    ] = 600.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the kernels of this machine by every rule. Exit status 1 if one is wrong, crashes or hangs."""
    from nxcore.cli import render

    rows = collect(op or [], backend or [], dtype or [], timeout, isolated)
    conclude(rows)
    found = [row.to_dict() for row in rows]
    render.json(found) if json else render.verify(found)
    if not all(row.ok for row in rows):
        raise typer.Exit(1)
