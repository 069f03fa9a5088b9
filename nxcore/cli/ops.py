"""``nxcore ops``: the operators and their kernels, or one of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer


def collect() -> list[dict[str, Any]]:
    """Return one row for each operator: name, signature, summary, gradient, kernels, samples, source."""
    from nxcore import session

    registry = session.default().registry
    for name in registry.latent:
        registry.spec(name)  # adds it
    rows = []
    for name, spec in sorted(registry.ops.items()):
        rows.append(
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
    return rows


PAGES = "https://github.com/nxcore/nxcore/blob/main/docs"
MEASURED = frozenset(
    (
        "add", "avg_pool2d", "batch_norm", "conv2d", "depthwise_conv2d", "gumbel_softmax", "matmul",
        "max_pool2d", "sep_conv2d", "softmax_sum", "sum",
    )
)  # fmt: skip
"""Operators with a page of their own, of how fast their kernels are."""


def one(name: str) -> dict[str, Any]:
    """Return an operator: its row of `collect`, with its description, dtypes, kernels and page.

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
    found = next(row for row in collect() if row["name"] == name)
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


def command(
    name: Annotated[str | None, typer.Argument(help="Show this operator alone.")] = None,
    stubs: Annotated[
        bool, typer.Option("--stub", help="Print nxcore/ops/__init__.pyi, the type stub of the operators.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the operators and their kernels, or show one operator: what it takes, does and runs on."""
    from nxcore.cli import render

    if stubs:
        render.text(stub())
        return
    if name is not None:
        found = one(name)
        render.json(found) if json else render.operator(found)
        return
    rows = collect()
    render.json(rows) if json else render.ops(rows)
