"""``benchmarks/kernel.py``: an operator's kernels beside torch's idioms, its tiles, and single calls."""

import json
from pathlib import Path

import pytest

from benchmarks import kernel
from nxcore.errors import InvalidInputError

ADD = ["add", "--sample", "small", "--backend", "numba", "--device", "cpu"]


def test_the_kernels_of_an_operator_are_raced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.json"
    kernel.main([*ADD, "--fast", "--json", str(record)])
    said = capsys.readouterr().out.splitlines()
    rows = json.loads(record.read_text(encoding="utf-8"))["rows"]
    assert said[0] == "add small float32"
    assert [line.partition(",")[0].strip() for line in said[1:]] == [row["label"] for row in rows]
    timed = {row["label"]: row["device_us"] for row in rows if row.get("device_us")}
    assert {"torch", "numba"} <= set(timed)
    assert all(f"{us:.1f} us" in "\n".join(said) for us in timed.values())


def test_a_profiler_sees_each_kernel_called(capsys: pytest.CaptureFixture[str]) -> None:
    kernel.main([*ADD, "--ncu"])
    assert "  numba: called" in capsys.readouterr().out.splitlines()


def test_gradients_are_those_of_the_backward_operator(capsys: pytest.CaptureFixture[str]) -> None:
    kernel.main(["add", "--gradients", "--sweep", "--device", "cpu"])
    cells = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert cells
    assert all(cell.startswith("add_backward ") for cell in cells)
    with pytest.raises(InvalidInputError, match="has no backward operator"):
        kernel.main(["add_backward", "--gradients", "--device", "cpu"])
