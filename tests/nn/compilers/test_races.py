"""Entrants of an accelerated model race its replays on real steps, and serve where they win."""

import pytest

import nxcore
from nxcore.nn import exchange, steps
from nxcore.program.compilers.entrants import Entrants
from tests.nn.stepping import Clock, Net, light, over, session, settle, ticks, train
from tests.nn.tape import part
from tests.nn.test_watched_replays import Replays
from tests.nn.traced import CALLS, agree, two

__all__ = ["light", "session"]

MODE = True, False


class Racing(Replays):
    """Replays with an entrant, whose calls take the seconds of it."""

    def __init__(self, clock, seconds, entrant):
        super().__init__(clock, seconds)
        self.entrants, self.ready, self.entrant = Entrants(("reduce-overhead",)), False, entrant
        self.entrants.ready = lambda mode: self.entrants.open(mode) if self.ready else ""

    def call(self, model, call, *args, **kwargs):
        if not self.entrants.serving:
            return super().call(model, call, *args, **kwargs)
        found, before = call(*args, **kwargs), self.clock.now
        self.clock.now = before + ticks(self.entrant)
        return found


def racing(session, replays, entrant):
    clock = Clock()
    model, whole = Net(clock, {}), Racing(clock, replays, entrant)
    nxcore.accelerate(model, watch=False)
    assert exchange.hold(model, steps.Steps(model, session, clock, whole))
    whole.captured = 1
    return model, whole


def raced(model, whole):
    whole.ready = True
    for _ in range(400):
        train(model, 1)
    return settle(model)


def test_an_entrant_that_is_faster_serves(session):
    model, whole = racing(session, -0.003, -0.006)
    settle(model)
    state = "1.81x [1.81, 1.81] the speed of the other steps, 3 blocks"
    assert raced(model, whole) == state
    assert whole.entrants.serving == "reduce-overhead"
    assert whole.captured == 1
    assert list(whole.entrants.report) == [f"reduce-overhead: serves, {state}"]


@pytest.mark.parametrize("entrant", [-0.001, -0.003])
def test_an_entrant_that_is_no_faster_is_dropped(session, entrant):
    model, whole = racing(session, -0.003, entrant)
    settle(model)
    raced(model, whole)
    assert not whole.entrants.serving
    assert "the speed of the other steps" in whole.entrants.lost[MODE, "reduce-overhead"]
    assert whole.captured == 1


@pytest.mark.parametrize(("entrant", "serves"), [(-0.004, True), (0.002, False)])
def test_where_plain_steps_are_faster_an_entrant_is_raced_against_these(session, entrant, serves):
    model, whole = racing(session, 0.003, entrant)
    settle(model)
    assert whole.resting
    assert whole.captured == 1  # until it is known
    raced(model, whole)
    assert (whole.entrants.serving == "reduce-overhead") is serves
    assert whole.captured == int(serves)


def test_where_steps_can_not_be_compared_an_entrant_is_dropped(session, monkeypatch):
    model, whole = racing(session, -0.003, -0.006)
    monkeypatch.setattr("nxcore.nn.marks.Wall.room", lambda *_: False)
    assert settle(model) == "not compared: plain steps may need more memory than is free"
    assert list(whole.entrants.report) == [f"reduce-overhead: dropped: {over(model)._modes[MODE].state}"]


def test_an_accelerated_model_compiles_its_entrant_beside_replays(tape):
    ours, plain = two(entrants=["aot_eager"])
    over(ours).ended = "its own clock"
    agree(ours, plain, CALLS + 6)
    own = part(ours).entrants
    assert own.ready(MODE) == "aot_eager"
    own.serving, before = "aot_eager", tape.replayed
    agree(ours, plain, 3)
    assert tape.replayed == before
    own.drop("enough", "aot_eager", MODE)
    agree(ours, plain, 2)
    assert tape.replayed == before + 4
    assert nxcore.status(ours).steps[-1] == "aot_eager: dropped: enough"


def test_without_a_watch_no_entrant_is_compiled(tape):
    ours, plain = two(entrants=["eager"], watch=False)
    agree(ours, plain, CALLS + 6)
    assert list(part(ours).entrants.report) == ["eager: not raced: its watch is switched off"]
    assert not part(ours).entrants.entries
