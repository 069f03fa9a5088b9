"""What several tests of calls with a gradient share."""

import functools

import pytest

from nxcore.call import serving
from nxcore.interop.autograd import Differentiable
from nxcore.measure import race

HARNESS = race.race


@pytest.fixture
def joining(monkeypatch, raced_by):
    """Return a function that lets nxcore's autograd function take so many microseconds of a clock."""

    def costs(us, clock):
        class Joined(Differentiable):
            def __call__(self, *args):
                clock.now += us * 1000
                return super().__call__(*args)

        raced_by(functools.partial(HARNESS, clock=clock))
        monkeypatch.setattr(serving, "Differentiable", Joined)

    return costs
