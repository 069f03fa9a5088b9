"""What Numba compiled lies in nxcore's own folder, and nowhere else."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

import nxcore_numba

CALL = """
import torch
from nxcore.ops import nxcore_ops
from nxcore.spec.problem import Problem
from nxcore_numba import entropy, threads
spec = next(s for s in nxcore_ops() if s.name == "entropy")
args = spec.bind(torch.randn(6, 5))
entropy.plan(Problem.of(spec, args))(*args)
print(sum(entropy.serial.stats.cache_misses.values()), threads.FOLDER)
"""


def call(**variables: str) -> list[str]:
    env = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | variables
    done = subprocess.run(
        [sys.executable, "-c", CALL], capture_output=True, text=True, check=False, env=env, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def compiled(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc")}


@pytest.mark.slow
def test_compiled_kernels_lie_in_a_folder_of_the_users_alone(tmp_path: Path) -> None:
    beside = compiled(Path(nxcore_numba.__file__).parent)
    folder = tmp_path / "cache"
    assert call(NXCORE_CACHE=str(folder)) == ["1", str(folder / "numba")]
    assert compiled(folder / "numba")
    assert compiled(Path(nxcore_numba.__file__).parent) == beside
    for path in (folder, folder / "numba", *(p for p in (folder / "numba").iterdir())):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert call(NXCORE_CACHE=str(folder))[0] == "0"  # the next process finds it


@pytest.mark.slow
def test_nothing_is_kept_where_the_cache_is_in_memory_alone_or_others_may_write(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    assert call(NXCORE_CACHE="0", **home) == ["1", "None"]
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert call(NXCORE_CACHE=str(shared), **home) == ["1", "None"]
    assert compiled(tmp_path) == set()


@pytest.mark.slow
def test_a_folder_that_the_program_names_for_numba_stands(tmp_path: Path) -> None:
    own = tmp_path / "own"
    call(NXCORE_CACHE=str(tmp_path / "cache"), NUMBA_CACHE_DIR=str(own))
    assert compiled(own)
    assert compiled(tmp_path / "cache") == set()
