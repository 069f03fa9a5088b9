"""``benchmarks/retrain.py``: which genotype is trained, over several processes; and the parts of a step."""

import json

import pytest

import nxcore
from benchmarks import retrain
from nxcore.nas.genotype import Genotype
from tests.nas.test_trainer import images

SKIP, CONV = ("skip_connect", 0), ("sep_conv_3x3", 1)


@pytest.fixture
def small(monkeypatch):
    """Images and a network that take no time."""
    monkeypatch.setattr(retrain.data, "load", lambda *args, **how: images())
    own = {"retrain_layers": 1, "retrain_batch": 8, "cutout": 2}
    monkeypatch.setattr(retrain, "SMALLER", retrain.SMALLER | own)
    monkeypatch.setattr(retrain, "WARM", 1)
    monkeypatch.setattr(retrain, "STEPS", 1)
    with nxcore.policy("estimate"):
        yield


def given(*arguments):
    return retrain.options().parse_args(["folder", "--root", "none.npz", "--channels", "2", *arguments])


def run(monkeypatch, folder, *arguments):
    monkeypatch.setattr(
        "sys.argv", ["retrain", str(folder), "--root", "none.npz", "--channels", "2", *arguments]
    )
    assert retrain.main() == 0


def test_a_genotype_is_that_of_an_epoch_or_before_too_many_skips(tmp_path):
    found = [Genotype((gene, CONV), (2,), (CONV, CONV), (2,)) for gene in (CONV, SKIP, SKIP)]
    found[2] = Genotype((SKIP, SKIP), (2,), (CONV, CONV), (2,))
    file, one = tmp_path / "metrics.jsonl", tmp_path / "result.json"
    rows = [{"epoch": i, "genotype": g._asdict()} for i, g in enumerate(found, 1)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    one.write_text(json.dumps(rows[2]), encoding="utf-8")
    named = ["--genotype", str(file)]
    assert retrain.genotype(given(*named, "--epoch", "2")) == found[1]
    assert [retrain.genotype(given(*named, "--skips", n)) for n in "012"] == found
    assert retrain.genotype(given("--genotype", str(one))) == found[2]
    drawn = [retrain.genotype(given("--seed", n)) for n in "001"]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.slow
def test_a_training_goes_on_in_another_process(small, tmp_path, monkeypatch, capsys):
    run(monkeypatch, tmp_path, "--epochs", "3", "--every", "2", "--stop", "0")
    run(monkeypatch, tmp_path, "--epochs", "9")
    record = json.loads((tmp_path / "retrain.json").read_text(encoding="utf-8"))
    assert [row["epoch"] for row in record["epochs"]] == [1, 2, 3], "by the settings of its own"
    assert record["settings"]["budget_s"] is None
    assert (record["settings"]["held_out_every"], record["held_out_images"]) == (2, 6)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("random    2/3")


@pytest.mark.slow
def test_parts_of_a_step_are_timed_by_channels(small, tmp_path, monkeypatch, capsys):
    run(monkeypatch, tmp_path, "--parts", "2", "4:bfloat16")
    rows = json.loads((tmp_path / "parts.json").read_text(encoding="utf-8"))
    kinds = [(row["settings"]["retrain_C"], row["settings"]["retrain_autocast"]) for row in rows]
    assert kinds == [(2, False), (4, True)]
    for row in rows:
        assert list(row["parts"]) == ["feed", "augment", "pass", "update", "tally"]
        assert row["epoch_s"] > 0
    assert "C 4, autocast True" in capsys.readouterr().out
