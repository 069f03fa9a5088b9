"""Draws the folders and layers of ``architecture.md``: run it where a module or a layer has changed."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = ROOT / "nxcore"
PAGE = Path(__file__).with_name("architecture.md")
BEGIN, END = "<!-- drawn by docs/folders.py -->\n", "<!-- until here -->\n"


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]


def layers() -> list[list[str]]:
    """Return the layers of ``pyproject.toml``, the upper ones first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (core,) = (c for c in contracts if c["containers"] == ["nxcore"])
    return [row.split(" | ") for row in core["layers"]]


def subject(line: str) -> str:
    """Return what a folder's line says before it tells of imports; backticks as Markdown has them."""
    return line.partition(" May import ")[0].replace("``", "`")


def listed(folder: Path) -> str:
    """Return the modules of a folder, and those of the folders in it."""
    modules = sorted(p for p in folder.glob("*.py") if p.stem not in ("__init__", "__main__"))
    inner = sorted(p.parent for p in folder.glob("*/__init__.py"))
    parts = [", ".join(f"`{p.stem}`" for p in modules)]
    parts += [
        f"{folder.name}/{p.name}: {', '.join(f'`{m.stem}`' for m in sorted(p.glob('[a-z]*.py')))}"
        for p in inner
    ]
    return "; ".join(filter(None, parts))


def drawn() -> str:
    """Return the tables."""
    rows = ["| layer | what it holds | modules |", "|---|---|---|"]
    for row in layers():
        for name in row:
            folder, module = CORE / name, CORE / f"{name}.py"
            if name == "ops":
                rows.append(f"| `ops/` | {subject(first_line(folder / '__init__.py'))} | one an operator |")
            elif folder.is_dir():
                rows.append(
                    f"| `{name}/` | {subject(first_line(folder / '__init__.py'))} | {listed(folder)} |"
                )
            else:
                rows.append(f"| `{name}` | {subject(first_line(module))} | |")
    shown = "\n".join(" | ".join(row) for row in layers())
    return "\n".join(rows) + f"\n\n```text\n{shown}\n```\n"


def redrawn(page: str) -> str:
    """Return the page with its drawn part as it should be."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{drawn()}\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
