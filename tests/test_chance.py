"""``benchmarks/chance.py``: where found cells are among random ones, and all of it at the least size."""

import html
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import chance

SCRIPT = Path(chance.__file__)


def rows(values):
    return [{"name": name, "seed": 0, "correct": value} for name, value in values.items()]


def test_found_cells_are_placed_among_random_ones():
    random = {f"random {i}": 0.90 + i / 1000 for i in range(21)}
    found = chance.summary(rows(random | {"found 0": 0.93, "found 1": 0.905}))
    assert found["mean"] == pytest.approx(0.910)
    assert found["percentile_95"] == pytest.approx(0.919)
    assert [its["beats"] for its in found["found"].values()] == [21, 5]
    assert chance.verdict(found).startswith(
        "The search does not beat chance: the found cells' mean is 91.75%, "
    )
    assert "1 of 2 are above it" in chance.verdict(found)
    better = chance.summary(rows(random | {"found 0": 0.93, "found 1": 0.92}))
    assert chance.verdict(better).startswith("The search beats chance: ")
    twice = rows({"random 0": 0.5, "random 1": 0.5, "found 0": 0.4}) + rows({"found 0": 0.8})
    assert chance.summary(twice)["found"]["found 0"]["correct"] == pytest.approx(0.6), "the mean of weights"


@pytest.mark.slow
def test_one_command_searches_retrains_and_compares_and_goes_on_where_it_was_killed(tmp_path):
    pytest.importorskip("sklearn", reason="an extra")
    least = "C=2 batch=500 retrain_batch=1000 retrain_C=2"
    search = "--preset tiny --epochs 1 --retrain-epochs 1 " + " ".join(
        f"--set {one}" for one in least.split()
    )
    short = "retrain_C=2 retrain_layers=1 pad=1 flip=false cutout=0 retrain_autocast=false retrain_batch=1000"
    words = ["--data", "digits", "--seeds", 2, "--genotypes", 2, "--epochs", 1, "--at-once", 2]
    words += ["--device", "cpu", "-o", tmp_path, "--search", search, "--set", *short.split()]
    command = [sys.executable, str(SCRIPT), *map(str, words)]
    how = {"text": True, "env": os.environ | {"OMP_NUM_THREADS": "1"}, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **how) as running:
        seen = list(itertools.takewhile(lambda line: not line.startswith("{"), running.stdout))
        running.kill()
    assert any("seed-1: retraining 1/1" in line for line in seen)
    done = subprocess.run(command, **how, check=True).stdout
    assert "seed-1" not in done, "no search is repeated"
    report = json.loads((tmp_path / "chance.json").read_text())
    names = [(row["name"], row["seed"]) for row in report["rows"]]
    wanted = itertools.product(("found 0", "found 1", "random 0", "random 1"), (0, 1))
    assert sorted(names) == sorted(wanted)
    assert done.count('{"name"') < len(names), "what had ended is read"
    assert done.splitlines()[-1] == chance.verdict(report)
    assert len(report["searches"]) == 2
    assert chance.verdict(report) in html.unescape((tmp_path / "chance.html").read_text(encoding="utf-8"))
