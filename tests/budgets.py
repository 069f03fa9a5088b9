"""Budgets that may only fall: ``python -m tests.budgets`` prints what is counted, its budget and its target.

A change that needs more takes it from elsewhere. Who lowers a count lowers its budget in ``BUDGETS`` too.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LEFT_OUT = {"build", ".venv", "__pycache__"}

# What these needed is counted apart: operators by the names of their files, the rest by folder or name.
ADDED_OPERATORS = {
    "rms_norm",
    "layer_norm",
    "add_rms_norm",
    "group_norm",
    "group_norm_silu",
    "softmax",
    "log_softmax",
    "cross_entropy",
    "linear_cross_entropy",
    "cumsum",
    "cumprod",
    "topk",
    "argsort",
    "index_add",
    "segment_reduce",
    "embedding",
    "embedding_dense",
    "scaled_dot_product_attention",
    "rope",
    "silu_mul",
    "norms",
    "scans",
    "scatters",
    "softmaxes",
}
ADDED_FOLDERS = frozenset(
    (
        "compilers",
        "liger",
        "flaggems",
        "fla",
        "cce",
        "quack",
        "cudnn",
        "flashinfer",
        "remedies",
        "referee",
        "harnesses",
    )
)
ADDED_FILES = frozenset(
    f"{folder}/lines.py"
    for folder in ("nxcore/spec", *(f"plugins/{n}/src/nxcore_{n}" for n in ("cuda", "triton", "numba")))
)
ADDED_PAGES = frozenset(
    (
        "wall",
        "harnesses",
        "libraries",
        "remedies",
        "0096-remedies",
        "referee",
        "0094-measured-scales",
        "0095-libraries",
    )
)
ADDED_SCRIPTS = frozenset(("calibrate", "chance", "grown"))


class Budget(NamedTuple):
    """What is counted, the most that is allowed now, and where it is to end."""

    name: str
    most: int
    target: int
    count: Callable[[], int]


def files(pattern: str, *folders: str) -> Iterator[Path]:
    """Yield the files of folders, without what builds leave."""
    for folder in folders:
        for path in (ROOT / folder).rglob(pattern):
            if path.is_file() and not LEFT_OUT & set(path.parts):
                yield path


def added(path: Path) -> bool:
    """Whether a file belongs to an operator, a library or a remedy that is counted apart."""
    name = path.stem.removeprefix("test_").removesuffix("_backward").removesuffix("_gpu")
    return (
        name in ADDED_OPERATORS
        or name in ADDED_PAGES | ADDED_SCRIPTS
        or path.relative_to(ROOT).as_posix() in ADDED_FILES
        or bool(ADDED_FOLDERS & set(path.relative_to(ROOT).parts))
    )


def lines(pattern: str, *folders: str, apart: bool = False) -> int:
    """Count the lines of files, without those that are counted apart; or of those alone."""
    counted = (path for path in files(pattern, *folders) if added(path) == apart)
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in counted)


def trees(*folders: str) -> Iterator[ast.Module]:
    """Yield the syntax of Python's files."""
    for path in files("*.py", *folders):
        yield ast.parse(path.read_text(encoding="utf-8"))


def calls(tree: ast.AST, name: str) -> int:
    """Count the calls of a name, dotted or not."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sum(ast.unparse(node.func) == name for node in found)


def fixed(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the values of a module's and of its classes' names, and the defaults of parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value:
                    yield statement.value
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from node.args.defaults
            yield from (default for default in node.args.kw_defaults if default)


def numbers(tree: ast.Module) -> int:
    """Count the numbers in these, each of a tuple too; 0 and 1 are none."""
    found = (node for value in fixed(tree) for node in ast.walk(value) if isinstance(node, ast.Constant))
    return sum(type(node.value) in (int, float) and node.value not in (0, 1) for node in found)


def constants(folder: str) -> int:
    """Count a folder's numeric constants, without those of operators."""
    kept = (path for path in files("*.py", folder) if (ROOT / "nxcore" / "ops") not in path.parents)
    return sum(numbers(ast.parse(path.read_text(encoding="utf-8"))) for path in kept)


BUDGETS = (
    Budget(
        "lines of Python, nxcore/ and plugins/", 92_130, 78_000, lambda: lines("*.py", "nxcore", "plugins")
    ),
    Budget("lines of Python, tests/", 67_710, 46_000, lambda: lines("*.py", "tests")),
    Budget("lines of Python, benchmarks/", 6_000, 6_000, lambda: lines("*.py", "benchmarks")),
    Budget("lines of pages, docs/", 9_500, 9_500, lambda: lines("*.md", "docs")),
    Budget(
        "lines, added operators and libraries",
        12_000,
        12_000,
        lambda: lines("*.py", "nxcore", "plugins", apart=True),
    ),
    Budget("records", 90, 90, lambda: len([*files("*", "benchmarks/results")])),
    Budget("ContextVars", 8, 8, lambda: sum(calls(t, "ContextVar") for t in trees("nxcore", "plugins"))),
    Budget("numeric constants, nxcore/ without ops/", 555, 555, lambda: constants("nxcore")),
    Budget("numeric constants, nxcore/choose", 50, 50, lambda: constants("nxcore/choose")),
    Budget(
        "monkeypatch.setattr", 299, 299, lambda: sum(calls(t, "monkeypatch.setattr") for t in trees("tests"))
    ),
)


def main() -> int:
    """Print the table; return 1 if a count is above its budget."""
    counted = [(budget, budget.count()) for budget in BUDGETS]
    print(f"{'':40} {'now':>8} {'most':>8} {'target':>8}")
    for budget, now in counted:
        mark = " too many" if now > budget.most else ""
        print(f"{budget.name:40} {now:8,} {budget.most:8,} {budget.target:8,}{mark}")
    return int(any(now > budget.most for budget, now in counted))


if __name__ == "__main__":
    sys.exit(main())
