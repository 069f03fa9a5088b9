"""The main job, run as a user runs it: in a process of its own, its output in a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

TOOLKITS = ("TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM")  # the suite's own; a user has not set them


pytestmark = pytest.mark.xdist_group("demo")  # one worker runs it once for all of them


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Return what the demo printed and the JSON that it wrote."""
    target = tmp_path_factory.mktemp("demo") / "demo.json"
    environment = {k: v for k, v in os.environ.items() if k not in TOOLKITS}
    command = [sys.executable, "-m", "nxcore", "demo", "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "demo 10/10" in done.stderr, "a pipe gets a line a step"
    return done.stdout, json.loads(Path(target).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_every_backend_is_verified_or_says_why_not(demo: tuple[str, dict[str, Any]]) -> None:
    _, report = demo
    assert len(report["cells"]) == 8
    for cell in report["cells"]:
        rows = {row["label"]: row for row in cell["rows"]}
        assert {"torch", "numba", "numba-cuda", "triton"} <= rows.keys(), "none is silently missing"
        for row in rows.values():
            assert row["verdict"] in ("verified", "not run"), row
            assert row["verdict"] == "verified" or row["detail"], "what didn't run says why"
        if not torch.cuda.is_available():
            assert rows["numba-cuda"]["detail"] == "torch sees no CUDA device"
            assert rows["triton"]["detail"] == "in its interpreter, so not timed"
            assert rows["triton"]["median_us"] is None
            assert rows["triton"]["error"] < 1e-6


@pytest.mark.slow
def test_the_choice_is_one_that_was_verified_and_timed(demo: tuple[str, dict[str, Any]]) -> None:
    _, report = demo
    for cell in report["cells"]:
        chosen = next(row for row in cell["rows"] if row["label"] == cell["chosen"])
        assert chosen["verdict"] == "verified"
        if not cell["reason"].startswith("not measured"):  # others at work on the device can spoil a race
            assert chosen["median_us"] > 0
        assert cell["reason"]


@pytest.mark.slow
def test_the_edge_agrees_with_float64(demo: tuple[str, dict[str, Any]]) -> None:
    _, report = demo
    assert len(report["head"]["operations"]) == 8
    for name in ("output_error", "logits_grad_error", "input_grad_error"):
        assert 0 < report["edge"][name] < 1e-5


@pytest.mark.slow
def test_the_table_is_plain_and_fits_100_columns(demo: tuple[str, dict[str, Any]]) -> None:
    text, report = demo
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100
    for cell in report["cells"]:
        assert cell["title"] in text
