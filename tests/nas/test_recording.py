"""Recordings: which of the user's functions run in a block, and in the blocks within it."""

import sys
import timeit

from torch import nn, ones

from nxcore.nas.recording import Recording


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
