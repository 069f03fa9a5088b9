"""Recordings: which of the user's functions run in a block, and in the blocks within it."""

import gc
import sys
import timeit

import pytest
import torch
from torch import nn, ones, randn

import nxcore
from nxcore import nas
from nxcore.nas import audit, chains
from nxcore.nas.recording import Recording
from tests.nas import darts
from tests.nas.test_network import step
from tests.null import fakes
from tests.stand_ins import stand_in

audit_has, chains_has = stand_in(audit), stand_in(chains)


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


def test_no_recording_sees_what_this_package_verifies(audit_has, chains_has):
    profilers = {"call": [], "trial": [], "kernel": []}

    def noted(what, function):
        return lambda *how: profilers[what].append(sys.getprofile()) or function(*how)

    audit_has(difference=noted("call", audit.difference))
    chains_has(_agrees_on=noted("trial", chains._agrees_on))
    patched = darts.Network(2, 3, 3, 3)
    nas.patch(patched, watch=False)
    step(patched, randn(2, 3, 8, 8), randn(2, 9, 8))
    kernel = fakes.kernel("add", noted("kernel", torch.add))
    with nxcore.policy("measure"), Recording() as recording:
        fakes.session(fakes.backend("fake", kernel)).op("add")(ones(4), ones(4))
        assert sys.getprofile() == recording.seen
    assert all(profilers.values())
    assert {str(own) for known in profilers.values() for own in known} == {"None"}


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
