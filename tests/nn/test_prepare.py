"""Prepared, a model's problems are compiled and measured before its first step; it stays as it was."""

import copy

import pytest
import torch
from torch import nn

import nxcore
from nxcore.choose import ahead
from nxcore.choose.process import Answer
from nxcore.choose.prune import MEASURING
from nxcore.nn.prepare import prepared, step
from nxcore.session import default
from tests.stand_ins import stand_in

ahead_has = stand_in(ahead)


class Answering:
    """Workers that answer at once, and note what they were asked for."""

    def __init__(self, why=""):
        self.most, self.asked, self.why = 4, [], why

    def ask(self, problem, kernel, answered, heat=0.0, sample=""):
        self.asked.append((problem.op, kernel))
        answered(Answer(self.why))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Dropout())


@pytest.fixture
def session(monkeypatch, decided):
    """The default session, which modules use; each test has shapes of its own."""
    found = default()
    monkeypatch.setattr(found.tuner, "workers", None)
    return found


@pytest.mark.slow
def test_its_problems_are_measured_and_nothing_of_it_has_changed(session, capsys):
    net, x = model(), torch.randn(2, 3, 10, 14)
    net(x).sum().backward()
    before, grads = copy.deepcopy(net.state_dict()), [p.grad.clone() for p in net.parameters()]
    state = torch.get_rng_state()
    swap = nxcore.accelerate(net, prepare=(x,))
    assert "MaxPool2d" in swap.replaced.values()
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    for parameter, grad in zip(net.parameters(), grads, strict=True):
        assert torch.equal(parameter.grad, grad)
    rules = {
        problem.op: choice.decision.rule
        for (problem, *_), choice in session.chooser.choices.items()
        if problem.tensors[0].shape[-1] in (14, 7)
    }
    assert set(rules.values()) <= {"measured", "reference"}, rules
    assert any(op.startswith("max_pool2d") for op in rules), rules
    decided = session.decided
    net(x).sum().backward()
    assert session.decided == decided, "a step meets nothing new"
    capsys.readouterr()


@pytest.mark.slow
def test_workers_compile_first_where_there_are_several(session, ahead_has):
    ahead_has(uncompiled=lambda tuner, problem: ["numba"])
    session.tuner.workers, told = Answering(), []
    net, x = model(), torch.randn(2, 3, 12, 18)
    nxcore.nn.accelerate(net)
    prepared(session, net, (x,), lambda *step: told.append(step))
    asked = {op for op, _ in session.tuner.workers.asked}
    assert {"batch_norm", "max_pool2d_with_offsets"} <= asked, asked
    assert told[-1][1:] == (len(told), len(told))


def test_how_many_problems_are_measured_is_counted_first(session, monkeypatch):
    counted = []
    expected = MEASURING.expected
    monkeypatch.setattr(
        MEASURING, "expected", lambda n, advance: (counted.append(n), expected(n, advance))[1]
    )
    net, x = nn.Sequential(nn.MaxPool2d(2), nn.MaxPool2d(2)), torch.randn(1, 2, 16, 22)
    nxcore.accelerate(net)
    prepared(session, net, (x,))
    before = MEASURING._count
    prepared(session, net, (x,))
    assert counted == [before, 0], "each is measured once"
    assert before > 0


def test_what_workers_cant_do_is_told(session, caplog, ahead_has):
    ahead_has(uncompiled=lambda tuner, problem: ["numba"])
    session.tuner.workers = Answering("no memory")
    net = model()
    nxcore.nn.accelerate(net)
    prepared(session, net, (torch.randn(2, 3, 6, 22),))
    assert "compile: numba of" in caplog.text
    assert "no memory" in caplog.text


def test_a_result_of_any_form_is_differentiated(session):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool = nn.MaxPool2d(2)

        def forward(self, x):
            return {"a": [self.pool(x)], "b": 1}

    net, x, decided = Both(), torch.randn(1, 2, 4, 26, requires_grad=True), session.decided
    nxcore.accelerate(net, prepare=(x,))
    assert x.grad is None
    assert session.decided > decided + 1, "forward and backward"


def test_no_hook_on_a_gradient_runs(session):
    net, x = model(), torch.randn(2, 3, 8, 22)
    stepped = []
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(stepped.append)
    prepared(session, net, (x,))
    assert stepped == [], "an optimizer may take its step in one"
    assert all(p.grad is None for p in net.parameters())


def test_only_the_devices_of_the_model_have_their_random_numbers_restored(session, monkeypatch, cuda_answers):
    cuda_answers(device_count=lambda: 2)
    monkeypatch.setattr(torch.random, "_fork_rng_warned_already", False)
    prepared(session, model(), (torch.randn(2, 3, 8, 26),))  # torch warns where none is named


def test_a_gradient_of_a_named_input_is_computed():
    shift = torch.randn(2, 3, requires_grad=True)
    seen = []
    shift.register_hook(seen.append)

    class Shifted(nn.Module):
        def forward(self, x, *, by):
            return x + by

    step(Shifted(), (torch.randn(2, 3),), {"by": shift})
    assert len(seen) == 1
    assert shift.grad is None


def test_a_backward_pass_that_is_still_to_come_sees_no_change():
    ours, x = model(), torch.randn(2, 3, 8, 8)
    out = ours(x)  # torch's own norm saves its statistics
    step(ours, (x,))
    out.sum().backward()
