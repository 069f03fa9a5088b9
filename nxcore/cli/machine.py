"""``nxcore backends``, ``doctor``, ``cache`` and ``quarantine``: what a machine has, keeps and rejects."""

import platform
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def backend_rows() -> list[dict[str, Any]]:
    """Return one row a backend: see ``BackendStatus``."""
    import nxcore

    return [status.to_dict() for status in nxcore.backends().values()]


def backends(json: Json = False) -> None:
    """List the backends: ready, unavailable, failed or disabled, with the reason."""
    from nxcore.cli import render, tables

    rows = backend_rows()
    render.json(rows) if json else tables.backends(rows)
    if any(row["status"] == "failed" for row in rows):
        raise typer.Exit(1)


PLUGINS = {"cpu": ("nxcore-numba",), "cuda": ("nxcore-triton", "nxcore-cuda")}
"""The distributions with kernels for each device type."""


def checked(trace: Path | None = None, *, quiet: bool = True) -> list[dict[str, Any]]:
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


def doctor(
    from_trace: Annotated[
        Path | None,
        typer.Option(help="Say which calls of a program need a compiler: those that nxcore.record wrote."),
    ] = None,
    json: Json = False,
) -> None:
    """Check the installation and suggest fixes. Exit status 1 if something is broken.

    The last line says how many calls would need a compiler: of those on record for this machine's devices,
    or of a recorded program.
    """
    from nxcore.cli import render, tables

    rows = checked(from_trace, quiet=json or not sys.stderr.isatty())
    render.json(rows) if json else tables.doctor(rows)
    if not all(row["ok"] for row in rows):
        raise typer.Exit(1)


cache = typer.Typer(no_args_is_help=True, help="Show or remove the files that nxcore keeps on disk.")

PARTS = {
    "v1": "verdicts, measurements, quarantine and journal",
    "numba": "kernels that Numba compiled",
    "cuda": "kernels that nvcc or NVRTC compiled",
}
"""nxcore's folders in the cache, and their content."""


def parts() -> list[dict[str, Any]]:
    """Return one row for each part on disk: name, content, folder, number of files, bytes."""
    from nxcore.settings import cache_folder

    root = cache_folder()
    return [_part(root, name) for name in PARTS if root is not None and (root / name).is_dir()]


def remove(part: str = "") -> list[dict[str, Any]]:
    """Remove one part or all; return the rows of the removed parts.

    Raises
    ------
    InvalidInputError
        If ``part`` is not a key of ``PARTS``.
    """
    import shutil

    from nxcore.errors import InvalidInputError, one_of

    if part and part not in PARTS:
        raise InvalidInputError(one_of("part", part, PARTS), argument="part")
    rows = [row for row in parts() if part in ("", row["part"])]
    for row in rows:
        folder = Path(row["folder"])
        folder.unlink() if folder.is_symlink() else shutil.rmtree(folder)
    return rows


def _part(root: Path, name: str) -> dict[str, Any]:
    sizes = [path.stat().st_size for path in (root / name).rglob("*") if path.is_file()]
    return {
        "part": name,
        "holds": PARTS[name],
        "folder": str(root / name),
        "files": len(sizes),
        "bytes": sum(sizes),
    }


@cache.command(name="show")
def _show_cache(json: Json = False) -> None:
    """List the files on disk: part, folder, number of files, size."""
    from nxcore.cli import render, tables

    rows = parts()
    render.json(rows) if json else tables.cache(rows)


@cache.command(name="clear")
def _clear_cache(
    part: Annotated[str, typer.Argument(help="Only this part, such as numba.", show_default="all")] = "",
    json: Json = False,
) -> None:
    """Remove the files. Kernels are compiled, verified and measured again at their next use."""
    from nxcore.cli import render

    rows = remove(part)
    files, size = sum(row["files"] for row in rows), sum(row["bytes"] for row in rows)
    render.json(rows) if json else render.line(f"removed {files} files, {size / 1e6:.1f} MB")


quarantine = typer.Typer(
    no_args_is_help=True, help="List or clear the kernels that are rejected on this machine."
)


def quarantined() -> list[dict[str, Any]]:
    """Return one row for each kernel: see ``nxcore.trust.quarantine.Quarantined``."""
    from nxcore import session

    return [entry.to_dict() for entry in session.default().gate.quarantined()]


@quarantine.command(name="list")
def _show_quarantine(json: Json = False) -> None:
    """List the rejected kernels, with reason and expiry date: wrong results first, then crashes."""
    from nxcore.cli import render, tables

    rows = quarantined()
    render.json(rows) if json else tables.quarantine(rows)


@quarantine.command(name="clear")
def _clear_quarantine(
    op: Annotated[str, typer.Argument(help="Only kernels of this operator.", show_default="all")] = "",
    kernel: Annotated[str, typer.Option("--kernel", help="Only this kernel, such as numba-cuda.")] = "",
    json: Json = False,
) -> None:
    """Remove kernels from the quarantine. Each is verified again before it runs a call."""
    from nxcore import session
    from nxcore.cli import render

    current = session.default()
    if op:
        current.registry.spec(op)  # or an error that names the nearest
    lifted = [entry.to_dict() for entry in current.gate.quarantine.clear(op, kernel)]
    render.json(lifted) if json else render.line(f"{len(lifted)} removed from quarantine")
