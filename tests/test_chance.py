"""``benchmarks/chance.py``: where found cells are among random ones, and a run of the least."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import chance
from nxcore import nas

SCRIPT = Path(chance.__file__)


def rows(values):
    return [{"name": name, "seed": 0, "correct": value} for name, value in values.items()]


def test_a_found_cell_is_placed_among_random_ones():
    random = {f"random {i}": 0.90 + i / 1000 for i in range(21)}
    found = chance.summary(rows(random | {"best": 0.93, "usual": 0.905}), ["best", "usual"])
    assert found["mean"] == pytest.approx(0.910)
    assert found["percentile_95"] == pytest.approx(0.919)
    assert found["found"]["best"]["beats"] == 21
    assert found["found"]["usual"]["beats"] == 5
    twice = rows({"random 0": 0.5, "random 1": 0.5, "it": 0.4}) + rows({"it": 0.8})
    assert chance.summary(twice, ["it"])["found"]["it"]["correct"] == pytest.approx(0.6), "the mean of seeds"


@pytest.mark.slow
def test_two_processes_train_all_cells_alike(tmp_path):
    pytest.importorskip("sklearn", reason="an extra")
    preset = nas.PRESETS["darts"]
    ((_, genotype),) = chance.entrants(preset, [], 1)
    file, output = tmp_path / "result.json", tmp_path / "chance.json"
    file.write_text(json.dumps({"genotype": genotype._asdict()}))
    least = ("retrain_C=2", "retrain_layers=1", "pad=1", "flip=false", "cutout=0", "retrain_autocast=false")
    words = ["--data", "digits", "--found", file, "--genotypes", 2, "--epochs", 1, "--processes", 2]
    words += ["--device", "cpu", "--output", output, "--set", *least, "retrain_batch=1000"]
    words = [*map(str, words)]
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False, env=alone
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text())
    assert {row["name"] for row in report["rows"]} == {str(file), "random 0", "random 1"}
    by_name = {row["name"]: row["correct"] for row in report["rows"]}
    assert by_name[str(file)] == by_name["random 0"], "the same cell"
    assert "random cells: mean" in done.stdout
