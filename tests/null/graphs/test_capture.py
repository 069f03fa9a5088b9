"""How a run and a replay are compared, and when calls are captured; no device is needed."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nxcore.call.wrappers import unless_capturing
from nxcore.context import REGIME, as_captured
from nxcore.errors import CaptureError
from nxcore.graphs import part
from nxcore.graphs.capture import Capture
from nxcore.graphs.outcome import CLEAR, ROUNDS, compared, off
from nxcore.graphs.part import MET, SETTLED, Part
from tests.nn.tape import Tape


class Clock:
    """A recorder whose works take what they return."""

    def aside(self, work):
        return work()

    def seconds(self, work):
        return work()


def test_few_turns_are_enough_where_two_ways_are_far_apart():
    counts = [0, 0]

    def way(i, seconds):
        def work():
            counts[i] += 1
            return seconds

        return work

    assert compared(Clock(), way(0, 0.030), way(1, 0.007)) == [30.0, 7.0]
    assert counts == [1, 1]
    assert compared(Clock(), way(0, 0.020), way(1, 0.007)) == [20.0, 7.0]
    assert counts == [1 + 2] * 2
    assert compared(Clock(), way(0, 0.008), way(1, 0.007)) == [8.0, 7.0]
    assert counts == [1 + 2 + ROUNDS] * 2


class Counts(nn.Linear):
    """Counts its calls; fails in some of them, and alternates if it is to."""

    count, failing, alternates = 0, (), False

    def forward(self, x):
        self.count += 1
        if self.count in self.failing:
            raise RuntimeError("not now")
        return super().forward(x) * (1 + self.alternates * (self.count % 2))


def captured(module, tape=None, **how):
    return Capture(lambda m, x: m(x), module, [torch.ones(2, 3)], tape or Tape(), **how)


def test_a_call_is_run_as_often_as_a_capture_needs():
    module = Counts(3, 3)
    captured(module)
    first, together, recorded = 1, 1, 1
    assert module.count - (first + together + recorded) in CLEAR


def test_a_network_runs_once_before_it_is_recorded():
    module = Counts(3, 3)
    made = captured(module, names=[], least_s=60.0)
    assert module.count == 2
    assert made.gain > 1
    assert "at least 6e+04 ms run" in made.state
    assert made.saved_ms == 3 * 6e4 - made.replayed_ms, "the bound is of the call without its backward pass"


def test_a_forward_pass_of_two_replays_is_clear(monkeypatch):
    monkeypatch.setattr(Tape, "seconds", lambda *_: 1.0)
    assert captured(Counts(3, 3), names=[], least_s=2.1).ran_ms == 2100
    assert captured(Counts(3, 3), names=[], least_s=1.9).ran_ms == 1000


def test_a_run_is_timed_where_it_may_not_be_slower_than_a_replay():
    module = Counts(3, 3)
    made = captured(module, names=[], least_s=1e-9)
    assert module.count - 2 in CLEAR
    assert "at least" not in made.state
    assert made.saved_ms == made.ran_ms - made.replayed_ms


def test_a_network_whose_calls_alternate_is_not_captured():
    module = Counts(3, 3)
    module.alternates = True
    with pytest.raises(CaptureError, match="a replay after a run differs from the first"):
        captured(module, names=[])


def test_a_recording_that_fails_is_repeated_after_another_run():
    module = Counts(3, 3)
    module.failing = (2,)
    captured(module, names=[], least_s=60.0)
    assert module.count == 4
    module.count, module.failing = 0, (2, 4)
    with pytest.raises(RuntimeError, match="not now"):
        captured(module, names=[])


def test_differences_are_relative_to_all_that_was_wanted():
    wanted = [torch.tensor([3.0, 4.0]), None, torch.tensor([[12.0]])]
    found = [torch.tensor([3.0, 4.0]), None, torch.tensor([[12.5]])]
    assert off(found, wanted) == pytest.approx(0.5 / 13)
    assert off([None], [None]) == 0
    assert off([torch.ones(1)], [torch.zeros(1)]) == 1
    for found in ([torch.tensor([float("nan")])], [None]):
        assert not off(found, [torch.ones(1)]) <= 1


class Undecided:
    over = known = False


def met_before_the_capture(monkeypatch, explorations):
    chooser = SimpleNamespace(explorations=lambda: explorations, watches=SimpleNamespace(convictions=0))
    monkeypatch.setattr(part, "default", lambda: SimpleNamespace(chooser=chooser))
    tried = Part(lambda module, x: module(x))
    captured = []
    monkeypatch.setattr(Part, "_capture", lambda *_: captured.append(tried._calls) or "")
    module, x = nn.Linear(2, 2), torch.ones(1, 2)
    for _ in range(MET + 1):
        tried(module, x)
    return captured[0]


def test_calls_are_captured_early_where_every_problem_is_decided(monkeypatch):
    assert met_before_the_capture(monkeypatch, []) == SETTLED


def test_calls_are_captured_late_while_an_exploration_may_begin(monkeypatch):
    assert met_before_the_capture(monkeypatch, [Undecided()]) == MET


def test_a_run_takes_the_choices_of_a_capture_where_it_is_compared(cuda_answers):
    """TF32 makes torch's kernels differ from others by more than a comparison allows."""
    cuda_answers(is_current_stream_capturing=lambda: False)
    seen = []

    def eager(x):
        seen.append("eager")
        return x * 1.05

    def captured(x):
        seen.append("captured")
        return x * 1.0

    call = unless_capturing(eager, captured)
    tape = Tape()
    record = tape.capture

    def recorded(*args, **kwargs):
        with as_captured():
            return record(*args, **kwargs)

    tape.capture = recorded
    Capture(lambda m, x: call(m(x)), nn.Linear(3, 3), [torch.ones(2, 3)], tape)
    assert seen[:3] == ["captured"] * 3, "two runs and a recording"
    assert set(seen[3:]) == {"eager"}, "what is timed is what calls without a capture do"
    assert not REGIME.captured
