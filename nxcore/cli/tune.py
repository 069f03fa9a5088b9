"""``nxcore tune``: a kernel's tiles on an operator's real workloads, timed beside the one that it takes."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def collect(
    op: str, backend: str, samples: list[str], dtype: str, device: str | None, most: int
) -> list[dict[str, Any]]:
    """Return one entry a sample: its name, and a row a tile or why it was left out."""
    from nxcore import session
    from nxcore.cli import render
    from nxcore.device import available
    from nxcore.errors import InvalidInputError, UnsupportedProblemError, nearest
    from nxcore.tiles import swept

    registry = session.default().registry
    spec = registry.spec(op)
    owned = {b.label(k): (b, k) for b, k in registry.kernels(op)}
    if backend not in owned:
        raise InvalidInputError(
            f"{op} has no kernel {backend!r}{nearest(backend, owned)}", argument="backend"
        )
    machine = registry.probe(*owned[backend])
    if not machine or machine.simulated:  # an interpreter's times say nothing
        raise InvalidInputError(f"{backend} can't be timed here: {machine.reason}", argument="backend")
    dtypes = {str(d).removeprefix("torch."): d for d in spec.dtypes}
    if dtype not in dtypes:
        raise InvalidInputError(f"dtype must be one of {', '.join(dtypes)}, got {dtype!r}", argument="dtype")
    names = {s.name: s for s in spec.samples}
    for name in samples:
        if name not in names:
            raise InvalidInputError(f"{op} has no sample {name!r}{nearest(name, names)}", argument="sample")
    wanted = [names[n] for n in samples] or [s for s in spec.tagged("bench") if "huge" not in s.tags]
    found: list[dict[str, Any]] = []
    with render.progress(f"tune {op} {backend}") as advance:
        for sample in wanted:
            args = sample.build(spec, available(device), dtypes[dtype])
            try:
                rows = swept(spec, *owned[backend], args, most=most, advance=advance)
            except UnsupportedProblemError as error:
                found.append({"sample": sample.name, "reason": str(error), "rows": []})
                continue
            found.append({"sample": sample.name, "reason": "", "rows": [r.to_dict() for r in rows]})
    return found


def command(
    op: Annotated[str, typer.Argument(help="The operator, as in `nxcore ops`.")],
    backend: Annotated[str, typer.Option(help="Whose tiles: a kernel's label, such as cuda or triton.")],
    sample: Annotated[
        list[str] | None, typer.Option(help="One of its samples; every real workload by default.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="The element type.")] = "float32",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda where there is one.")] = None,
    most: Annotated[int, typer.Option(help="How many tiles at most.", min=1)] = 24,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time a kernel's tiles here, for the table in its plugin. Exit status 1 if a tile is wrong."""
    from nxcore.cli import render

    found = collect(op, backend, sample or [], dtype, device, most)
    render.json(found) if json else render.tune(found)
    if any(row["reason"].startswith("wrong") for entry in found for row in entry["rows"]):
        raise typer.Exit(1)
