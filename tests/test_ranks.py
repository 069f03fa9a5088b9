"""``benchmarks/ranks.py``: the passes of a search on this device, and on ranks with as many images each."""

import json
import statistics

import pytest

import nxcore
from benchmarks import ranks


def test_a_record_counts_the_second_half_of_the_epochs(tmp_path, capsys):
    """A rank alone has all images of a step."""
    file = tmp_path / "one.json"
    sizes = ["--preset", "tiny", "--images", "2", "--side", "8", "--passes", "2", "--epochs", "4"]
    with nxcore.policy("estimate"):
        ranks.main([*sizes, "--output", str(file)])
    record = json.loads(file.read_text(encoding="utf-8"))
    assert (record["ranks"], record["images_of_a_rank"], len(record["pass_ms"])) == (1, 2, 4)
    assert record["pass_ms"][0] == pytest.approx(record["first_s"] / 2 * 1e3)
    assert record["settled_ms"] == statistics.median(record["pass_ms"][2:])
    assert record["images_per_s"] == pytest.approx(2 / record["settled_ms"] * 1e3)
    assert f"{record['settled_ms']:.2f} settled" in capsys.readouterr().out
