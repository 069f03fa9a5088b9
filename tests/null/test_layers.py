"""Imports go downwards, those inside of functions and by name too; every folder says in one line how far."""

import ast
import functools
import graphlib
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.table import for_each

ROOT = Path(__file__).parents[2]
CORE = ROOT / "nxcore"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(CORE.rglob("*.py"))
}
CONTRACTS = {
    contract["containers"][0]: [row.split(" | ") for row in contract["layers"]]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
}
LAYERS = CONTRACTS["nxcore"]
FACADE = "nxcore"
"""The package itself: its names are imported when they are asked for, and only what stands above all else."""

BY_NAME = {
    "nxcore": "the package's own attributes",
    "nxcore.cli.explain": "a model that the user names",
    "nxcore.ops": "the operators' own modules, found by looking",
    "nxcore.testing": "the kit's own modules",
    "nxcore.testing.__main__": "a registry that the caller names",
    "nxcore.spec.kernel": "a kernel's target, in its plugin",
    "nxcore.spec.process": "the same",
}
"""Modules that import what isn't written down: why."""

TARGET = re.compile(r"nxcore(?:\.\w+)+(?=:\w+$|$)")
"""A module by name: alone, or as a kernel's target is written."""


def named(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of nxcore that a module imports, wherever it does, or names in a string."""
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "nxcore")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nxcore":
            for alias in node.names:
                if (node.module, alias.name) == ("nxcore", "__version__"):
                    continue  # a constant
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            found = TARGET.match(node.value)
            if found and found[0] in MODULES:
                yield found[0]


def unwritten(tree: ast.Module) -> bool:
    """Tell whether a module imports by a name that isn't written there."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    importing = [
        c for c in calls if ast.unparse(c.func).rpartition(".")[2] in ("import_module", "__import__")
    ]
    return any(not isinstance(call.args[0], ast.Constant) for call in importing)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def folder_of(module: str) -> str:
    """Return what a module is in: a folder, or itself at the top."""
    return module.split(".")[1] if "." in module else FACADE


@functools.cache
def arrows() -> frozenset[tuple[str, str]]:
    """Return who imports whom: a second's work, which only these tests' process is to do."""
    return frozenset(
        (module, other)
        for module, path in MODULES.items()
        for other in named(parsed(path))
        if other != module
    )


def height(layers: list[list[str]], name: str) -> int:
    return next(i for i, row in enumerate(reversed(layers)) if name in row)


def test_no_import_runs_upwards():
    up = [
        f"{module} -> {other}"
        for module, other in sorted(arrows())
        if FACADE not in (module, other)
        and folder_of(module) != folder_of(other)
        and height(LAYERS, folder_of(module)) <= height(LAYERS, folder_of(other))
    ]
    assert up == []


def test_only_the_command_line_imports_the_package_itself():
    """Below it stands what the package hands out: that would be a circle."""
    above = {module for module, other in arrows() if other == FACADE}
    assert {folder_of(module) for module in above} <= {"cli"}


def test_no_circle_closes_between_folders():
    graph: dict[str, set[str]] = {}
    for module, other in arrows():
        if folder_of(module) != folder_of(other):
            graph.setdefault(folder_of(module), set()).add(folder_of(other))
    assert len(graph) > 20
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_import_runs_upwards_within_choose():
    inside = {(a.split(".")[2], b.split(".")[2]) for a, b in arrows() if _inside(a) and _inside(b)}
    layers = CONTRACTS["nxcore.choose"]
    assert [p for p in sorted(inside) if p[0] != p[1] and height(layers, p[0]) <= height(layers, p[1])] == []


def _inside(module: str) -> bool:
    return module.startswith("nxcore.choose.")


def test_an_import_by_name_is_known():
    assert {module for module, path in MODULES.items() if unwritten(parsed(path))} == set(BY_NAME)
    assert all(BY_NAME.values())


@for_each(
    ("code", "wanted"),
    [
        ("def f():\n    from nxcore import session", {"nxcore.session"}),
        ("from nxcore.session import Session", {"nxcore.session"}),
        ("if TYPE_CHECKING:\n    import nxcore.call.operator", {"nxcore.call.operator"}),
        ("importlib.import_module('nxcore.session').default()", {"nxcore.session"}),
        ("Kernel('add', 'nxcore.registry.inductor:plan')", {"nxcore.registry.inductor"}),
        ("import nxcore", {"nxcore"}),
        ("from nxcore import __version__", set()),
        ('"""See nxcore.session."""\nimport torch', set()),
    ],
)
def test_every_kind_of_import_is_seen(code, wanted):
    assert set(named(ast.parse(code))) == wanted


def test_an_unwritten_name_is_seen():
    assert unwritten(ast.parse("import_module(name)"))
    assert unwritten(ast.parse("importlib.import_module(f'nxcore.{name}')"))
    assert not unwritten(ast.parse("importlib.import_module('nxcore.session')"))


def test_the_top_holds_what_users_and_plugin_authors_import():
    top = {path.stem for path in CORE.glob("*.py")} - {"__init__", "__main__"}
    assert top == {"context", "distributed", "errors", "plugin", "session", "settings"}


def test_a_folder_hides_no_function():
    """``nxcore.record`` is a function: a folder of that name would take its place once it is imported."""
    import nxcore

    folders = {path.parent.name for path in CORE.glob("*/__init__.py")}
    assert folders & set(nxcore.__all__) <= {"nas", "nn", "ops"}
    assert not folders & {"explain", "graphed", "op", "policy", "profile", "record", "use"}


def folders() -> list[tuple[str, list[list[str]], str]]:
    """Return path below nxcore, layers and prefix of every folder of modules."""
    outer = [(path.parent.name, LAYERS, "") for path in sorted(CORE.glob("*/__init__.py"))]
    return [*outer, ("choose/learn", CONTRACTS["nxcore.choose"], "choose.")]


@for_each(("folder", "layers", "prefix"), folders(), ids=lambda v: v if isinstance(v, str) else "")
def test_a_folder_says_in_one_line_what_it_may_import(folder, layers, prefix):
    line = (ast.get_docstring(parsed(CORE / folder / "__init__.py")) or "").split("\n")[0]
    at = next(i for i, row in enumerate(layers) if folder.rpartition("/")[2] in row)
    below = ", ".join(prefix + name for name in layers[at + 1])
    assert line.endswith(f". May import {below} and below.")


def test_new_folders_hold_a_line_and_nothing_else():
    """What is imported is a module: an ``__init__`` that imports would load all for one."""
    with_more = {"cli", "nas", "nn", "ops", "testing"}
    for path in CORE.rglob("__init__.py"):
        if path.parent != CORE and path.parent.name not in with_more:
            assert len(parsed(path).body) == 1, path


def test_the_documentation_is_drawn_from_the_folders():
    """``python docs/folders.py`` writes it anew."""
    spec = importlib.util.spec_from_file_location("folders", ROOT / "docs" / "folders.py")
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert drawing.redrawn(page) == page
    named = set(re.findall(r"`(\w+)`", drawing.drawn()))
    assert {path.stem for path in MODULES.values()} - {"__init__", "__main__"} <= named | {
        path.stem for path in (CORE / "ops").glob("*.py")
    }


def test_the_ladder_of_the_documentation_is_the_codes():
    """``python docs/rungs.py`` writes it anew."""
    spec = importlib.util.spec_from_file_location("rungs", ROOT / "docs" / "rungs.py")
    drawing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(drawing)
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    assert drawing.redrawn(page) == page
    assert page.count("| torch | any | nothing else has an answer |") == 1
    assert len((CORE / "choose" / "ladder.py").read_text(encoding="utf-8").splitlines()) <= 150


PLUGINS = sorted(p for pattern in ("plugins/*/src/**/*.py", "docs/template/*.py") for p in ROOT.glob(pattern))
OPERATORS = sorted(p for p in (CORE / "ops").glob("*.py") if p.stem != "__init__")
MORE = {
    "nxcore_cuda/machine/ahead.py": "the core's samples, built into a wheel",
    "nxcore_triton/release.py": "the winners in the core's records, built into a wheel",
}
"""Modules of plugins that import more than ``nxcore.plugin``: why."""


@for_each("path", PLUGINS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_plugin_imports_nxcore_plugin_alone(path):
    name = path.relative_to(ROOT).as_posix().partition("/src/")[2]
    more = set(named(parsed(path))) - {"nxcore.plugin"}
    assert bool(more) == (name in MORE), more


def test_there_are_plugins_to_look_at():
    assert len(PLUGINS) > 100
    assert set(MORE) <= {p.relative_to(ROOT).as_posix().partition("/src/")[2] for p in PLUGINS}


@for_each("path", OPERATORS, ids=lambda p: p.stem)
def test_an_operator_imports_what_a_plugin_could(path):
    more = {m for m in named(parsed(path)) if not m.startswith("nxcore.ops")}
    assert more <= {"nxcore.plugin"}
