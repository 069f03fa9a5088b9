"""A pair whose halves gain much is faster for certain: a call doesn't race it."""

from types import MappingProxyType, SimpleNamespace

import pytest
import torch

from nxcore.choose import pairs
from nxcore.choose.learn.exploration import MET
from nxcore.choose.learn.watch import Watch
from nxcore.choose.pairs import Pair
from nxcore.measure.decision import Decision
from nxcore.spec.problem import Problem
from nxcore.store.problems import moved
from tests.null import fakes
from tests.null.call.crossing import learning, races, step
from tests.stand_ins import stand_in

pairs_has = stand_in(pairs)


@pytest.mark.parametrize(("least", "raced"), [(40, 0), (60, 1)])
def test_the_halves_gain_decides_whether_a_call_races_the_pair(least, raced, joining, monkeypatch, pairs_has):
    """Halves gain 60 us, a bridge is said to cost 13, and costs 70 here, which only a race finds out."""
    pairs_has(CERTAIN_US=MappingProxyType({"cpu": least}))
    session, _ = learning(0.7, 0.7, "measure")
    joining(70, session.chooser.learner.clock)
    seen = races(monkeypatch)
    for _ in range(3):
        step(session, dense=True)
    assert seen.count(["torch", "fast + fast"]) == raced
    assert step(session, dense=True) is not bool(raced)


def test_no_pair_is_certain_on_a_processor():
    """Other programs disturb its times."""
    session, _ = learning(0.1, 0.1, "measure")
    assert not session.chooser.pairs.certain(of("cpu"), 1e6)


def test_on_a_gpu_a_gain_of_hundreds_of_microseconds_is_certain():
    found = learning(0.1, 0.1, "measure")[0].chooser.pairs
    assert not found.certain(of("cuda"), 399)
    assert found.certain(of("cuda"), 401)
    assert not found.certain(of("cuda"), float("inf")), "it wasn't timed"
    with found.every():
        assert not found.certain(of("cuda"), 401), "measuring ahead leaves none out"
    assert found.certain(of("cuda"), 401)


@pytest.mark.parametrize("occupied", [True, False])
def test_on_a_device_at_work_no_pair_is_raced_in_the_background(
    occupied, joining, monkeypatch, pairs_has, caplog
):
    """A replayed model was held up for seconds: each call of the race waited for it, and it for the race."""
    caplog.set_level("INFO", "nxcore")
    session, _ = learning(0.85, 0.85)
    joining(13, session.chooser.learner.clock)
    seen = races(monkeypatch)
    pairs_has(occupied=lambda device: occupied)
    for _ in range(12 * MET):
        step(session, dense=True)
    raced = [labels for labels in seen if "fast + fast" in labels]
    assert (not raced) == ("as the device is at work" in caplog.text) == occupied


def of(kind):
    x = torch.empty(2)
    return moved(Problem.of(fakes.SPECS["add"], (x, x, 1, None)), torch.device(kind))


def test_the_calls_of_a_race_are_not_watched(joining, monkeypatch):
    """A watched call takes the host a millisecond on a GPU; a kernel's first sixteen are watched."""
    session, _ = learning(0.7, 0.7, "measure")
    watches = session.chooser.watches
    watches.on = True
    joining(13, session.chooser.learner.clock)
    inspected, raced = [], []
    inspect, race_of = Watch.inspected, session.chooser.pairs.measure
    monkeypatch.setattr(Watch, "inspected", lambda *a, **k: inspected.append(1) or inspect(*a, **k))

    def measure(*args):
        before = len(inspected)
        found = race_of(*args)
        raced.append(len(inspected) - before)
        return found

    session.chooser.pairs.measure = measure
    for _ in range(4):
        step(session, dense=True)
    assert raced == [0]
    assert inspected, "the program's own calls are"
    assert watches.asides == 0


def test_a_decision_is_found_by_the_operator_that_runs_too(pairs_has):
    """A pool with a gradient runs another operator than without."""
    pairs_has(PROBLEMS=1)
    found, decision = learning(0.7, 0.7)[0].chooser.pairs, Decision("torch", "measured", "")
    called, inner = of("cpu"), of("cuda")
    choice = SimpleNamespace(decision=decision)
    found._hold(Pair(called, (True,), (inner, choice), (inner, choice)), decision)
    assert found.of(called) is found.of(inner) is decision
    found._hold(Pair(called, (False,), (called, choice), (called, choice)), decision)
    assert found.of(inner) is None, "the oldest was dropped"
    assert found.of(called) is decision
