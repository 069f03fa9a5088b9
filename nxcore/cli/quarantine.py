"""``nxcore quarantine``: list the kernels that are rejected on this machine, and clear the list."""

from __future__ import annotations

from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="List or clear the kernels that are rejected on this machine.")


def collect() -> list[dict[str, Any]]:
    """Return one row for each kernel: see ``nxcore.trust.quarantine.Quarantined``."""
    from nxcore import session

    return [entry.to_dict() for entry in session.default().gate.quarantined()]


@app.command(name="list")
def show(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the rejected kernels, with reason and expiry date: wrong results first, then crashes."""
    from nxcore.cli import render

    rows = collect()
    render.json(rows) if json else render.quarantine(rows)


@app.command()
def clear(
    op: Annotated[str, typer.Argument(help="Only kernels of this operator.", show_default="all")] = "",
    kernel: Annotated[str, typer.Option("--kernel", help="Only this kernel, such as numba-cuda.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Remove kernels from the quarantine. Each is verified again before it runs a call."""
    from nxcore import session
    from nxcore.cli import render

    current = session.default()
    if op:
        current.registry.spec(op)  # or an error that names the nearest
    lifted = [entry.to_dict() for entry in current.gate.quarantine.clear(op, kernel)]
    render.json(lifted) if json else render.line(f"{len(lifted)} removed from quarantine")
