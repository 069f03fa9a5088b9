"""The gate that compares a commit with its parent: what is slower, and what it says without a parent."""

import contextlib
import importlib.util
import os
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


def test_a_cell_ends_early_only_where_it_is_as_fast(regression):
    early = {f"same {i}": [0.97, 1.04] * (regression.EARLY // 2) for i in range(60)}
    slow = {f"slow {i}": _noisy(1.3, 20, 100 + i) for i in range(60)}
    slower, changes = regression.verdicts(early | slow)
    assert set(slower) == set(slow)
    assert {*changes} == {*early, *slow}
    assert regression.verdicts({"slow": slow["slow 0"][: regression.LEAST - 1]}) == ([], {})


def test_blocks_of_a_cell_end_with_its_answer(regression, monkeypatch):
    speeds = {"same": 1.0, "slow": 1.3}
    there = {"old": dict.fromkeys(speeds, 1e-4), "new": dict.fromkeys(speeds, 1e-4)}

    class Process:
        def __init__(self, name):
            self.pid = name

    @contextlib.contextmanager
    def worker(tree, only):
        yield Process(tree.name)

    def asked(process, cell):
        return speeds[cell] if process.pid == "new" else 1.0

    monkeypatch.setattr(regression, "worker", worker)
    monkeypatch.setattr(regression, "_read", lambda process: there[process.pid])
    monkeypatch.setattr(regression, "_asked", asked)
    ratios = regression.measured(Path("old"), Path("new"), float("inf"))
    assert {cell: len(values) for cell, values in ratios.items()} == {
        "same": regression.EARLY,
        "slow": regression.BLOCKS,
    }
    assert regression.verdicts(ratios)[0] == ["slow"]


def test_trees_with_the_same_kernels_share_their_machine_code(regression, tmp_path, monkeypatch):
    source = SCRIPT.parents[1] / "plugins" / "numba" / "src"
    started = []
    monkeypatch.setattr(
        regression.subprocess, "Popen", lambda *args, env, **_: started.append(env) or Quiet()
    )
    for tree in ("same", "other"):
        shutil.copytree(source, tmp_path / tree / "plugins" / "numba" / "src")
    changed = tmp_path / "other" / "plugins" / "numba" / "src" / "nxcore_numba" / "sum.py"
    changed.write_text(changed.read_text() + "\n")
    for tree in (SCRIPT.parents[1], tmp_path / "same", tmp_path / "other"):
        with regression.worker(tree, ()):
            pass
    this, same, other = started
    assert this["NUMBA_CACHE_DIR"] == same["NUMBA_CACHE_DIR"]
    assert same["PYTHONPATH"].split(os.pathsep)[:2] == [str(source), str(tmp_path / "same")]
    assert other.get("NUMBA_CACHE_DIR") == os.environ.get("NUMBA_CACHE_DIR")
    assert str(source) not in other["PYTHONPATH"].split(os.pathsep)


class Quiet:
    """A process that does nothing."""

    def kill(self):
        pass

    def communicate(self):
        pass


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
