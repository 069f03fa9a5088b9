"""README.md, CONTRIBUTING.md, the documentation and the plugins' pages to the letter, as strangers read them.

Each page is followed by a process of its own, which has torch if there are blocks of Python. Its folder is a
copy of the repository if it has commands, else empty. Its virtual environment has no nxcore if the page says
how to install it, else the core and plugins, as wheels. Nothing of this suite's settings is in it;
Numba keeps the machine code of all pages in one folder.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from tests import fresh
from tests.pages.blocks import FOLLOWED, ROOT, blocks, pages
from tests.pages.shell import environment
from tests.venvs import furnished

ALONE = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
"""Beside other tests, threads that wait for one another take most of the time."""
GPU = torch.cuda.is_available()
BROUGHT = (".", "./plugins/numba", "./plugins/triton")
"""What the environment has of those pages that don't install it."""


def copied(clone: Path) -> None:
    """Copy what git has of this repository, changes and new files with it."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    for name in filter(None, map(bytes.decode, names)):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return the programs of an environment with the core and plugins, one for all workers."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "pages"
    with FileLock(f"{folder}.lock"):
        if not (folder / "ready").exists():
            folder.mkdir()
            programs = furnished(folder / "venv", "pytest")
            copied(folder / "nxcore")
            subprocess.run(
                [programs / "pip", "install", "--quiet", "--no-deps", *BROUGHT],
                cwd=folder / "nxcore",
                env=environment(folder / "cache", programs),
                check=True,
            )
            (folder / "ready").touch()
    return folder / "venv" / "bin"


def commands(page: str) -> list[str]:
    """Return the commands of a page that are run."""
    found = [(block, command) for block in blocks(page) for command, _ in block.commands()]
    return [command for block, command in found if not block.left_out(command, gpu=GPU)]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in pages() if page not in FOLLOWED])
def test_a_page_does_what_it_says(page, tmp_path, request):
    asked, folder = commands(page), tmp_path / "nxcore"
    installs = any("pip install" in command for command in asked)
    programs = furnished(tmp_path / "venv", "pytest") if installs else request.getfixturevalue("installed")
    copied(folder) if asked else folder.mkdir()
    code = f"from tests.pages.runner import main; main({page!r}, gpu={GPU})"
    compiled = {"NUMBA_CACHE_DIR": str(programs.parents[1] / "compiled")}  # of one environment's files
    how = {"env": environment(tmp_path / "cache", programs) | ALONE | compiled, "cwd": folder, "timeout": 500}
    if any(block.language == "python" for block in blocks(page)):
        done = fresh.run("-c", code, python=programs / "python", **how)
    else:
        code = f"import sys; sys.path.append({str(ROOT)!r}); {code}"
        command = [programs / "python", "-c", code]
        done = subprocess.run(command, **how, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
