"""``nxcore backends``: the installed backends, whether each can run here, and the reason if not."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def collect() -> list[dict[str, Any]]:
    """Return one row a backend: see ``BackendStatus``."""
    import nxcore

    return [status.to_dict() for status in nxcore.backends().values()]


def command(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the backends: ready, unavailable, failed or disabled, with the reason."""
    from nxcore.cli import machine, render

    rows = collect()
    render.json(rows) if json else machine.backends(rows)
    if any(row["status"] == "failed" for row in rows):
        raise typer.Exit(1)
