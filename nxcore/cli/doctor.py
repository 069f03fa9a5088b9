"""``nxcore doctor``: checks of the installation on one screen, each with its reason and remedy."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

PLUGINS = {"cpu": ("nxcore-numba",), "cuda": ("nxcore-triton", "nxcore-cuda")}
"""The distributions with kernels for each device type."""


def collect(trace: Path | None = None, *, quiet: bool = True) -> list[dict[str, Any]]:
    """Return one row for each check: name, ok, detail, fix, state, and the reason if unavailable.

    The row named ``compilers`` has in ``calls`` the kernels of a trace's problems, or of those on record.
    """
    import torch

    from nxcore import __version__, session
    from nxcore.spec.device import describe, torch_note
    from nxcore.spec.kernel import Check
    from nxcore.spec.origin import installing

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
    checks.append(_native(current))
    away: dict[str, str] = {}
    statuses = current.backends()
    for status in statuses.values():
        kernels = f"{len(status.operators)} operators" if status.status == "ready" else status.status
        what = f"{kernels}, {status.source.distribution}" + (f": {status.error}" if status.error else "")
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
        checks.append(Check("plugins", True, detail, installing(*PLUGINS["cuda" if cuda else "cpu"])))
    checks.extend(current.registry.checks)
    checks.append(_shipped(current))
    checks.extend(_kept(current))
    rows = [_row(check, away.get(check.name, "")) for check in checks]
    return [*rows, _compilers(current, trace, quiet=quiet)]


def _compilers(session: Any, trace: Path | None, *, quiet: bool) -> dict[str, Any]:
    """Return the row that says which calls need a compiler, with one entry for each of their kernels."""
    from nxcore.cli import render
    from nxcore.offline import compilers
    from nxcore.spec.kernel import Check

    here, problems, elsewhere = _problems(session, trace)
    with render.progress("calls", quiet=quiet) as advance:
        found = [call.to_dict() for call in compilers.calls(session, problems, advance)]
    states = Counter(call["state"] for call in found)
    parts = [f"{len(problems)} calls {'of ' + trace.name if trace else 'on record'} for {here}"]
    parts += [f"{elsewhere} calls of other devices"] * bool(elsewhere)
    named = {"compiles": "kernels to compile", "fails": "that can't be compiled", "unknown": "unknown"}
    parts += [f"{states[state]} {words}" for state, words in named.items() if states[state]]
    parts += [] if states["compiles"] or states["fails"] else ["none needs a compiler"]
    how = f"nxcore tune --from-trace {trace}" if trace else "nxcore tune"
    fix = f"{how} compiles ahead of time" if states["compiles"] else ""
    return _row(Check("compilers", True, "; ".join(parts), fix), "") | {"calls": found}


def _problems(session: Any, trace: Path | None) -> tuple[str, list[Any], int]:
    """Return the devices, the problems on them, and the number of a trace's problems on other devices."""
    import torch

    from nxcore.offline import compilers
    from nxcore.spec.device import describe

    kinds = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    if trace is None:
        problems = [p for kind in kinds for p in compilers.on_record(session, torch.device(kind))]
        return " and ".join(describe(kind).name for kind in kinds), problems, 0
    every = compilers.of_trace(session, trace)
    problems = [problem for problem in every if problem.device.type in kinds]
    names = dict.fromkeys(describe(problem.device).name for problem in problems)
    return " and ".join(names) or "no device of this machine", problems, len(every) - len(problems)


def _native(session: Any) -> Any:
    """Return a check of the compiled call path."""
    from nxcore.interop import native
    from nxcore.spec.kernel import Check
    from nxcore.spec.origin import installing

    if not session.settings.native:
        return Check("native", True, "switched off by NXCORE_NATIVE")
    found = native.found()
    return Check("native", found.ok, found.detail, "" if found.ok else installing("nxcore-native"))


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
    for doubt in session.gate.quarantine.doubts:
        name = f"{doubt.suspect.kernel} {doubt.suspect.op} {doubt.suspect.dtype}"
        detail = f"{doubt.reason}; at its next use it is tried in a process of its own"
        checks.append(Check(name, True, detail))
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
    from_trace: Annotated[
        Path | None,
        typer.Option(help="Say which calls of a program need a compiler: those that nxcore.record wrote."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the installation and suggest fixes. Exit status 1 if something is broken.

    The last line says how many calls would need a compiler: of those on record for this machine's devices,
    or of a recorded program.
    """
    from nxcore import session
    from nxcore.cli import machine, render

    if clear:
        session.default().gate.quarantine.clear()
    rows = collect(from_trace, quiet=json or not sys.stderr.isatty())
    render.json(rows) if json else machine.doctor(rows)
    if not all(row["ok"] for row in rows):
        raise typer.Exit(1)
