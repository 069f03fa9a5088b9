"""A model's replay that gains next to nothing is dropped, and its memory is returned."""

import copy
import weakref

import pytest
import torch
from torch import nn

import nxcore
from nxcore.nn import exchange, whole
from tests.nn.tape import MET, Tape
from tests.nn.test_whole import agree
from tests.stand_ins import stand_in

whole_has = stand_in(whole)


def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


@pytest.fixture
def model(whole_has, cuda_answers):
    """An accelerated model, what records it, its captures, and how often memory was returned."""
    tape, captures, returned = Tape(), [], []

    class Noted(whole.Capture):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            captures.append(weakref.ref(self))

    kept = iter([0, 1 << 30] * 4)
    whole_has(Capture=Noted, kept=lambda _: next(kept), available=lambda: True, recorder_of=lambda _: tape)
    cuda_answers(empty_cache=lambda: returned.append([capture() for capture in captures]))
    torch.manual_seed(0)
    made = net()
    plain = copy.deepcopy(made)
    with nxcore.policy("frozen"):
        nxcore.accelerate(made)
        yield made, plain, tape, captures, returned


@pytest.mark.parametrize(("replayed_s", "kept"), [(2.0, False), (1.97, False), (1.9, True)])
def test_a_replay_must_gain_two_percent_of_a_run(model, replayed_s, kept):
    ours, plain, tape, captures, returned = model
    tape.slow = (replayed_s - 1) * 1e-3  # a run takes 2 s here
    agree(plain, ours, MET)
    part, before = exchange.watch_of(ours).whole, tape.replayed
    agree(plain, ours, 2)
    assert part.captured == kept
    assert (tape.replayed > before) == kept
    assert part.pool == kept << 30
    assert len(captures) == 1
    if not kept:
        assert part.state.startswith("runs: replaying is no faster: ")
        assert returned == [[None]], "the capture is gone when its memory is returned"


def test_the_memory_of_replays_that_end_is_returned(model):
    ours, plain, _, captures, returned = model
    agree(plain, ours, MET)
    part = exchange.watch_of(ours).whole
    assert (part.captured, part.pool, returned) == (1, 1 << 30, [])
    part.end("the model's steps are faster without it")
    assert (part.pool, returned) == (0, [[None]])
    agree(plain, ours, 2)
    assert len(captures) == 1
