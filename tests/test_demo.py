"""The main job, run as a user runs it: in a process of its own, its output in a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nxcore import demo
from nxcore.discovery import discover
from nxcore.measure import Ceilings
from nxcore.session import Session
from nxcore.settings import Settings
from tests.null import fakes

# The suite's own; a user has not set them.
TOOLKITS = ("TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM", "NXCORE_CUDA_EMULATOR")


@pytest.mark.slow
def test_the_demonstration(tmp_path: Path) -> None:
    """Run once: the suite's processes would each run it for a test of their own."""
    text, report = _run(tmp_path / "demo.json")
    _every_backend_is_verified_or_says_why_not(report)
    _why_some_wait_to_be_asked_is_said_once(text, report)
    _the_choice_is_one_that_was_verified_and_timed(report)
    _the_edge_agrees_with_float64(report)
    _the_table_is_plain_and_fits_100_columns(text, report)


def test_the_demonstration_ends_with_a_search() -> None:
    root = Path(__file__).parents[1]
    told = subprocess.run(["make", "-n", "demo"], capture_output=True, text=True, cwd=root, check=True)
    *_, demo, search = (line for line in told.stdout.splitlines() if "/nxcore " in line)
    assert demo.endswith("nxcore demo")
    assert "nxcore search --data digits --preset tiny " in search


def test_a_roofline_that_torch_beats_is_unsure() -> None:
    timed = demo.Row("torch", "verified", "", 1e-8, 10.0, (1.0, 1.0, 1.0), 1.55)
    kernel = replace(timed, label="numba", share=1.02)
    cell = demo.Cell("add", (timed, kernel), "torch", "so it is", 15.5)
    assert cell.beaten == ["torch"], "3% are allowed for the noise of the ceilings themselves"


def test_ceilings_that_a_row_beats_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, quiet = (Ceilings(0.1, ((1, rate), (2, rate)), 1e15) for rate in (1e3, 1e15))
    monkeypatch.setattr(demo, "ceilings_now", lambda device: quiet)
    registry = fakes.registry(fakes.backend("fake", fakes.kernel("add")))
    problem = ("add", "add", (torch.ones(99), torch.ones(99), 1, None))
    best, cell = demo._sure(Session(Settings(policy="measure"), registry, fakes.QUICK), busy, *problem)
    assert (best.bandwidths, cell.beaten) == (quiet.bandwidths, [])


def _run(target: Path) -> tuple[str, dict[str, Any]]:
    """Return what the demo printed and the JSON that it wrote."""
    environment = {k: v for k, v in os.environ.items() if k not in TOOLKITS}
    command = [sys.executable, "-m", "nxcore", "demo", "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "demo 10/10" in done.stderr, "a pipe gets a line a step"
    assert done.stdout.splitlines()[-1].startswith("Next: nxcore search"), "it ends with what to try"
    return done.stdout, json.loads(Path(target).read_text(encoding="utf-8"))


def _every_backend_is_verified_or_says_why_not(report: dict[str, Any]) -> None:
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


def _why_some_wait_to_be_asked_is_said_once(text: str, report: dict[str, Any]) -> None:
    waiting = {name for name, backend in discover().backends.items() if backend.on_request}
    assert {"inductor"} <= report["on_request"].keys() == waiting
    plain = " ".join(text.split())
    for name, reason in report["on_request"].items():
        details = [r["detail"] for cell in report["cells"] for r in cell["rows"] if r["label"] == name]
        assert set(details) == {"only on request"}
        assert plain.count(reason) == 1
        assert f"not run backend {name}, only on request: {reason}; ask for it by backend={name!r}" in plain


def _the_choice_is_one_that_was_verified_and_timed(report: dict[str, Any]) -> None:
    for cell in report["cells"]:
        chosen = next(row for row in cell["rows"] if row["label"] == cell["chosen"])
        assert chosen["verdict"] == "verified"
        if not cell["reason"].startswith("not measured"):  # others at work on the device can spoil a race
            assert chosen["median_us"] > 0
        assert cell["reason"]


def _the_edge_agrees_with_float64(report: dict[str, Any]) -> None:
    assert len(report["head"]["operations"]) == 8
    for name in ("output_error", "logits_grad_error", "input_grad_error"):
        assert 0 < report["edge"][name] < 1e-5


def _the_table_is_plain_and_fits_100_columns(text: str, report: dict[str, Any]) -> None:
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100
    for cell in report["cells"]:
        assert cell["title"] in text
