"""What a package index shows of each distribution, and what installing them asks for."""

import importlib.util
import re
import sys
import sysconfig
import tomllib
import types
from pathlib import Path

import pytest

from nxcore.cli import machine
from nxcore.registry import discovery
from nxcore.spec import device
from tests.null import fakes

ROOT = Path(__file__).parents[2]
PROJECTS = [
    ROOT / "pyproject.toml",
    ROOT / "native" / "pyproject.toml",
    *sorted((ROOT / "plugins").glob("*/pyproject.toml")),
]
REPOSITORY = "https://github.com/nxcore/nxcore"
PYTHONS = ("3.11", "3.12", "3.13")


def project(path: Path) -> dict:
    return tomllib.loads(path.read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("path", PROJECTS, ids=lambda p: p.parent.name)
def test_a_package_index_can_show_where_it_comes_from_and_find_it(path):
    found = project(path)
    assert found["urls"]["Repository"] == REPOSITORY
    assert set(found["urls"]) == {"Repository", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(REPOSITORY) for url in found["urls"].values())
    assert {"torch", "kernels"} <= set(found["keywords"])
    assert {f"Programming Language :: Python :: {version}" for version in PYTHONS} <= set(
        found["classifiers"]
    )
    assert not [c for c in found["classifiers"] if c.startswith("License ::")], "PEP 639 has `license` alone"


def test_urls_point_at_files_that_are_there():
    for path in PROJECTS:
        for url in project(path)["urls"].values():
            _, _, inside = url.partition("/main/")
            assert not inside or (ROOT / inside).exists(), url


def test_the_images_of_the_readme_are_shown_by_a_package_index_too():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    images = re.findall(r"!\[[^]]*\]\(([^)]*)\)", readme)
    assert images
    base = "https://raw.githubusercontent.com/nxcore/nxcore/main/"
    for image in images:
        assert image.startswith(base)
        assert (ROOT / image.removeprefix(base)).is_file(), image


def test_the_readme_warns_of_the_package_named_nxcore_and_of_torch_with_cuda():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    install = readme.partition("## Install\n")[2].partition("\n## ")[0]
    assert "`pip install nxcore` installs an unrelated package" in install
    assert "--index-url https://download.pytorch.org/whl/cpu" in install
    above = re.search(r"pip install '(torch<[\d.]+)'", device.torch_note("99.0"))[1]
    assert f"'torch>={device.TESTED_TORCH[0]},{above.removeprefix('torch')}'" in install


def test_the_range_of_torch_is_the_one_that_is_installed_and_tested():
    oldest, newest = device.TESTED_TORCH
    assert f"torch>={oldest}" in project(ROOT / "pyproject.toml")["dependencies"]
    pinned = re.search(
        r"^torch==([\d.]+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert pinned[1].startswith(f"{newest}.")


@pytest.mark.parametrize("version", ["2.10.0", "2.11.0+cu130", "2.13.1+cpu"])
def test_a_tested_torch_is_no_news(version):
    assert device.torch_note(version) == ""


@pytest.mark.parametrize("version", ["2.14.0", "2.15.0a0+git1234", "3.0.0"])
def test_a_newer_torch_is_said_with_the_range_and_the_way_back(version, monkeypatch, as_default):
    note = device.torch_note(version)
    assert note == f"nxcore was tested with torch 2.10 to 2.13, found {version}; pip install 'torch<2.14'"
    monkeypatch.setattr(discovery, "torch_note", lambda: note)
    with pytest.warns(discovery.TorchWarning, match=re.escape(note)):
        registry = discovery.discover(found=())
    assert "torch" in registry.backends, "a warning, no refusal"
    monkeypatch.setattr(device, "torch_note", lambda: note)
    as_default(fakes.session())
    assert next(row for row in machine.checked() if row["name"] == "torch")["detail"] == note


@pytest.fixture
def platform_tag(monkeypatch):
    """The function of the build, without hatchling, which pip fetches for a build alone."""
    name = "hatchling.builders.hooks.plugin.interface"
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(BuildHookInterface=object))
    path = ROOT / "plugins" / "cuda" / "hatch_build.py"
    spec = importlib.util.spec_from_file_location("hatch_build", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.platform_tag


@pytest.mark.parametrize(
    ("symbols", "system"),
    [
        (("GLIBC_2.2.5", "GLIBC_2.14"), "manylinux_2_17"),
        (("GLIBC_2.2.5", "GLIBC_2.34"), "manylinux_2_34"),
        (("GLIBC_2.2.5", "GLIBC_ABI_DT_RELR"), "manylinux_2_36"),
        ((), "linux"),
    ],
)
def test_the_wheels_tag_names_the_oldest_glibc_that_it_runs_on(tmp_path, platform_tag, symbols, system):
    library = tmp_path / "library.so"
    library.write_bytes(b"\x7fELF\0" + b"\0".join(name.encode() for name in symbols) + b"\0")
    machine = sysconfig.get_platform().partition("-")[2].replace("-", "_").replace(".", "_")
    assert platform_tag(library) == f"{system}_{machine}"


def test_the_extension_is_small_enough_to_be_read():
    lines = [
        line
        for path in (ROOT / "native" / "csrc").glob("[a-z]*")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert len(lines) <= 1700
    assert max(map(len, lines)) <= 120
