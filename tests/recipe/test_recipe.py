"""CONTRIBUTING's recipe for an operator, carried out: square_relu and its gradient, on every backend.

The tree is copied, the files of ``new`` are put in and the rows of ``ROWS`` added. What that costs is
counted, and every kernel is held to every rule of the conformance kit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEW = Path(__file__).parent / "new"
OPS = ("square_relu", "square_relu_backward")
FILES, LINES = 11, 550

TAKEN = """\
        "square_relu": accepts.takes(dense=True),
        "square_relu_backward": {
            "accepts": accepts.takes(dense=True),
            "target": "square_relu:plan_backward",
        },
"""
ROWS = {
    "plugins/numba/src/nxcore_numba/accepts.py": (
        ('    "rows": _on_cpu(', '    "flat": _on_cpu(dense=True),\n'),
        ('    "rows": (', '    "flat": ("square_relu", "square_relu_backward"),\n'),
        ('    "weighted_sum": ', '    "square_relu_backward": "square_relu:plan_backward",\n'),
    ),
    "plugins/triton/src/nxcore_triton/__init__.py": (('        "sum_to_size": ', TAKEN),),
    "plugins/cuda/src/nxcore_cuda/__init__.py": (('        "sum_to_size": ', TAKEN),),
    "plugins/jax/src/nxcore_jax/__init__.py": (
        ('        "add": ', TAKEN.replace("accepts.takes(dense=True)", "accepts")),
    ),
}
"""Of each table of kernels: before which line, which lines."""

EXAMINE = f"""
import json
from nxcore.registry.discovery import discover
from nxcore.testing import examine
backends = ("numba", "triton", "cuda", "jax")
rows = examine(discover(strict=True), backends=backends, ops={OPS}, dtypes=("float32",))
print(json.dumps([(r.op, r.kernel, r.outcome, r.reason) for r in rows]))
"""


def git(*args: str, of: Path) -> str:
    names = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    done = subprocess.run(["git", *names, *args], cwd=of, check=True, capture_output=True, text=True)
    return done.stdout


def python(*args: str, of: Path) -> str:
    """Run Python on a copy of the tree."""
    sources = [str(of), *(str(p / "src") for p in sorted((of / "plugins").iterdir()))]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sources), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, *args], cwd=of, env=env, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with the recipe carried out, and committed before that."""
    copy = tmp_path_factory.mktemp("recipe") / "tree"
    left_out = shutil.ignore_patterns("__pycache__", "*.so", "images", "build", "dist")
    for part in ("nxcore", "plugins"):
        shutil.copytree(ROOT / part, copy / part, ignore=left_out)
    for name in ("pyproject.toml", ".gitignore"):  # Python's bytecode is no part of the cost
        shutil.copy(ROOT / name, copy)
    git("init", "--quiet", of=copy)
    git("add", "--all", of=copy)
    git("commit", "--quiet", "--message", "before", of=copy)
    shutil.copytree(NEW, copy, dirs_exist_ok=True, ignore=left_out)
    for path, rows in ROWS.items():
        text = (copy / path).read_text(encoding="utf-8")
        for before, line in rows:
            assert text.count(before) == 1, f"{path} has no single {before!r}"
            text = text.replace(before, line + before)
        (copy / path).write_text(text, encoding="utf-8")
    stub = copy / "nxcore" / "ops" / "__init__.pyi"
    stub.write_text(python("-m", "nxcore", "ops", "--stub", of=copy), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(copy)], check=True)
    git("add", "--all", of=copy)
    return copy


def test_an_operator_on_every_backend_costs_what_the_recipe_says(tree):
    told = git("diff", "--cached", "--shortstat", of=tree)
    files, lines = (int(re.search(rf"(\d+) {what}", told)[1]) for what in ("files? changed", "insertion"))
    assert files <= FILES
    assert lines <= LINES
    assert "deletion" not in told, "nothing that was there is changed"
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"{files} files changed, {lines} insertions(+)" in page, (
        f"CONTRIBUTING.md has other figures than {told}"
    )


@pytest.mark.slow
def test_every_kernel_of_it_keeps_every_rule(tree):
    """Where there is no device, in the interpreters that ``conftest.py`` asks for."""
    found = json.loads(python("-c", EXAMINE, of=tree).splitlines()[-1])
    asked = {(op, kernel) for op in OPS for kernel in ("numba", "triton", "cuda", "jax")}
    assert {(op, kernel) for op, kernel, *_ in found} == asked
    missing = ("jax is not installed", "NXCORE_CUDA_EMULATOR needs a C++ compiler")
    assert [row for row in found if row[2] != "verified" and not row[3].startswith(missing)] == []
