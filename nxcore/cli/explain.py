"""``nxcore explain``: who would run an operator's sample here, and why."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def collect(
    op: str, sample: str | None, dtype: str, device: str | None, backend: str | None
) -> dict[str, Any]:
    """Return ``Explanation.to_dict()`` for one sample of an operator."""
    from nxcore import session
    from nxcore.device import available
    from nxcore.errors import InvalidInputError, nearest

    current = session.default()
    spec = current.op(op, backend=backend).spec
    names = {s.name: s for s in spec.samples}
    chosen = sample or next((s.name for s in spec.tagged("bench")), spec.samples[0].name)
    if chosen not in names:
        raise InvalidInputError(f"{op} has no sample {chosen!r}{nearest(chosen, names)}", argument="sample")
    dtypes = {str(d).removeprefix("torch."): d for d in spec.dtypes}
    if dtype not in dtypes:
        raise InvalidInputError(f"dtype must be one of {', '.join(dtypes)}, got {dtype!r}", argument="dtype")
    where = available(device)
    args = names[chosen].build(spec, where, dtypes[dtype])
    found = current.explain(op, *args[: len(_positional(spec))], backend=backend, **_keywords(spec, args))
    return {"sample": chosen} | found.to_dict() | {"text": str(found.problem)}


def _positional(spec: Any) -> list[Any]:
    return [p for p in spec.params if not p.keyword]


def _keywords(spec: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    return {p.name: a for p, a in zip(spec.params, args, strict=True) if p.keyword}


def command(
    op: Annotated[str, typer.Argument(help="The operator, as in `nxcore ops`.")],
    sample: Annotated[
        str | None, typer.Option(help="One of its samples; the first real workload by default.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="The element type.")] = "float32",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda where there is one.")] = None,
    backend: Annotated[str | None, typer.Option(help="Only this backend.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell who would run one of an operator's samples here, and why; measures it if it is new."""
    from nxcore.cli import render

    found = collect(op, sample, dtype, device, backend)
    render.json(found) if json else render.explain(found)
