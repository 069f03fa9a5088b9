"""``benchmarks/search_training.py``: a patched network trains as the plain one does."""

import json

import pytest

import nxcore
from benchmarks import search_training


@pytest.mark.slow
def test_two_steps_of_training_give_the_same_loss(tmp_path, capsys):
    file = tmp_path / "training.json"
    with nxcore.policy("estimate"):
        sizes = ["--channels", "2", "--batch", "2", "--layers", "3", "--warm", "0"]
        search_training.main([*sizes, "--output", str(file)])
    found = json.loads(file.read_text(encoding="utf-8"))["trained"]
    assert list(found) == ["SGD", "Adam"]
    for each in found.values():
        assert len(each["float64"]["losses"]) == 3
        assert len(set(each["float64"]["losses"])) == 3, "it trains"
        for name in ("patched", "SearchNetwork"):
            assert each[name]["off"] == pytest.approx(0.0, abs=1e-4)
            assert each[name]["statistics"] < 1e-3
    assert "Adam patched: losses" in capsys.readouterr().out
