"""Commands that install this project's packages: they work from where they are shown."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import setuptools

from nxcore.spec import origin
from nxcore.spec.origin import FOLDERS, installing
from tests.stand_ins import stand_in

origin_has = stand_in(origin)

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"pip install [^`\n]*(?<![\w./-])nxcore[\w-]*")


class Told:
    """A distribution with what pip noted of where it came from."""

    def __init__(self, text):
        self.read_text = {"direct_url.json": text}.get


@pytest.fixture
def clone(tmp_path, monkeypatch, origin_has):
    """Return a folder with what tells a clone, while this package is in none."""
    there = tmp_path / "a clone"
    for folder in FOLDERS.values():
        (there / folder).mkdir(parents=True, exist_ok=True)
        (there / folder / "pyproject.toml").touch()
    origin_has(
        __file__=str(tmp_path / "site-packages" / "nxcore" / "spec" / "origin.py"),
        distribution=lambda name: Told(None),
    )
    monkeypatch.chdir(tmp_path)
    return there


def test_every_folder_is_of_its_distribution():
    for name, folder in FOLDERS.items():
        assert f'\nname = "{name}"\n' in (ROOT / folder / "pyproject.toml").read_text("utf-8")
    listed = {path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")}
    assert listed == {folder.removeprefix("plugins/") for folder in FOLDERS.values() if "/" in folder}


def test_in_a_clone_the_paths_are_short(clone, monkeypatch):
    monkeypatch.chdir(clone)
    assert installing("nxcore-numba") == "pip install ./plugins/numba"
    assert installing("nxcore-kernels", "nxcore-native") == "pip install . ./native"


def test_elsewhere_the_paths_are_the_clones(clone, origin_has):
    origin_has(__file__=str(clone / "nxcore" / "spec" / "origin.py"))
    assert installing("nxcore-triton", "nxcore-cuda") == (
        f"pip install '{clone}/plugins/triton' '{clone}/plugins/cuda'"
    )


def test_an_installed_package_knows_the_clone_that_pip_took_it_from(clone, origin_has):
    told = json.dumps({"url": clone.as_uri(), "dir_info": {}})
    origin_has(distribution=lambda name: Told(told))
    assert installing("nxcore-numba") == f"pip install '{clone}/plugins/numba'"
    shutil.rmtree(clone)
    assert installing("nxcore-numba").startswith(
        "in a clone of https://github.com/nxcore/nxcore: pip install ./"
    )


@pytest.mark.parametrize("told", [None, "", "[]", "{", '{"url": "https://example.org/a.whl"}'])
def test_without_a_clone_it_says_where(clone, origin_has, told):
    origin_has(distribution=lambda name: Told(told))
    assert installing("nxcore-numba") == (
        "in a clone of https://github.com/nxcore/nxcore: pip install ./plugins/numba"
    )


def test_nothing_tells_to_install_a_package_that_no_index_has():
    """A hint is made by ``installing``, or names another project's package; pages install from a clone."""
    sources = [
        *ROOT.glob("nxcore/**/*.py"),
        *ROOT.glob("plugins/*/src/**/*.py"),
        *ROOT.glob("native/**/*.py"),
    ]
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("plugins/*/README.md"),
        ROOT / "native/README.md",
    ]
    found = [
        f"{path.relative_to(ROOT)}: {said}"
        for path in (*sources, *pages)
        for said in NAMED.findall(path.read_text(encoding="utf-8"))
        if said != "pip install nxcore"  # which the pages warn of
    ]
    assert len(sources) > 300
    assert found == []
    assert NAMED.search("pip install nxcore-numba")
    assert NAMED.search("pip install --upgrade 'nxcore-kernels[report]'")
    assert not NAMED.search("pip install ./nxcore/docs/template")


def test_the_extension_is_built_against_the_torch_that_is_installed(tmp_path):
    """In an environment of a build alone, as pip makes it, with nothing but setuptools."""
    around = Path(setuptools.__file__).parents[1]
    for name in ("setuptools", "_distutils_hack"):
        (tmp_path / name).symlink_to(around / name)
    code = (
        "import sys\n"
        "sys.path[:] = [p for p in sys.path if 'site-packages' not in p]\n"
        f"sys.path += [{str(tmp_path)!r}, {str(ROOT / 'native')!r}]\n"
        "import builder\n"
        "print(*builder.get_requires_for_build_wheel())\n"
        "print(builder.find_spec('torch').origin)\n"
        "builder.find_spec = lambda name: None\n"
        "print(*builder.get_requires_for_build_wheel())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    with_torch, torchs, without = done.stdout.splitlines()
    assert with_torch == "ninja"
    assert torchs.endswith("torch/__init__.py")
    assert without == "ninja torch>=2.10"
