"""A process of the study: its lines, in this process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from nxcore.bench.study import blocks, worker
from nxcore.bench.study.entrants import ENTRANTS, Bound, Entrant
from nxcore.bench.study.shapes import Shape
from nxcore.spec.kernel import YES, no

CPU = torch.device("cpu")
QUICK = blocks.Effort(blocks=6, block_s=1e-4)
SHAPE = Shape(32, 5, 1)
IM2COL, CONV = (e for e in ENTRANTS if e.label in ("im2col", "torch-conv2d"))


def invented(label: str, change, **more) -> Entrant:
    """Return an entrant whose result is torch's, changed."""

    def bind(x, weight, padding):
        return Bound(lambda: change(torch.nn.functional.conv2d(x, weight, padding=padding)))

    return replace(CONV, label=label, bind=bind, **more)


def raced(*entrants: Entrant) -> dict:
    (line,) = worker.race(CPU, [IM2COL, *entrants], [SHAPE], QUICK, time.time() + 60)
    return line["cell"]


def test_a_cell_has_times_error_memory_and_the_noise_of_the_baseline():
    cell = raced(CONV)
    assert cell["shape"] == [32, 5, 1]
    assert (cell["name"], cell["same"]) == ("32 x 32, filter 5, padding 1", False)
    assert cell["margin"] >= max(0.02, 2 * cell["noise"] - 1e-3)
    base, conv = cell["rows"]
    assert base["ratio"] == [1.0, 1.0, 1.0]
    assert conv["ratio"][1] <= conv["ratio"][0] <= conv["ratio"][2]
    for row in cell["rows"]:
        assert row["host_us"] <= row["total_us"] == row["device_us"]
        assert len(row["blocks_us"]) == QUICK.blocks
        assert row["precision"] == "ieee32"
        assert row["error"] < 1e-6
        assert row["memory_bytes"] > 0
    json.dumps(cell, allow_nan=False)


def test_a_wrong_result_has_no_time():
    """An error of 1e-1 is no success, one of TF32 none of a strict entrant."""
    tf32 = invented("rounded", lambda y: y * 1.0005)
    rough = invented("rough", lambda y: y * 1.1)
    empty = invented("empty", lambda y: y[:, :1])
    rows = {
        row["label"]: row
        for row in raced(tf32, rough, empty, replace(tf32, label="tf32", promised="tf32"))["rows"]
    }
    assert rows["rounded"]["reason"] == "wrong: its error is 5.0e-04, and ieee32 was promised"
    assert rows["rough"]["precision"] == "half"
    assert rows["empty"]["error"] is None
    assert all(rows[k]["wrong"] and "total_us" not in rows[k] for k in ("rounded", "rough", "empty"))
    assert rows["tf32"]["precision"] == "tf32"
    assert "total_us" in rows["tf32"]


def test_one_that_raises_leaves_the_others():
    def fail(_):
        raise ValueError("no such thing\nmore")

    rows = {row["label"]: row for row in raced(invented("broken", fail))["rows"]}
    assert rows["broken"]["reason"].startswith("raised ValueError: no such thing")
    assert "total_us" in rows["im2col"]


def test_what_cannot_be_measured_beside_the_time_says_why(monkeypatch):
    def unseen(*_):
        raise RuntimeError("no profiler")

    monkeypatch.setattr(blocks, "memory", unseen)
    row = raced()["rows"][0]
    assert row["memory_bytes"] is None
    assert row["unseen"]["memory_bytes"].startswith("RuntimeError: no profiler")
    assert row["total_us"] > 0


def test_an_absent_entrant_says_why_and_how_to_get_it():
    away = replace(CONV, label="away", able=lambda _: no("jax is not installed", hint="pip install jax"))
    lines = list(worker.race(CPU, [IM2COL, away], [], QUICK, time.time() + 60))
    assert lines == [{"label": "away", "absent": "jax is not installed; pip install jax"}]
    assert list(worker.first_calls(CPU, [away], [SHAPE], time.time())) == lines


def test_no_shape_begins_after_the_end():
    assert list(worker.race(CPU, [IM2COL], [SHAPE], QUICK, time.time() - 1)) == []


def test_first_calls_come_after_the_toolkits_start():
    bindings = []

    def bind(x, weight, padding):
        bindings.append(tuple(x.shape))
        return Bound(lambda: time.sleep(2e-3))

    two = [replace(CONV, label=name, able=lambda _: YES, bind=bind) for name in ("one", "two")]
    lines = list(worker.first_calls(CPU, two, [SHAPE], time.time() - 5))
    start, *firsts = lines
    assert start["toolkit"] == "torch"
    assert 5 < start["start_s"] < 15
    assert [(line["label"], line["shape"]) for line in firsts] == [("one", [32, 5, 1]), ("two", [32, 5, 1])]
    assert all(line["first_s"] >= 2e-3 for line in firsts)
    assert bindings == [(2, 4, 8, 8), (2, 4, 32, 32)] * 2


def test_a_first_call_that_raises_is_said():
    def fail(_):
        raise ValueError("no compiler")

    (line,) = worker.first_calls(CPU, [invented("broken", fail)], [SHAPE], time.time())
    assert line["absent"].startswith("raised ValueError: no compiler")


@pytest.mark.slow
def test_the_process_writes_lines_alone():
    job = {
        "what": "first",
        "device": "cpu",
        "entrants": ["im2col"],
        "shapes": [[32, 3, 1]],
        "began": time.time(),
    }
    done = subprocess.run(
        [sys.executable, "-m", "nxcore.bench.study.worker", json.dumps(job)],
        capture_output=True,
        check=True,
        timeout=300,
        text=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [set(line) for line in lines] == [{"toolkit", "start_s"}, {"label", "shape", "first_s"}]


@pytest.mark.gpu
def test_on_a_gpu_all_that_run_are_right_and_tf32_is_told_apart():
    which = [e.label for e in ENTRANTS if e.toolkit == "torch"]
    job = {
        "what": "race",
        "device": "cuda",
        "entrants": which,
        "shapes": [[64, 5, 2]],
        "effort": [3, 1e-3],
        "until": time.time() + 60,
    }
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    try:
        (line,) = worker.lines(job)
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before
    rows = {row["label"]: row for row in line["cell"]["rows"]}
    assert set(rows) == set(which)
    assert all(row["device_us"] > 0 for row in rows.values())
    assert rows["torch-conv2d"]["precision"] == "ieee32"
