"""A model's steps are compared with plain ones, and modules that don't pay are given back."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import nxcore
from nxcore.nn import exchange, marks, patience, served, steps, trial, watching
from nxcore.nn.exchange import AWAKE, RESTING, kind
from nxcore.nn.groups import GIVEN_BACK
from nxcore.nn.marks import SHOWN
from nxcore.nn.trial import LOOKS
from nxcore.session import Session
from nxcore.settings import Settings
from tests.nn.stepping import Clock, Make, X, given_back, light, make, over, session, settle, ticks, train
from tests.nn.test_served import rests, torchs
from tests.null import fakes

__all__ = ["light", "make", "session", "torchs"]  # fixtures


def test_what_pays_is_kept(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    model = make(BatchNorm2d=(0.01, 0.05))
    with caplog.at_level(logging.INFO, "nxcore"):
        assert settle(model).startswith("pays: 3.00x [3.00, 3.00] the speed of plain steps, 3 blocks")
    assert [r.message for r in caplog.records if r.name == "nxcore.nn.steps"] == [
        f"steps: Net: {over(model)._modes[True, False].state}"
    ]
    assert not given_back(model)
    plain = model.plain
    train(model, 500)
    assert model.plain == plain, "nothing is asked again"


def test_blocks_cost_at_most_a_hundredth_of_the_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nxcore.nn.trial.CLEARLY", 99)
    model = make(BatchNorm2d=(0.01, 0.09))
    settle(model)
    watch, clock = over(model), model.clock[0]
    assert watch._spent == pytest.approx(model.plain * ticks(0.08), rel=0.01)
    # The cost of the first block isn't known before it.
    assert watch._spent <= steps.SHARE * (clock.now - watch._patience.began) + 3 * 0.08
    assert model.plain == 3 * LOOKS[0]


def test_the_first_block_waits_for_what_plain_steps_cost_without_replays(make: Make) -> None:
    def opened(saved_ms: float) -> float:
        model = make(BatchNorm2d=(0.01, 0.01))
        part = nxcore.nn.Part(lambda module, x: module(x))
        part._captures["signature"] = [SimpleNamespace(saved_ms=saved_ms)]
        vars(model)["part"] = part
        while not model.plain:
            train(model, 1)
        return model.clock[0].now

    assert opened(0.0) < 10
    assert opened(300.0) == pytest.approx(3 * 0.3 / steps.SHARE, rel=0.1)


def test_what_does_not_pay_is_given_back(make: Make, session: Session) -> None:
    model = make(BatchNorm2d=(0.012, 0.01), MaxPool2d=(0.012, 0.01), AvgPool2d=(0.012, 0.01))
    assert settle(model).startswith("given back")
    assert given_back(model) == {"BatchNorm2d", "MaxPool2d", "AvgPool2d"}
    assert nn.BatchNorm2d.forward is type(model.norm).forward
    began = model.clock[0].now
    train(model, 100)
    assert model.clock[0].now - began == pytest.approx(100 * 0.04, rel=0.01)


def test_a_group_that_pays_is_taken_back(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.01), MaxPool2d=(0.01, 0.02), AvgPool2d=(0.01, 0.01))
    settle(model)
    assert given_back(model) == {"BatchNorm2d", "AvgPool2d"}
    assert type(model.pool) in RESTING


def test_a_loss_of_two_percent_is_found(make: Make) -> None:
    model = make(BatchNorm2d=(0.0012, 0.001))
    settle(model)
    assert given_back(model) == {"BatchNorm2d", "MaxPool2d", "AvgPool2d"}


def test_evaluation_has_a_verdict_of_its_own(make: Make) -> None:
    model = make(MaxPool2d=(0.05, 0.01))
    settle(model)
    assert "MaxPool2d" in given_back(model)
    model.eval()
    assert type(model.pool) in RESTING
    model.cost["MaxPool2d"] = (0.01, 0.05)
    with torch.no_grad():
        for _ in range(5000):
            model(X)
    assert [line.partition(":")[0] for line in over(model).report] == ["training", "evaluation"]
    assert "evaluation: pays" in over(model).report[1]
    assert type(model.pool) in RESTING
    train(model.train(), 1)
    assert "MaxPool2d" in given_back(model)
    model.eval()
    model(X)
    assert not given_back(model)


def test_evaluation_between_steps_of_training_is_not_compared(make: Make) -> None:
    model = make(BatchNorm2d=(0.01, 0.02))
    for _ in range(400):
        train(model, 5)
        model.eval()
        with torch.no_grad():
            model.clock[0].now += 5.0
            model(X)
        model.train()
    assert not over(model)._modes[True, False].over
    assert not over(model)._modes[True, False].trial.ratios
    settle(model)
    assert not given_back(model)


def test_a_new_choice_asks_again(make: Make, session: Session) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    settle(model)
    assert given_back(model)
    model.cost["BatchNorm2d"] = (0.01, 0.05)
    train(model, 300)
    assert given_back(model)
    session.op("entropy")(torch.rand(3, 5))
    train(model, 1000)
    assert not given_back(model)
    assert "training: taken back" in over(model).report[0]


def test_choices_that_are_being_made_are_waited_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "learning", property(lambda self: True))
    model = make(BatchNorm2d=(0.05, 0.01))
    while model.clock[0].now < patience.EARLY_S - 1:
        train(model, 1)
    assert over(model).report == ["training: waits: choices are still being made"]
    assert model.plain == 0
    settle(model)
    assert given_back(model)
    assert over(model)._modes[True, False].again < float("inf")


def test_steps_that_differ_are_compared_with_alike_ones(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    sizes = [torch.randn(2, 4, n, n) for n in (4, 5, 6)]
    for i in range(5000):
        train(model, 1, sizes[i % 3])
    assert given_back(model)


def test_steps_of_ever_new_shapes_are_not_compared(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    for i in range(600):
        train(model, 1, torch.randn(1, 4, 3, 3 + i))
    assert over(model).report == ["training: not compared: no two steps are alike"]
    assert not given_back(model)


def test_modules_are_exchanged_only_after_a_backward_pass(make: Make) -> None:
    """A checkpoint would run another class again than the one that it saved tensors of."""
    model = make(BatchNorm2d=(0.01, 0.02))
    for _ in range(2000):
        outs, kinds = [], []
        for _ in range(2):
            outs.append(model(X))
            kinds.append(kind(model.pool))
        assert len(set(kinds)) == 1
        sum(outs).sum().backward()
    assert over(model)._modes[True, False].over


def test_steps_without_backward_passes_are_not_compared(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    for _ in range(2000):
        model(X)
    assert over(model).report == ["training: not compared: its steps share backward passes"]
    assert model.plain == 0


def test_a_shape_that_comes_back_wakes_what_rests(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    train(model, SHOWN)
    exchange.become(model.pool, RESTING[kind(model.pool)])
    train(model, 50)
    assert kind(model.pool) in AWAKE
    other = torch.randn(2, 4, 5, 5)
    train(model, SHOWN - 2, other)
    late = model(other)
    pending = model(other)  # a checkpoint may still run the call before again
    assert kind(model.pool) in AWAKE
    (late + pending).sum().backward()
    train(model, 1, other)
    assert kind(model.pool) in RESTING
    monkeypatch.setattr(marks, "SHAPES", 256)
    for n in range(512):
        model(torch.randn(1, 4, 3, 3 + n))
    assert len(over(model)._shapes.counts) <= 256


@pytest.mark.usefixtures("torchs")
def test_modules_come_to_rest_between_blocks_which_end_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "AFTER", 32)  # as where a layer's kernels served some of its calls
    model, clock = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)), Clock()
    nxcore.accelerate(model, watch=False)
    exchange.hold(model, steps.Steps(model, Session(Settings(), fakes.registry()), clock))
    for _ in range(SHOWN):
        model(X)
    clock.now += 60.0  # a first call may load libraries, so that blocks of later ones cost next to nothing
    in_blocks = 0
    while not all(rests(m) and m.reason != GIVEN_BACK for m in model):
        model(X)
        clock.now += ticks(0.001)
        in_blocks += rests(model[0])
        assert in_blocks < served.AFTER, "each block lets the count begin anew"
    assert in_blocks > 3, "no block came between"
    for _ in range(20):
        model(X)
    assert over(model)._modes[True, False].state == trial.TORCHS


def test_one_model_at_a_time_has_a_block(make: Make) -> None:
    """A step of one lasts until its next call, and so contains a step of the other."""
    first, second = make(BatchNorm2d=(0.01, 0.02)), make(BatchNorm2d=(0.02, 0.01))
    second.clock[0] = first.clock[0]
    exchange.release(second)
    exchange.hold(second, steps.Steps(second, watching.default(), first.clock[0]))
    for _ in range(3000):
        train(first, 1)
        train(second, 1)
        assert not (kind(first.pool) in AWAKE and over(second)._pair and over(second)._pair.phase != "before")
    assert not given_back(first)
    assert given_back(second) == {"BatchNorm2d", "MaxPool2d", "AvgPool2d"}
