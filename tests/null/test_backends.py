"""A backend of this repository is a folder under ``plugins``; lists of backends are held to the folders."""

import ast
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EVERY = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
LIBRARIES = [
    path for path in EVERY if "\nlibrary = " in (path / "pyproject.toml").read_text(encoding="utf-8")
]
"""Those that offer another library's kernels: they are installed beside it, and not for the tests."""
FOLDERS = [path for path in EVERY if path not in LIBRARIES]
NAMES = [folder.name for folder in EVERY]
CORE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
COMPILED = {"cuda.jit", "intrinsic", "threads.jit", "triton.constexpr_function", "triton.jit"}
"""Decorators of functions that a toolkit compiles from their source."""

MYPY = CORE["tool"]["mypy"]


def test_there_are_backends():
    assert NAMES


@pytest.mark.parametrize("folder", EVERY, ids=lambda path: path.name)
def test_a_folder_a_distribution_a_module_and_a_backend_have_one_name(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder / "src")
    found = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert found["name"] == f"nxcore-{folder.name}"
    assert [*found["entry-points"]] == ["nxcore"]
    assert found["entry-points"]["nxcore"] == {folder.name: f"nxcore_{folder.name}"}
    assert (folder / "src" / f"nxcore_{folder.name}" / "__init__.py").is_file()
    assert (folder / "README.md").is_file()
    (point,) = found["entry-points"]["nxcore"].items()
    backend = EntryPoint(*point, "nxcore").load().nxcore_backend()
    assert backend.name == folder.name
    if folder in LIBRARIES:
        lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py")]
        assert sum(lines) <= 150
        assert found["optional-dependencies"]["library"][0] in backend.probe().hint
    else:
        assert len({kernel.op for kernel in backend.kernels}) > 10


def test_each_is_an_extra_of_the_core():
    assert set(NAMES) <= set(CORE["project"]["optional-dependencies"])


def test_mypy_reads_each():
    assert {f"nxcore_{name}" for name in NAMES} == set(MYPY["packages"]) - {"nxcore"}
    assert sorted(MYPY["mypy_path"].split(":")) == [f"plugins/{name}/src" for name in NAMES]


def test_mypy_leaves_out_files_with_kernel_bodies_alone():
    assert not any(o.get("ignore_errors") for o in MYPY["overrides"])
    sources = [path for folder in EVERY for path in folder.glob("src/**/*.py")]
    exempt = [p for p in sources if "\n# mypy: ignore-errors\n" in p.read_text(encoding="utf-8")]
    assert exempt
    assert exempt == [p for p in sources if _has_kernels(p)]


def _has_kernels(path: Path) -> bool:
    """Return whether a file defines a function that a toolkit compiles from its source."""
    functions = [
        n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.FunctionDef)
    ]
    marks = [m.func if isinstance(m, ast.Call) else m for f in functions for m in f.decorator_list]
    return any(ast.unparse(mark) in COMPILED for mark in marks)


def test_make_finds_them_by_looking():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))" in text


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_a_page_for_users_names_each(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [name for name in NAMES if f"nxcore-{name}" not in text] == []
