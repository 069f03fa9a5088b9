"""``nxcore ops`` and ``nxcore verify``: operators and their kernels, and whether these follow every rule."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nxcore.testing import Row
    from nxcore.trust.quarantine import Kind


def rows() -> list[dict[str, Any]]:
    """Return one row for each operator: name, signature, summary, gradient, kernels, samples, source."""
    from nxcore import session

    registry = session.default().registry
    for name in registry.latent:
        registry.spec(name)  # adds it
    found = []
    for name, spec in sorted(registry.ops.items()):
        found.append(
            {
                "name": name,
                "signature": spec.signature,
                "summary": spec.summary,
                "gradient": spec.gradient.op if spec.gradient else None,
                "kernels": [b.label(k) for b, k in registry.kernels(name)],
                "samples": len(spec.samples),
                "source": asdict(registry.op_sources[name]),
            }
        )
    return found


PAGES = "https://github.com/nxcore/nxcore/blob/main/docs"
MEASURED = frozenset(
    (
        "add", "avg_pool2d", "batch_norm", "conv2d", "cross_entropy", "cumsum", "depthwise_conv2d",
        "gumbel_softmax", "index_add", "layer_norm", "matmul", "max_pool2d", "rope", "sep_conv2d",
        "softmax", "softmax_sum", "sum",
    )
)  # fmt: skip
"""Operators with a page of their own, of how fast their kernels are."""


def one(name: str) -> dict[str, Any]:
    """Return an operator: its row of `rows`, with its description, dtypes, kernels and page.

    Raises
    ------
    UnknownOperatorError
        If there is none of that name. The message names the nearest.
    """
    from nxcore import session

    registry = session.default().registry
    spec = registry.spec(name)
    kernels = []
    for backend, kernel in registry.kernels(name):
        machine = registry.probe(backend, kernel)
        asked = f"on request: {backend.on_request}" if backend.on_request else ""
        kernels.append(
            {
                "label": backend.label(kernel),
                "ready": bool(machine),
                "reason": machine.reason or asked,
                "dtypes": _names(kernel.dtypes),
            }
        )
    found = next(row for row in rows() if row["name"] == name)
    core = found["source"]["plugin"] == "core"
    page = f"{PAGES}/performance/{name}.md" if name in MEASURED else f"{PAGES}/operators.md"
    return found | {
        "description": inspect.getdoc(spec.reference) or "",
        "dtypes": _names(spec.dtypes),
        "kernels": kernels,
        "samples": [sample.name for sample in spec.samples],
        "page": page if core else "",
    }


def _names(dtypes: Iterable[Any]) -> list[str]:
    return [str(dtype).removeprefix("torch.") for dtype in dtypes]


def stub() -> str:
    """Return the type stub of the core's operators, which is the text of ``nxcore/ops/__init__.pyi``."""
    from nxcore.cli import stub
    from nxcore.expression.activations import ACTIVATIONS
    from nxcore.ops import nxcore_ops

    return stub.stub([*nxcore_ops(), *(found.specs(name)[0] for name, found in ACTIVATIONS.items())])


def ops(
    name: Annotated[str | None, typer.Argument(help="Show this operator alone.")] = None,
    stubs: Annotated[
        bool, typer.Option("--stub", help="Print nxcore/ops/__init__.pyi, the type stub of the operators.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the operators and their kernels, or show one operator: what it takes, does and runs on."""
    from nxcore.cli import render, tables

    if stubs:
        render.text(stub())
        return
    if name is not None:
        found = one(name)
        render.json(found) if json else tables.operator(found)
        return
    every = rows()
    render.json(every) if json else tables.ops(every)


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


def verified(
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


def verify(
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
    from nxcore.cli import render, tables

    rows = verified(op or [], backend or [], dtype or [], timeout, isolated)
    conclude(rows)
    found = [row.to_dict() for row in rows]
    render.json(found) if json else tables.verify(found)
    if not all(row.ok for row in rows):
        raise typer.Exit(1)
