"""Draws the tables of operators in ``operators.md`` and in the plugins' READMEs, from specs and kernels.

Run it where an operator, a kernel's row, or the first line of a kernel's file has changed.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from nxcore.plugin import OpSpec
from nxcore.registry.discovery import discover
from nxcore.registry.registry import Registry

ROOT = Path(__file__).parents[1]
CATALOGUE = ROOT / "docs" / "operators.md"
BEGIN, END = "<!-- drawn by docs/tables.py -->\n", "<!-- until here -->\n"


def in_order(specs: Iterable[OpSpec]) -> Iterator[OpSpec]:
    """Yield each operator, then the one that runs where a gradient is needed, then its gradient."""
    found = {spec.name: spec for spec in specs}
    follows = {
        name: tuple(filter(None, (spec.gradient.forward, spec.gradient.op)))
        for name, spec in found.items()
        if spec.gradient
    }
    behind = {name for names in follows.values() for name in names}
    for name in sorted(found.keys() - behind):
        yield from (found[each] for each in (name, *follows.get(name, ())) if each in found)


def meaning(spec: OpSpec) -> str:
    """Return what an operator computes: the first line of its docstring, and its module's formula.

    A gradient that stands in its operator's module has the last formula there.
    """
    module = sys.modules[spec.reference.__module__]
    formulas = [part for part in (module.__doc__ or "").split("\n\n") if part.startswith("    ")]
    formula = formulas[-1 if vars(module).get("BACKWARD") is spec else 0].replace("``", "")
    summary = spec.summary.removeprefix("Return ").replace("``", "`").rstrip(".")
    lines = (line.strip(" ,") for line in formula.splitlines())
    return f"{summary}:<br>{'<br>'.join(f'`{line}`' for line in lines)}"


def catalogue(registry: Registry) -> str:
    """Return the table of the core's operators."""
    core = (spec for spec in registry.ops.values() if spec.reference.__module__.startswith("nxcore.ops."))
    rows = [f"| `{spec.name}` | `{spec.signature}` | {meaning(spec)} |" for spec in in_order(core)]
    return "\n".join(["| operator | signature | what it computes |", "|---|---|---|", *rows, ""])


def way(module: str) -> str:
    """Return how a kernel computes: what follows the name in the first line of its file."""
    origin = importlib.util.find_spec(module).origin
    line = (ast.get_docstring(ast.parse(Path(str(origin)).read_text(encoding="utf-8"))) or "").split("\n")[0]
    _, _, text = line.partition(": ")
    if not text:
        raise SystemExit(f"{origin}: its first line must be 'operator: how it is computed', got {line!r}")
    return text.replace("``", "`").rstrip(".")


def kernels(registry: Registry, backend: str) -> str:
    """Return the table of a plugin's kernels; Numba's CUDA kernels have a column of their own."""
    modules: dict[str, list[str]] = {}
    for kernel in registry.backend(backend).kernels:
        module = kernel.target.partition(":")[0]
        parts = registry.spec(kernel.op).parts
        if parts and module.rpartition(".")[2] != kernel.op:
            text = f"the kernels of {' and '.join(f'`{op}`' for op in parts.ops)}, one after the other"
        else:
            text = way(module)
        modules.setdefault(kernel.op, []).append(text)
    rows: dict[tuple[str, ...], list[str]] = {}
    for spec in in_order(registry.spec(op) for op in modules):
        rows.setdefault(tuple(modules[spec.name]), []).append(f"`{spec.name}`")
    heads = ["operator", "on the CPU", f"on CUDA (`{backend}-cuda` in tables)"][: len(next(iter(rows))) + 1]
    heads = heads if len(heads) == 3 else ["operator", "kernel"]
    lines = [f"| {', '.join(ops)} | {' | '.join(texts)} |" for texts, ops in rows.items()]
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *lines, ""])


def pages(registry: Registry) -> dict[Path, str]:
    """Return each page with its drawn table as it should be."""
    tables = {CATALOGUE: catalogue(registry)}
    for path in sorted(ROOT.glob("plugins/*/README.md")):
        if BEGIN in path.read_text(encoding="utf-8"):
            tables[path] = kernels(registry, path.parent.name)
    drawn = {}
    for path, table in tables.items():
        before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        drawn[path] = f"{before}{begin}\n{table}\n{end}{after}"
    return drawn


if __name__ == "__main__":
    for path, text in pages(discover(strict=True)).items():
        path.write_text(text, encoding="utf-8")
