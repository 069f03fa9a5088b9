"""The first seconds: what is on disk is there at once, what must be compiled later, the hottest first."""

import functools
import threading

import pytest
import torch

from nxcore.choose.learn import budget, lesson
from nxcore.choose.learn.budget import Hand, Pace
from nxcore.spec.compiling import compiling
from tests.null.choose.learn.test_budget import Time
from tests.null.choose.learn.test_exploration import ENOUGH, X, called, learning, ready


def test_an_allowance_is_had_at_once_after_a_second_of_grace_and_only_once():
    when, moments = Time(), []
    pace = Pace(
        0.04, allowance=0.4, grace=1.0, clock=lambda: when.now, processor=lambda: when.spent, wait=when.wait
    )
    pace.begin()
    with pace.working():
        for piece in (0.3, 0.05, 0.05, 0.2, 0.2, 0.2):
            pace.rest(piece)
            moments.append(when.now)
            when.work(piece)
            assert when.spent <= 0.4 + 0.04 * when.now
    assert moments[0] == 1.0, "a shorter program pays nothing"
    assert moments[2] < 1.5, "what is on disk is there"
    assert moments[3] == pytest.approx(0.2 / 0.04), "then the share is all there is"
    assert pace.anew().left(0.0) == pytest.approx(1.0, abs=0.1), "a child has its own"


def test_half_a_minute_costs_at_most_its_share_and_the_allowance():
    """A program of 30 s on a clock of its own, in which ten problems' kernels take what they take."""
    session, _, _ = learning(torch=100, fast=50)
    when = Time()
    pace = Pace(
        budget.SHARE,
        allowance=budget.ALLOWANCE_S,
        grace=budget.GRACE_S,
        clock=lambda: when.now,
        processor=lambda: when.spent,
        wait=when.wait,
    )
    session.chooser.learner.keep_to(pace)
    kernel, seen = next(k for b, k in session.registry.kernels("add") if b.name == "fast"), []
    ran = kernel.plan(None)

    def plan(problem):
        when.work(0.3)
        seen.append((when.now, when.spent))
        return ran

    object.__setattr__(kernel, "planner", plan)
    for size in range(1, 11):
        ready(session, torch.ones(size), torch.ones(size))
    assert len(seen) >= 10
    for now, spent in seen:
        assert spent <= budget.ALLOWANCE_S + budget.SHARE * now + 0.3, f"at {now:.1f} s, and the last piece"


def test_the_hottest_problem_is_first_whenever_it_came():
    done, held = [], threading.Event()
    pace = Pace(float("inf"))
    hand = Hand(pace, idle=lambda: None, failed=lambda error: None, most=9)
    hand.add(lambda: held.wait(20), heat=1.0)
    for heat in (0.1, 0.5, 0.1, 0.9):
        hand.add(functools.partial(done.append, heat), heat)
    held.set()
    if thread := hand.thread:
        thread.join(20)
    assert done == [0.9, 0.5, 0.1, 0.1]


def test_heat_is_the_share_of_the_programs_time():
    heat = budget.Heat()
    assert heat.share == 0
    heat.note(100, 110)
    heat.note(190, 200)
    assert heat.share == pytest.approx(0.2)


@pytest.mark.parametrize("known", [True, False])
def test_what_must_be_compiled_without_workers_is_left_for_later(known, monkeypatch):
    session, _, runs = learning(torch=100, fast=50)
    kernel = next(k for b, k in session.registry.kernels("add") if b.name == "fast")
    ran, compiled, pieces = kernel.plan(None), [], []

    def plan(problem):
        if not compiled and not known:
            compiling("add")
            compiled.append(problem)
        return ran

    object.__setattr__(kernel, "planner", plan)
    pace = session.chooser.learner.pace
    monkeypatch.setattr(session.tuner.gate, "knows", lambda *of: True)  # as an earlier process left it
    rest = pace.rest
    monkeypatch.setattr(pace, "rest", lambda ahead: pieces.append((ahead, len(compiled))) or rest(ahead))
    ready(session, X, X)
    called(session, ENOUGH, X, X)
    assert ((lesson.UNKNOWN_S, 0) in pieces) is not known, "the compiler's seconds are waited for"
    assert bool(compiled) is not known
    assert runs[-1] == "fast"
