"""``nxcore doctor``: checks of the installation on one screen, each with its reason and remedy."""

from __future__ import annotations

import platform
from typing import Annotated, Any

import typer

PLUGINS = {"cpu": "pip install nxcore-numba", "cuda": "pip install nxcore-triton nxcore-cuda"}
"""The command that installs kernels, for each device type."""


def collect() -> list[dict[str, Any]]:
    """Return one row for each check: name, ok, detail, fix, state, and the reason if unavailable."""
    import torch

    from nxcore import __version__, session
    from nxcore.spec.device import describe, torch_note
    from nxcore.spec.kernel import Check

    current = session.default()
    cuda = torch.cuda.is_available()
    cpu = describe("cpu")
    checks = [
        Check("nxcore", True, f"{__version__} on Python {platform.python_version()}"),
        Check("torch", True, torch_note() or str(torch.__version__)),
        Check("cpu", True, f"{cpu.name}, {cpu.units} threads, {cpu.capability}"),
        Check(
            "cuda",
            True,
            describe("cuda").name if cuda else "torch finds no CUDA device: only CPU kernels run",
        ),
    ]
    away: dict[str, str] = {}
    statuses = current.backends()
    for status in statuses.values():
        kernels = f"{len(status.operators)} operators" if status.status == "ready" else status.status
        what = f"{kernels}, {status.source.distribution}" + (f": {status.reason}" if status.reason else "")
        name = f"backend {status.name}"
        checks.append(Check(name, status.status != "failed", what, status.hint))
        if status.status == "unavailable":
            away[name] = status.reason
        for backend, kernel in _partial(current.registry, status.name):
            verdict, name = current.registry.probe(backend, kernel), f"backend {backend.label(kernel)}"
            checks.append(Check(name, True, f"unavailable: {verdict.reason}", verdict.hint))
            away[name] = verdict.reason
    if all(status.source.plugin == "core" for status in statuses.values()):
        detail = "none is installed: torch runs every call"
        checks.append(Check("plugins", True, detail, PLUGINS["cuda" if cuda else "cpu"]))
    checks.extend(current.registry.checks)
    checks.append(_shipped(current))
    checks.extend(_kept(current))
    return [_row(check, away.get(check.name, "")) for check in checks]


def _row(check: Any, reason: str) -> dict[str, Any]:
    """Return a check as plain data; ``reason`` says why a backend is unavailable, which is not an error."""
    state = "unavailable" if reason else "ok" if check.ok else "broken"
    found: dict[str, Any] = check.to_dict()
    return found | {"state": state, "reason": reason}


def _kept(session: Any) -> list[Any]:
    """Return a check of the cache, and one for each kernel in quarantine."""
    from nxcore.spec.kernel import Check

    store = session.gate.store
    if store.folder is None:
        wanted = session.settings.cache
        found = f"{wanted} can't be used: results are lost when the process ends" if wanted else "in memory"
        checks = [Check("cache", wanted is None, found, "set NXCORE_CACHE to a writable folder")]
    else:
        known = sum(1 for _ in store.items("verdicts"))
        checks = [Check("cache", True, f"{store.folder}, {known} verdicts")]
    for entry in session.gate.quarantined():
        name = f"{entry.kernel} {entry.op} {entry.dtype}"
        fix = f"nxcore quarantine clear {entry.op} --kernel {entry.kernel}"
        checks.append(Check(name, False, f"in quarantine ({entry.kind}): {entry.reason}", fix))
    return checks


def _shipped(session: Any) -> Any:
    """Return a check of the package's own measurements: kernels that have changed since are left out."""
    from nxcore.offline import shipped
    from nxcore.spec.kernel import Check

    paths = shipped.files()
    found = [s for s in shipped.stale(shipped.compared(session), paths) if s.why == "has changed"]
    names = ", ".join(path.name for path in paths) or "none"
    if not found:
        return Check("shipped", True, f"{names}: every installed kernel is as it was measured")
    more = f"; {len(found) - 2} more" if len(found) > 2 else ""
    detail = f"{names}: {'; '.join(map(str, found[:2]))}{more}"
    return Check("shipped", True, detail, "nxcore wisdom shipped lists them")


def _partial(registry: Any, name: str) -> list[tuple[Any, Any]]:
    """Return one kernel of each variant that can't run on this machine although its backend is ready."""
    backend = registry.backends.get(name)
    if backend is None or not registry.probe(backend):
        return []
    refused = {backend.label(k): (backend, k) for k in backend.kernels if not registry.probe(backend, k)}
    return list(refused.values())


def command(
    clear: Annotated[bool, typer.Option("--clear", help="Empty the quarantine first.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the installation and suggest fixes. Exit status 1 if something is broken."""
    from nxcore import session
    from nxcore.cli import machine, render

    if clear:
        session.default().gate.quarantine.clear()
    rows = collect()
    render.json(rows) if json else machine.doctor(rows)
    if not all(row["ok"] for row in rows):
        raise typer.Exit(1)
