"""A watch over a model whose steps are replayed: they are kept, or given back with all else, as they pay."""

from collections.abc import Callable
from typing import Any

import pytest

import nxcore
from nxcore.nn import exchange, steps
from nxcore.nn.trial import LOOKS
from nxcore.program.compilers.entrants import Entrants
from nxcore.session import Session
from tests.nn.stepping import Clock, Net, given_back, light, over, session, settle, ticks, train

__all__ = ["light", "session"]


class Replays:
    """Stands for a capture: a replayed call has no host's cost of the modules, but one of its own."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.captured, self.stands, self.pending, self.resting = 0, True, False, False
        self.made, self.interrupted, self.calls, self.every = 0, 0, 0, 0
        self.pool, self.saved_ms, self.report, self.left = 0, 1.0, ["the model: replays"], ""
        self.entrants = Entrants(())

    def call(self, model: Net, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found, before = call(*args, **kwargs), self.clock.now
        if self.captured and not self.resting:
            self.clock.now = before + ticks(self.seconds)
            self.calls += 1
            if self.every and self.calls % self.every == 0:
                self.interrupted += 1
                self.clock.now += ticks(1.0)
        return found

    def end(self, why: str) -> None:
        self.captured, self.stands, self.left = 0, False, why


def replayed(session: Session, seconds: float) -> tuple[Net, Replays]:
    """Return a watched model, whose replays take so many seconds more than its plain calls."""
    clock = Clock()
    model, whole = Net(clock, {}), Replays(clock, seconds)
    nxcore.accelerate(model, watch=False)
    assert exchange.hold(model, steps.Steps(model, session, clock, whole))  # type: ignore[arg-type]
    return model, whole


def test_replays_that_pay_are_kept(session: Session) -> None:
    model, whole = replayed(session, -0.003)
    train(model, 20)
    whole.captured = 1
    assert settle(model).startswith("pays: 1.41x")
    assert not whole.resting
    assert over(model).report[-1] == "the model: replays"
    assert given_back(model) == set()


def test_replays_that_do_not_pay_are_given_back_with_all_else(session: Session) -> None:
    model, whole = replayed(session, 0.003)
    whole.captured = 1
    settle(model)
    assert (whole.captured, whole.left) == (0, "the model's steps are faster without it")
    assert given_back(model) == {"BatchNorm2d", "MaxPool2d", "AvgPool2d"}


def test_a_step_with_an_audit_says_nothing_of_the_others(session: Session) -> None:
    model, whole = replayed(session, -0.003)
    whole.captured, whole.every = 1, 25
    assert settle(model).startswith("pays: 1.41x")
    assert whole.interrupted > 1


def test_replays_end_for_good_after_more_than_a_few_blocks(session: Session) -> None:
    model, whole = replayed(session, 0.009)
    whole.captured = 1
    while whole.captured:
        trial = over(model)._mode and over(model)._mode.trial
        train(model, 1)
        count = len(trial.ratios) if trial else 0
    assert count >= LOOKS[0] - 1


def test_steps_are_compared_anew_once_replays_are_recorded_again(session: Session) -> None:
    model, whole = replayed(session, -0.003)
    whole.captured = 1
    settle(model)
    whole.made += 1
    train(model, 1)
    assert not over(model)._modes[True, False].over


def test_no_block_before_a_capture(session: Session) -> None:
    model, whole = replayed(session, -0.003)
    whole.pending = True
    train(model, 1000)
    assert over(model)._modes[True, False].trial is None
    whole.pending = False
    settle(model)


def test_the_graphs_memory_is_not_free(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    model, whole = replayed(session, -0.003)
    whole.captured, whole.pool = 1, 5
    seen = []
    monkeypatch.setattr("nxcore.nn.marks.Wall.room", lambda _, pool: seen.append(pool))
    assert settle(model) == "not compared: plain steps may need more memory than is free"
    assert set(seen) == {5}


def test_a_watch_that_ends_leaves_them(session: Session) -> None:
    model, whole = replayed(session, -0.003)
    nxcore.restore(model)
    assert whole.left == "the watch was taken away"
