"""``nxcore quarantine``: which kernels are kept from calls here, and why; and to let them try again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="List or clear the kernels that are kept from calls here.")


def collect() -> list[dict[str, Any]]:
    """Return one row a kernel: see ``nxcore.trust.quarantine.Quarantined``."""
    from nxcore import session

    return [entry.to_dict() for entry in session.default().gate.quarantined()]


@app.command(name="list")
def show(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Tell which kernels are kept from calls, why, and until when: wrong answers apart from crashes."""
    from nxcore.cli import render

    rows = collect()
    render.json(rows) if json else render.quarantine(rows)


@app.command()
def clear(
    op: Annotated[str, typer.Argument(help="Only this operator's.", show_default="all")] = "",
    kernel: Annotated[str, typer.Option("--kernel", help="Only this kernel's, such as numba-cuda.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Let kernels try again: each is verified anew before it serves a call."""
    from nxcore import session
    from nxcore.cli import render

    current = session.default()
    if op:
        current.registry.spec(op)  # or an error that names the nearest
    lifted = [entry.to_dict() for entry in current.gate.quarantine.clear(op, kernel)]
    render.json(lifted) if json else render.line(f"{len(lifted)} lifted")
