"""Steps are as fast as plain ones after ten seconds, whatever is learnt. The clock is the test's."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import nxcore
from nxcore.choose.learn.budget import Pace
from nxcore.nn import groups, patience, steps
from nxcore.nn.blocks import TURNS, Pair
from nxcore.nn.marks import Wall
from nxcore.nn.patience import Patience
from nxcore.nn.trial import LOSS, Mode, Trial
from nxcore.session import Session
from tests.nn.stepping import Make, Net, light, make, over, session, train
from tests.nn.test_served import torchs

__all__ = ["light", "make", "session", "torchs"]  # fixtures

FIRST_S, WINDOW_S = 10.0, 5.0
"""The rule: after the first seconds, no window of so many seconds is slower than plain by more than 2%."""

STEP_S = 0.04


class Costs(dict[str, Any]):
    """What modules cost: a part of our steps is that of learning, which is 0 while it pauses."""

    def __init__(self, pace: Pace, ours: float, learning: float) -> None:
        super().__init__()
        self.pace, self.ours, self.learning = pace, ours, learning

    def get(self, name: str, _: Any = None) -> Any:  # type: ignore[override]  # for the one that asks
        if name != "BatchNorm2d":
            return 0.0, 0.0
        return self.ours + (self.learning if self.pace.affords else 0.0), STEP_S - 0.01


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget a block that another test's model didn't end."""
    monkeypatch.setattr(TURNS, "_of", None)


def given(model: Net) -> frozenset[str]:
    """Return the groups that are given back between blocks."""
    return over(model)._modes[True, False].given


@pytest.fixture
def learnt(make: Make, session: Session, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a model of a session that is learning all the time."""
    monkeypatch.setattr(Session, "learning", property(lambda self: True))

    def made(ours: float, learning: float) -> Net:
        model = make()
        session.chooser.learner.keep_to(Pace(clock=model.clock[0]))
        model.cost = Costs(session.chooser.learner.pace, ours, learning)
        return model

    return made


def slowest(model: Net, seconds: float) -> float:
    """Train for some seconds; return the time of the slowest window relative to plain steps."""
    ends: list[float] = []
    while model.clock[0].now < seconds:
        train(model, 1)
        ends.append(model.clock[0].now)
    rows = [
        (end - begin) / (STEP_S * (j - i))
        for i, begin in enumerate(ends)
        for j, end in enumerate(ends[i:], i)
        if begin >= FIRST_S and WINDOW_S <= end - begin < WINDOW_S + 2 * STEP_S
    ]
    return max(rows)


def test_learning_pauses_where_it_costs_more_than_two_percent(learnt: Any, session: Session) -> None:
    model = learnt(STEP_S - 0.01, 0.05 * STEP_S)
    assert slowest(model, 60) <= 1 + LOSS
    assert not given(model), "nothing but learning is slow"
    assert over(model)._patience._pause > 2 * patience.HELD_S, "each pause is twice as long"


def test_learning_goes_on_where_it_costs_little(learnt: Any, session: Session) -> None:
    model = learnt(STEP_S - 0.01, 0.01 * STEP_S)
    assert slowest(model, 40) <= 1 + LOSS
    assert over(model)._patience._pause == patience.HELD_S
    assert not given(model)


def test_what_is_slow_without_learning_is_given_back(learnt: Any, session: Session) -> None:
    model = learnt(1.04 * STEP_S - 0.01, 0.05 * STEP_S)
    assert slowest(model, 60) <= 1 + LOSS
    assert "BatchNorm2d" in given(model)


def test_long_steps_are_compared_early_too(learnt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block's cost isn't known before it; of steps this long it is taken to be a hundredth of 12."""
    monkeypatch.setattr(sys.modules[__name__], "STEP_S", 0.08)
    model = learnt(1.04 * 0.08 - 0.01, 0.0)
    assert slowest(model, 40) <= 1 + LOSS
    assert "BatchNorm2d" in given(model)


def test_what_becomes_fast_is_taken_back_though_learning_goes_on(learnt: Any) -> None:
    model = learnt(1.04 * STEP_S - 0.01, 0.0)
    slowest(model, 30)
    assert "BatchNorm2d" in given(model)
    model.cost.ours = 0.5 * STEP_S - 0.01
    began = model.clock[0].now
    while "BatchNorm2d" in given(model) and model.clock[0].now < began + 30:
        train(model, 1)
    assert "BatchNorm2d" not in given(model)


def test_plain_steps_of_a_fast_model_cost_a_hundredth(learnt: Any) -> None:
    model = learnt(0.2 * STEP_S - 0.01 + 0.01, 0.0)
    count = 0
    while model.clock[0].now < 120:
        train(model, 1)
        count += 1
    usual = 0.2 * STEP_S + 0.01
    assert model.plain > 3
    assert model.clock[0].now / count <= 1.015 * usual


def test_nothing_is_learnt_beside_plain_steps(learnt: Any, session: Session) -> None:
    model = learnt(STEP_S - 0.01, 0.0)
    held: list[float] = []
    session.chooser.learner.pace.hold = held.append  # type: ignore[method-assign]
    while not model.plain and model.clock[0].now < 60:
        train(model, 1)
    assert held == [pytest.approx(3 * STEP_S, rel=0.3)]


def test_a_cell_that_is_about_to_be_captured_is_waited_for(learnt: Any) -> None:
    model = learnt(1.5 * STEP_S, 0.0)
    part = nxcore.nn.Part(lambda module, x: module(x))
    part._met["signature"] = 1, 1
    vars(model)["part"] = part
    while model.clock[0].now < patience.PATIENCE_S - 1:
        train(model, 1)
    assert model.plain == 0


def test_a_part_where_nothing_is_captured_is_not_waited_for(learnt: Any, session: Session) -> None:
    """On a processor there are no graphs, which a part says at its twelfth call, learning or not."""
    model = learnt(1.5 * STEP_S, 0.0)
    part = nxcore.nn.Part(lambda module, x: 2 * x)
    vars(model)["part"] = part
    while model.clock[0].now < FIRST_S:
        part(model, torch.ones(2, requires_grad=True))
        train(model, 1)
    assert part.state == "runs: there are no graphs on 'cpu'"
    assert "BatchNorm2d" in given(model)


def test_modules_are_looked_at_rarely(learnt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network has thousands, and a replayed step takes as long as a look at all of them."""
    looks: list[int] = []
    for module, name in ((steps, "saved_s"), (groups, "capture_is_due")):
        look = getattr(module, name)
        monkeypatch.setattr(module, name, lambda model, look=look: looks.append(1) or look(model))
    monkeypatch.setattr(steps, "SHARE", 1e-6)
    model = learnt(0.2 * STEP_S, 0.0)
    slowest(model, 30)
    assert model.plain == 0
    assert len(looks) <= 3


def waiting(learning: bool) -> tuple[Patience, list[float], Any]:
    held: list[float] = []
    pace, survey = SimpleNamespace(hold=held.append), SimpleNamespace(open=0)
    chooser = SimpleNamespace(made=0, learner=SimpleNamespace(pace=pace), survey=survey)
    found: Any = SimpleNamespace(learning=learning, chooser=chooser)
    return Patience(found), held, found


def test_a_loss_within_a_pause_has_another_reason() -> None:
    found, held, _ = waiting(learning=True)
    trial = Trial(frozenset(), frozenset("a"), [0.9, 0.9, 0.9], margin=found.margin)
    assert found.paused(0.0, trial)
    assert not found.paused(patience.HELD_S - 1, trial)
    assert found.paused(patience.HELD_S, trial)
    assert held == [patience.HELD_S, 2 * patience.HELD_S]
    for now in range(1000, 9000, 1000):
        found.paused(float(now), trial)
    assert max(held) == patience.LONGEST_S


def test_one_slow_pair_is_chance() -> None:
    found, held, _ = waiting(learning=True)
    assert not found.paused(0.0, Trial(frozenset(), frozenset("a"), [1.0, 0.9, 1.0], margin=LOSS))
    assert not found.paused(0.0, Trial(frozenset(), frozenset("a"), [0.9, 0.9], margin=LOSS))
    assert not found.paused(0.0, Trial(frozenset(), frozenset("a"), [0.9, 0.9, 0.9]))
    assert not held


def test_a_margin_is_for_learning_alone() -> None:
    ratios = [1 / 1.015] * 12
    assert Trial(frozenset(), frozenset("a"), ratios).verdict == "other"
    assert Trial(frozenset(), frozenset("a"), ratios, margin=LOSS).verdict == ""
    assert Trial(frozenset(), frozenset("a"), [1 / 1.03] * 12, margin=LOSS).verdict == "other"
    assert waiting(learning=False)[0].margin == 0


def test_new_choices_are_waited_for_only_where_nothing_is_learnt() -> None:
    for learning, expected in ((False, [False, False]), (True, [False, True])):
        found, _, session = waiting(learning)
        seen = []
        for now in (0.0, patience.EARLY_S):
            session.chooser.made += 1
            assert found.look(now)
            seen.append(found.over(now, lambda: False))
        assert seen == expected
        assert not found.look(patience.EARLY_S), "the choices are looked at a few times a second"


def test_a_capture_is_waited_for_while_its_problems_are_measured() -> None:
    """Plain steps instead of a cell's would be captured, and their problems measured too."""
    found, _, session = waiting(learning=False)
    session.chooser.survey.open = 100
    for now in range(0, 90, 10):
        session.chooser.survey.open -= 1
        assert found.look(float(now))
        assert not found.over(float(now), lambda: True), now
    for now in range(90, 120, 10):
        found.look(float(now))
    assert found.over(80.0 + patience.PATIENCE_S, lambda: True), "no answer comes any more"


def test_steps_with_modules_that_were_given_back_wait_for_their_share(make: Make, session: Session) -> None:
    """They may be slower than plain ones, so none is within the seconds whose share is spent ahead."""
    model = make(BatchNorm2d=(0.02, 0.01))
    watch = over(model)
    watch._patience.began = model.clock[0].now
    clock = Wall(model.clock[0])
    pair = Pair()
    pair.begin("key", clock.mark())
    model.clock[0].now += 0.04
    assert watch._affords(model, Mode(), pair, clock)
    assert not watch._affords(model, Mode(given=frozenset({"BatchNorm2d"})), pair, clock)
    model.clock[0].now += 100 * 3 * 0.02
    pair.steps[0].began = clock.mark() - 0.04
    assert watch._affords(model, Mode(given=frozenset({"BatchNorm2d"})), pair, clock)
