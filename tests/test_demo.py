"""The main job, run as a user runs it: in a process of its own, its output in a pipe."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import nxcore
from nxcore.bench import demo
from nxcore.bench.demo import Cell, Report, Row
from nxcore.bench.example import Step, compared, network
from nxcore.cli import scoreboard
from nxcore.measure.ceilings import Ceilings
from nxcore.offline.status import Status
from nxcore.offline.survey import Served
from nxcore.registry.discovery import discover
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import Problem
from tests.null import fakes
from tests.null.fakes import SPECS

# The suite's own; a user has not set them.
TOOLKITS = ("TRITON_INTERPRET", "NUMBA_ENABLE_CUDASIM", "NXCORE_CUDA_EMULATOR")

# Beside other tests, threads that wait for one another take most of the time.
ALONE = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


@pytest.mark.slow
def test_the_demonstration(tmp_path: Path) -> None:
    """Run once: the suite's processes would each run it for a test of their own."""
    text, report = _run(tmp_path / "demo.json")
    _every_backend_is_verified_or_says_why_not(report)
    _two_tables_and_seven_lines(text)
    _what_waits_to_be_asked_is_named(text, report)
    _the_choice_is_one_that_was_verified_and_timed(report)
    _the_edge_agrees_with_float64(report)
    _the_accelerated_step_computes_the_same(report)


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
    environment = {k: v for k, v in os.environ.items() if k not in TOOLKITS} | ALONE
    command = [sys.executable, "-m", "nxcore", "demo", "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "demo 7/7" in done.stderr, "a pipe gets a line a step"
    assert done.stdout.splitlines()[-1].startswith("Next: nxcore search"), "it ends with what to try"
    return done.stdout, json.loads(Path(target).read_text(encoding="utf-8"))


def _every_backend_is_verified_or_says_why_not(report: dict[str, Any]) -> None:
    assert len(report["cells"]) == 5
    assert any(row["label"] == "numba-cuda" for cell in report["cells"] for row in cell["rows"])
    for cell in report["cells"]:
        rows = {row["label"]: row for row in cell["rows"]}
        assert {"torch", "numba", "triton"} <= rows.keys(), "none is silently missing"
        for row in rows.values():
            assert row["verdict"] in ("verified", "not run"), row
            assert row["verdict"] == "verified" or row["detail"], "what didn't run says why"
        if not torch.cuda.is_available():
            away = {rows[label]["detail"] for label in ("numba-cuda", "triton") if label in rows}
            assert away == {"torch sees no CUDA device"}


def _what_waits_to_be_asked_is_named(text: str, report: dict[str, Any]) -> None:
    waiting = {name for name, backend in discover().backends.items() if backend.on_request}
    assert {"inductor"} <= report["on_request"].keys() == waiting
    plain = " ".join(text.split())
    for name, reason in report["on_request"].items():
        details = [r["detail"] for cell in report["cells"] for r in cell["rows"] if r["label"] == name]
        assert set(details) == {"only on request"}
        assert reason
    assert f"only on request, by backend=: {', '.join(report['on_request'])} (why: nxcore backends)" in plain


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


def _the_accelerated_step_computes_the_same(report: dict[str, Any]) -> None:
    step = report["step"]
    assert 0 < step["accelerated_error"] < 3 * step["plain_error"], "as near to float64 as torch's own"
    low, high = step["ratio"][1:]
    assert 0 < low <= step["ratio"][0] <= high
    ops = {row["problem"]["op"] for row in step["status"]["rows"]}
    assert {"depthwise_conv2d", "depthwise_conv2d_backward", "global_avg_pool2d"} <= ops


def _two_tables_and_seven_lines(text: str) -> None:
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) <= 50
    assert text.count("of roofline") == 1
    starts = ("model:", "kernels:", "weighted sum", "expression relu(x) * y + z, 1,048,576 elements: ")
    starts += ("verified:", "can't run here:", "only on request")
    assert [sum(line.startswith(start) for line in text.splitlines()) for start in starts] == [1] * 7


def _report() -> Report:
    rows = (
        Row("torch", "verified", "", 1e-8, 10.0, (1.0, 1.0, 1.0), 0.5),
        Row("fast", "verified", "", 1e-8, 5.0, (2.0, 1.9, 2.1), 1.02),
        Row("away", "not run", "no GPU"),
        Row("slow", "not run", "only on request"),
    )
    titles = (
        "the model's layer",
        "softmax_sum forward, 8 x 4",
        "softmax_sum backward, 8 x 4",
        "expression x + 1, 7 elements",
        "add, 7 elements",
    )
    cells = tuple(Cell(title, rows, "fast", "it is faster", 5.0) for title in titles)
    head = {
        "device": {"name": "One", "units": 2},
        "versions": {"torch": "2"},
        "images": "64 digits",
        "operations": ["none", "skip"],
        "unsure": False,
    }
    edge = {"output_error": 1e-8, "logits_grad_error": 1e-8, "input_grad_error": 1e-8}
    problem = Problem.of(SPECS["add"], (torch.zeros(3), torch.zeros(3), 1, None))
    served = Served(problem, 2, "kernel", "fast", "it is faster", 5.0, 10.0, 5.0)
    step = Step(20.0, 10.0, (2.0, 1.9, 2.1), 1e-7, 1e-7, Status((served,), None, "nothing"))
    return Report(head, cells, {"gone": "no toolkit"}, {"slow": "it compiles"}, edge, step)


def test_a_layer_and_the_step_are_shown_and_the_rest_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    scoreboard.demo(_report())
    short = capsys.readouterr().out
    assert "the model's layer" in short
    assert "add, 7 elements" not in short
    plain = " ".join(short.split())
    assert "model: 20.0 ms a step, accelerated 10.0 ms: 2.00x [1.90, 2.10]" in plain
    assert "fast 1 of the 1 problems of a step; torch runs the rest" in plain
    assert "a DARTS edge: forward fast 2.00x, backward fast 2.00x" in plain
    assert "can't run here: away: no GPU; gone: no toolkit" in plain
    assert "only on request, by backend=: slow (why: nxcore backends)" in plain
    assert plain.count("no GPU") == 1
    scoreboard.demo(_report(), everything=True)
    rest = capsys.readouterr().out
    assert all(cell.title in rest for cell in _report().cells)
    assert "may exceed 100%" in " ".join(rest.split())
    assert "expression x + 1, 7 elements: fast 2.00x; made by fast" in plain
    assert rest.count("no GPU") == 6, "a row a problem, and the summary"


def test_a_wrong_kernel_is_named_in_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    report = _report()
    cell = replace(report.cells[0], rows=(*report.cells[0].rows, Row("liar", "wrong", "off by one")))
    report = replace(report, cells=(cell, *report.cells[1:]))
    assert report.wrong
    scoreboard.demo(report)
    assert "verified: liar: wrong;" in capsys.readouterr().out


def test_the_model_learns_the_digits_alike_plain_and_accelerated() -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(8, 1, 32, 32), torch.arange(8)
    with nxcore.policy("frozen"):
        step = compared(network(), images, labels)
    assert step.accelerated_error == pytest.approx(step.plain_error, abs=1e-5)
    assert step.ratio[1] <= step.ratio[0] <= step.ratio[2]
    assert {row.problem.op for row in step.status.rows} >= {"depthwise_conv2d", "global_avg_pool2d"}
