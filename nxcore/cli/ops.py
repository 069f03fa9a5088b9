"""``nxcore ops``: the operators and their kernels."""

from __future__ import annotations

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


def stub() -> str:
    """Return the type stub of the core's operators, which is the text of ``nxcore/ops/__init__.pyi``."""
    from nxcore.cli import stub
    from nxcore.expression.activations import ACTIVATIONS
    from nxcore.ops import nxcore_ops

    return stub.stub([*nxcore_ops(), *(found.specs(name)[0] for name, found in ACTIVATIONS.items())])


def command(
    stubs: Annotated[
        bool, typer.Option("--stub", help="Print nxcore/ops/__init__.pyi, the type stub of the operators.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the operators and their kernels."""
    from nxcore.cli import render

    if stubs:
        render.text(stub())
        return
    rows = collect()
    render.json(rows) if json else render.ops(rows)
