"""A backend of this repository is a folder under ``plugins``; lists of backends are held to the folders."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
NAMES = [folder.name for folder in FOLDERS]
CORE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MYPY = CORE["tool"]["mypy"]


def test_there_are_backends():
    assert NAMES


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_folder_a_distribution_a_module_and_a_backend_have_one_name(folder):
    found = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert found["name"] == f"nxcore-{folder.name}"
    assert [*found["entry-points"]] == ["nxcore"]
    assert found["entry-points"]["nxcore"] == {folder.name: f"nxcore_{folder.name}"}
    assert (folder / "src" / f"nxcore_{folder.name}" / "__init__.py").is_file()
    assert (folder / "README.md").is_file()
    (point,) = found["entry-points"]["nxcore"].items()
    backend = EntryPoint(*point, "nxcore").load().nxcore_backend()
    assert backend.name == folder.name
    assert len({kernel.op for kernel in backend.kernels}) > 20


def test_each_is_an_extra_of_the_core():
    assert set(NAMES) <= set(CORE["project"]["optional-dependencies"])


def test_mypy_reads_each():
    assert {f"nxcore_{name}" for name in NAMES} == set(MYPY["packages"]) - {"nxcore"}
    assert sorted(MYPY["mypy_path"].split(":")) == [f"plugins/{name}/src" for name in NAMES]
    lenient, strict = (
        {module for o in MYPY["overrides"] if o.get("ignore_errors") is flag for module in o["module"]}
        for flag in (True, False)
    )
    assert lenient == {f"nxcore_{name}.*" for name in NAMES}
    assert {f"nxcore_{name}" for name in NAMES} <= strict
    pure = {f"nxcore_{name}.accepts" for name in NAMES if _has(name, "accepts")}
    assert pure <= strict, "what answers for a call is plain Python"


def _has(name: str, module: str) -> bool:
    return (ROOT / "plugins" / name / "src" / f"nxcore_{name}" / f"{module}.py").is_file()


def test_make_finds_them_by_looking():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))" in text


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_a_page_for_users_names_each(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [name for name in NAMES if f"nxcore-{name}" not in text] == []
