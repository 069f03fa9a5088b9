"""Recordings: which of the user's functions run in a block, and in the blocks within it."""

import gc
import sys
import timeit

import pytest
from torch import nn, ones, randn

from nxcore import nas
from nxcore.nas.recording import Recording
from tests.nas import darts
from tests.nas.test_network import step


def half(x, times):
    return half(x / 2, times - 1) if times else x


class Halved(nn.Module):
    def forward(self, x):
        return half(x, 2)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Halved()

    def forward(self, x):
        with Recording() as self.recording:
            return self.inner(x) * 2


def test_a_block_within_another_records_its_own_part():
    model = Twice()
    with Recording() as outer:
        model(ones(2))
    ran = [
        {code.co_name for code in (f.__code__ for f in reads.functions.values()) if reads.ran(code)}
        for reads in (outer.reads, model.recording.reads)
    ]
    assert ran == [{"forward", "half"}, {"forward", "half"}]
    assert outer.able
    assert model.recording.able
    assert {type(c) for c in outer.reads.functions} == {type(half.__code__)}
    assert Twice.forward.__code__ in outer.reads.functions
    assert Twice.forward.__code__ not in model.recording.reads.functions
    assert sys.getprofile() is None


def test_what_a_function_calls_of_pythons_library_is_an_effect_of_both_blocks():
    class Timed(nn.Module):
        def forward(self, x):
            timeit.Timer()
            return x

    inner, timed = Recording(), Timed()
    with Recording() as outer, inner:
        timed(ones(1))
    for recording in (outer, inner):
        assert any("of Python's library" in effect for effect in recording.reads.effects)


def test_beside_a_profiler_nothing_is_recorded():
    sys.setprofile(lambda *_: None)
    try:
        with Recording() as recording:
            Halved()(ones(1))
        assert not recording.able
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)


@pytest.fixture
def collected():
    """The program's own callback of Python's collection of garbage, which comes at nearly every object."""
    phases, before = [], gc.get_threshold()

    def called(phase, info):
        phases.append(half(phase, 0))

    gc.callbacks.append(called)
    gc.set_threshold(1, 1, 1)
    yield phases
    gc.set_threshold(*before)
    gc.callbacks.remove(called)


def test_what_python_calls_by_itself_is_no_part_of_a_block(collected):
    model = Halved()
    with Recording() as recording:
        model(ones(2))
    assert (recording.reads.effects, recording.reads.unclear) == ([], [])
    assert collected, "before and after"
    assert gc.isenabled()


def test_a_network_is_taken_though_garbage_is_collected(collected):
    patched = darts.Network()
    swap = nas.patch(patched)
    step(patched, randn(2, 3, 8, 8), randn(2, 5, 8))
    assert {"Cell", "MixedOp"} <= set(swap.replaced.values())
    assert collected
