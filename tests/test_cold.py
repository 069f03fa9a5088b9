"""``benchmarks/cold.py`` and ``benchmarks/stacks.py``: what they say of a process that begins cold."""

import functools
import gc
import json
import os
import statistics
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import cold
from benchmarks.stacks import EVERY_S, Stacks
from nxcore.graphs.capture import Capture
from nxcore.store import transfer
from tests.stand_ins import stand_in

cold_has = stand_in(cold)


def test_speed_is_full_after_the_last_eleven_slow_steps():
    steps = [(float(i), 1.0 if i in (0, 3, 40) else 0.1) for i in range(60)]
    assert cold.full_speed_s(steps, 0.1) == 40, "its own group is slow on average"
    steps = [(float(i), 0.12 if i == 40 else 0.1) for i in range(60)]
    assert cold.full_speed_s(steps, 0.1) == 0, "one step may be slow by chance"


def test_a_second_is_near_full_speed_if_its_steps_are_on_average():
    slow = [(2.0 + 0.12 * i, 0.12) for i in range(10)]
    fast = [(slow[-1][0] + 0.1 * i, 0.1) for i in range(1, 60)]
    assert cold.near_full_speed_s([(2.0, 2.0), *slow, *fast]) == slow[-1][0]
    fast[20] = (fast[20][0], 0.15)
    assert cold.near_full_speed_s(fast) == 0, "one step is longer, by half a step in a second"
    fast[-1] = (fast[-1][0] + 0.05, 0.15)
    assert cold.near_full_speed_s(fast) == 0, "nor is the last one a second"
    assert cold.near_full_speed_s([]) == 0


def test_a_second_s_median_is_that_of_most_of_its_steps():
    fast = [(0.1 * i, 0.3 if i in (20, 21, 22, 25) else 0.1) for i in range(1, 100)]
    assert cold.near_full_speed_s(fast) > 2, "the mean has every delay"
    assert cold.near_full_speed_s(fast, statistics.median, 5.0) == 0
    slow = [(at, 0.12 if at < 3 else 0.1) for at, _ in fast]
    assert cold.near_full_speed_s(slow, statistics.median, 5.0) == pytest.approx(2.9)


def test_steps_of_learning_are_compared_with_unpatched_ones():
    steps = [(9.0, 9.0), *((10.0 + i, 0.21) for i in range(20)), *((50.0 + i, 0.1) for i in range(20))]
    found = cold.relative(steps, [3.0, 0.2, 0.2])
    assert found == {
        "plain_ms": pytest.approx(200),
        "learning": pytest.approx(1.05),
        "learning_median": pytest.approx(1.05),
        "captured_s": 9.0,
        "until_captured": pytest.approx(9.0 / 0.2),
    }
    steps[4] = (14.0, 0.61)
    found = cold.relative(steps, [3.0, 0.2, 0.2])
    assert (found["captured_s"], found["until_captured"]) == (14.0, pytest.approx(14.0 / (5 * 0.2)))
    assert cold.relative(steps, []) == {}


def test_the_record_of_this_device_alone_is_hidden(cuda_answers, tmp_path):
    names = cold.recorded(transfer.SHIPPED)
    assert len(names) > 1
    cuda_answers(get_device_name=lambda: names[0])
    assert cold.recorded(cold.others(tmp_path / "others")) == names[1:]
    assert cold.recorded(tmp_path / "none") == []


def test_a_measured_problem_is_named_by_its_operator_and_its_first_shapes():
    x = {"dtype": "float32", "shape": [64, 16, 8, 8], "strides": [1024, 64, 8, 1]}
    assert cold.named({"op": "batch_norm", "x": x, "weight": None}) == "batch_norm(64x16x8x8)"
    key = {"op": "a sum", "weights": x, "xs": [x, x, x]}
    assert cold.named(key) == "a sum(64x16x8x8, 64x16x8x8, 64x16x8x8, ...)"


def test_without_a_device_nothing_is_measured_on_one(cuda_answers):
    cuda_answers(is_available=lambda: False)
    assert cold.measured() == []


@pytest.mark.parametrize("within", [True, False])
def test_lines_are_those_of_captures(within, monkeypatch):
    ends = threading.Event()

    def waits(*_, **__):
        ends.wait(30 * EVERY_S)
        raise LookupError

    monkeypatch.setattr("nxcore.graphs.capture.Inside", waits)
    call = (
        functools.partial(Capture, None, torch.nn.Identity(), [], SimpleNamespace(lock=None))
        if within
        else waits
    )
    with Stacks() as stacks, pytest.raises(LookupError):
        call()
    assert set(stacks.phases) <= ({"capture", "else"} if within else {"else"})
    assert sum(stacks.lines.values()) == stacks.phases["capture"]
    assert bool(stacks.lines) is within
    assert not within or next(iter(stacks.lines)).endswith(" wait")
    assert stacks.table()["lines"].keys() == stacks.lines.keys()
    assert any(name.endswith("capture.py __init__ > wait") for name in stacks.functions) is within


def test_what_was_measured_is_told_while_its_folder_exists(monkeypatch, cold_has, capsys):
    cold_has(
        run=lambda *_, **__: None, measured=lambda: [str(Path(os.environ["NXCORE_CACHE"]).parent.is_dir())]
    )
    monkeypatch.syspath_prepend(Path(cold.__file__).parent)
    for variable in ("POLICY", "CACHE", "CUDA_CACHE"):
        monkeypatch.setenv(f"NXCORE_{variable}", "")
    for variable in ("TRITON_CACHE_DIR", "CUPY_CACHE_DIR"):
        monkeypatch.setenv(variable, "")
    assert cold.main(["--device", "cpu"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["measured"] == ["True"]
    assert told.keys() >= {"imports_s", "collections_s"}


def test_collections_of_garbage_are_told():
    with cold.Collections() as collections:
        gc.collect()
    (_, generation, seconds), *_ = collections.found
    assert generation == 2
    assert collections.told()["collections_s"] >= seconds > 0
