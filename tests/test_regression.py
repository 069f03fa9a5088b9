"""The gate that compares a commit with its parent: what is slower, and what it says without a parent."""

from __future__ import annotations

import importlib.util
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "regression.py"


@pytest.fixture(scope="module")
def regression():
    found = importlib.util.spec_from_file_location("regression", SCRIPT)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    sys.modules["regression"] = module  # its dataclass looks itself up
    found.loader.exec_module(module)
    return module


def _noisy(change: float, blocks: int, seed: int) -> list[float]:
    dice = random.Random(seed)
    return [change * dice.lognormvariate(0, 0.05) for _ in range(blocks)]


def test_slower_beyond_the_margin_is_told_from_noise(regression):
    ratios = {f"same {i}": _noisy(1.0, 20, i) for i in range(30)}
    ratios |= {f"within {i}": _noisy(1.08, 20, i) for i in range(10)}
    slower, changes = regression.verdicts(ratios | {"slow": _noisy(1.3, 20, 99), "fast": _noisy(0.5, 20, 98)})
    assert slower == ["slow"]
    assert changes["slow"] == pytest.approx(0.3, abs=0.05)
    assert regression.verdicts({"few": [2.0] * (regression.LEAST - 1)}) == ([], {})
    # The fewest blocks that are looked at must be able to tell, over as many cells as there are.
    most = {f"all {i}": [2.0] * regression.LEAST for i in range(60)}
    assert len(regression.verdicts(most)[0]) == 60


def test_without_a_parent_it_says_so_and_passes(tmp_path):
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(SCRIPT, tmp_path / "benchmarks")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    command = [sys.executable, str(tmp_path / "benchmarks" / SCRIPT.name)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "there is no HEAD^ here" in done.stdout
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "second"], cwd=tmp_path, check=True)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "regression: nothing that runs differs from HEAD^\n")
