"""What an accelerated model does, told from its calls and from a recording of them."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import nxcore
from nxcore.errors import InvalidInputError
from nxcore.interop import native
from nxcore.offline import survey
from nxcore.spec.tally import Tally
from tests.nn.conftest import serve_by
from tests.null import fakes
from tests.null.cli.commands import command


@pytest.fixture
def session(monkeypatch, as_default):
    """A session in which ``fake`` is ten times as fast as torch at depthwise convolutions."""
    clock = fakes.Clock()
    times = {"torch": 1000.0, "fake": 100.0}
    found = fakes.scripted(clock, monkeypatch, "depthwise_conv2d", times)
    as_default(found)
    serve_by(found, monkeypatch, names=("add", "avg_pool2d", "batch_norm", "depthwise_conv2d"))
    return found


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=4, bias=False),
        nn.BatchNorm2d(4),
        nn.Dropout(0.5),
        nn.Conv2d(4, 4, 3, groups=4, bias=False),
        nn.AvgPool2d(2),
    )


X = torch.randn(2, 4, 12, 12)


@pytest.mark.usefixtures("session")
def test_a_model_that_is_not_accelerated_is_told_to_be():
    found = nxcore.status(network())
    assert found.rows == ()
    assert not found.modules.replaced
    assert found.next == "nxcore.accelerate(model) lets nxcore's operators serve 4 of its modules"
    assert "modules: 0 replaced, 5 left" in str(found)
    one = replace(found, tally=Tally(compilations=1, races=2))
    assert "this process: 1 compilation, 2 races" in str(one)


@pytest.mark.usefixtures("session")
def test_a_step_tells_its_problems_kernels_and_what_they_save():
    model = network()
    nxcore.accelerate(model)
    with nxcore.policy("measure"), torch.no_grad():
        found = nxcore.status(model, X)
    served = [row for row in found.rows if row.state == "kernel"]
    assert [(row.problem.op, row.calls, row.chosen) for row in served] == [
        ("depthwise_conv2d", 1, "fake")
    ] * 2
    assert found.saved_ms == pytest.approx(2 * 0.9, rel=0.05)
    assert found.counts["kernel"] == 2
    text = str(found)
    assert (
        "modules: 4 replaced (2 served, 2 torch, 0 undecided), 1 left\n  left 1: no operator for Dropout"
        in text
    )
    assert "\n2 x Conv2d      fake" in text
    assert "problems: 2 served by a kernel; 2 served by torch" in text
    assert "saved: 1.8 ms a step" in text
    assert max(map(len, text.splitlines())) <= 80
    assert json.loads(json.dumps(found.to_dict()))["saved_ms"] == found.saved_ms
    assert {row.problem.op for row in nxcore.status(model).rows} == {row.problem.op for row in found.rows}


def test_the_bridge_to_a_gradient_is_taken_off_what_is_saved(session, monkeypatch):
    """Where forward and backward were not measured together."""
    model = network()[:1]
    nxcore.accelerate(model)
    monkeypatch.setattr(session.chooser.pairs, "of", lambda problem: None)
    with nxcore.policy("measure"):
        training, evaluation = nxcore.status(model, X), None
        with torch.no_grad():
            evaluation = nxcore.status(model, X)
    assert {row.problem.op for row in training.rows} == {"depthwise_conv2d", "depthwise_conv2d_backward"}
    bridge_us = 13 if native.of(nxcore.op("add")) is None else 2
    assert evaluation.saved_ms - training.saved_ms == pytest.approx(bridge_us * 1e-3, rel=0.3)


@pytest.mark.usefixtures("session")
def test_a_step_leaves_the_model_as_it_was():
    model = network()
    nxcore.accelerate(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(7)
    with nxcore.policy("frozen"):
        nxcore.status(model, X)
    after = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(after, torch.rand(3)), "random numbers are as before"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.usefixtures("session")
def test_what_calls_are_learning_is_told():
    model = network()
    nxcore.accelerate(model)
    with nxcore.policy("auto"):
        found = nxcore.status(model, X)
    assert found.counts["learning"] >= 1
    assert "in exploration" in str(found)
    assert " of 8 calls were met" in str(found)
    assert (
        found.next
        == "keep running: further calls decide; nxcore.accelerate(model, prepare=(input,)) measures now"
    )


def run(*words):
    return command("explain", *words).output


def test_explain_reads_a_trace(session, tmp_path):
    path = tmp_path / "met.jsonl"
    conv, x = session.op("depthwise_conv2d"), torch.randn(1, 2, 6, 6)
    w = torch.randn(2, 1, 3, 3)
    with nxcore.record(path), nxcore.policy("frozen"):
        for _ in range(4):
            conv(x, w)
        session.op("add")(x, x)
    text = run("--from-trace", str(path))
    assert "line 1: depthwise_conv2d 1x2x6x6" in text
    assert "problems: 2 not measured yet" in text
    assert f"next: nxcore tune --from-trace {path}" in text
    with nxcore.policy("measure"):
        conv(x, w)
    found = json.loads(run("--from-trace", str(path), "--steps", "2", "--json"))
    assert [(row["where"], row["state"], row["calls"]) for row in found["rows"]] == [
        ("line 1", "kernel", 2),
        ("line 2", "unknown", 1),
    ]
    assert found["saved_ms"] == pytest.approx(1.8, rel=0.05)
    one = json.loads(run("--from-trace", f"{path}:1", "--json"))
    assert one["decision"]["chosen"] == "fake"
    assert one["text"].startswith("depthwise_conv2d(")
    assert "runs it (measured)" in run("--from-trace", f"{path}:1")


@pytest.mark.usefixtures("session")
def test_a_line_that_is_not_there_is_refused(tmp_path):
    path = tmp_path / "met.jsonl"
    with nxcore.record(path):
        nxcore.op("add")(X, X)
    with pytest.raises(InvalidInputError, match="has lines 1 to 1, got 2"):
        run("--from-trace", f"{path}:2")
    with pytest.raises(InvalidInputError, match="give an operator, or --from-trace"):
        run()
    with pytest.raises(InvalidInputError, match="give an operator, or --from-trace"):
        run("add", "--from-trace", str(path))


def test_states_are_told_in_one_order():
    assert list(survey.STATES) == ["kernel", "torch", "learning", "unknown"]
