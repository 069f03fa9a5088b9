"""The harness in worlds whose truth is known: drift, spikes, bias and noise, on a clock that the test moves.

What is held to: no candidate that is slower, or the same, is ever taken for faster beyond the stated bound,
which is p < 0.01 a family of candidates; and what is faster by a tenth is always found.
"""

import functools
import itertools
import math
import random
import time

import pytest
import torch

from nxcore.choose.contenders import AGAIN, timed
from nxcore.measure.decision import SIGNIFICANCE, Candidate, decide, settled
from nxcore.measure.race import Effort, Race, race
from tests.null.fakes import Clock
from tests.table import for_each

CPU = torch.device("cpu")
EFFORT = Effort((12, 20, 40), 1e-3, 1e9)
TORCH_US = 100.0
CELLS, SEEDS = 200, range(10)


def most_wins(cells, rate=SIGNIFICANCE, doubt=1e-3):
    """Return the most false wins that chance gives but once in a thousand such tests."""
    at_most = 0.0
    for wins in range(cells + 1):
        at_most += math.comb(cells, wins) * rate**wins * (1 - rate) ** (cells - wins)
        if at_most >= 1 - doubt:
            return wins
    return cells


class World:
    """Calls that take their time on a clock of their own, as on a machine that does other things too.

    Parameters
    ----------
    seed : int
        Of all chance in it.
    noise : float
        Standard deviation of the logarithm of a call's time.
    drift : float
        By which share calls are slower after a second.
    spike : int
        Every so many calls one takes five times as long.
    bias : float
        Standard deviation of a factor that each candidate keeps.
    """

    def __init__(self, seed=0, noise=0.01, drift=0.0, spike=0, bias=0.0):
        self.clock, self.dice = Clock(), random.Random(seed)
        self.noise, self.drift, self.spike, self.bias = noise, drift, spike, bias
        self.calls = itertools.count(1)

    def call(self, us):
        us *= math.exp(self.dice.gauss(0, self.bias))

        def run():
            now = us * math.exp(self.dice.gauss(0, self.noise)) * (1 + self.drift * self.clock.now * 1e-9)
            if self.spike and next(self.calls) % self.spike == 0:
                now *= 5
            self.clock.now += round(now * 1e3)

        return run

    def lanes(self, **us):
        return {"torch": self.call(TORCH_US), **{name: self.call(value) for name, value in us.items()}}


def candidates(calls):
    return [Candidate(name, name.partition(" ")[0]) for name in calls if name != AGAIN]


def measured(world, **us):
    """Return what policy ``measure`` decides."""
    calls = world.lanes(**us)
    asked = candidates(calls)
    clear = lambda seen: settled(timed(asked, seen), seen.get(AGAIN))  # noqa: E731  as short as it is
    found = race(calls, CPU, again=AGAIN, settled=clear, effort=EFFORT, clock=world.clock)
    return decide(timed(asked, found), found[AGAIN])


def learnt(world, **us):
    """Return what a race in pieces of a step each decides."""
    calls = world.lanes(**us)
    asked = candidates(calls)
    found = Race(
        calls,
        CPU,
        rivals=frozenset({"torch"}),
        again=AGAIN,
        settled=lambda seen: settled(timed(asked, seen), seen.get(AGAIN)),
        effort=EFFORT,
        clock=world.clock,
    )
    while not found.go(seconds=0.0):
        pass
    return decide(timed(asked, found.timings), found.timings[AGAIN])


QUIET = {"noise": 0.01}
DRIFT = {"noise": 0.01, "drift": 0.03}
SPIKES = {"noise": 0.01, "spike": 37}
ALL = {"noise": 0.01, "drift": 0.03, "spike": 37, "bias": 0.003}
WORLDS = {"quiet": QUIET, "drift": DRIFT, "spikes": SPIKES, "all": ALL}
WAYS = pytest.mark.parametrize("way", [measured, learnt])


@WAYS
@for_each("world", [QUIET, DRIFT | {"drift": 3.0}, SPIKES], ids=["quiet", "steep", "spikes"])
@for_each("times", [0.5, 0.9, 1.1, 1.9])
def test_ratios_are_recovered(way, world, times):
    found = [way(World(seed, **world), other=TORCH_US * times)["other"].ratio.median for seed in SEEDS]
    assert found == pytest.approx([1 / times] * len(found), rel=0.015)


@WAYS
@for_each("world", WORLDS)
@for_each("slower", [1.03, 1.05, 1.10])
def test_what_is_slower_is_never_taken_for_faster(way, world, slower):
    for seed in SEEDS:
        found = way(World(seed, **WORLDS[world]), other=TORCH_US * slower)
        assert found.chosen == "torch"
        if slower == 1.10:
            assert found["other"].ratio.high < 1, "it is told as slower"


@WAYS
@for_each("world", WORLDS)
@for_each(("faster", "least"), [(1.03, 0), (1.05, 0.5), (1.10, 1.0)])
def test_what_is_faster_is_found(way, world, faster, least):
    found = [way(World(seed, **WORLDS[world]), other=TORCH_US / faster).chosen for seed in SEEDS]
    assert found.count("other") >= least * len(found)


@WAYS
@pytest.mark.parametrize("others", [1, 4])
def test_of_200_cells_without_a_difference_no_more_are_won_than_the_bound_allows(way, others):
    us = {f"other {i}": TORCH_US for i in range(others)}
    chosen = [way(World(seed, **ALL), **us).chosen for seed in range(CELLS)]
    assert most_wins(CELLS) == 8
    assert CELLS - chosen.count("torch") <= most_wins(CELLS)


def test_the_fastest_of_torchs_ways_races_itself():
    """Chosen while warming up; what is fast and no rival isn't it."""
    world = World(**QUIET)
    calls = world.lanes(idiom=TORCH_US / 30, kernel=TORCH_US / 90)
    rivals = frozenset({"torch", "idiom"})
    found = race(calls, CPU, rivals=rivals, again=AGAIN, effort=EFFORT, clock=world.clock)
    assert [t.repeats for t in found.values()] == ["", "", "", "idiom"]
    assert found[AGAIN].median_us == pytest.approx(found["idiom"].median_us, rel=0.05)
    assert race(calls, CPU, again=AGAIN, effort=EFFORT, clock=world.clock)[AGAIN].repeats == "torch"


def busy(us):
    end = time.perf_counter_ns() + round(us * 1e3)
    while time.perf_counter_ns() < end:
        pass


@pytest.mark.parametrize("times", [1.03, 1.05, 1.10])
def test_what_is_really_slower_is_told(times):
    calls = {name: functools.partial(busy, 50 * k) for name, k in (("torch", 1), ("other", times))}
    asked = candidates(calls)
    found = race(calls, CPU, again=AGAIN, effort=Effort((20,), 1e-3, 9))
    decision = decide(timed(asked, found), found[AGAIN])
    assert decision.chosen == "torch"
    if times == 1.10:
        assert decision["other"].ratio.high < 1


def test_of_cells_really_timed_no_more_are_won_than_the_bound_allows():
    """Other programs may favour one of two equal calls for a while; a biased race does so again."""
    x, wins = torch.randn(4096), []
    for trial in range(2):
        chosen = []
        for seed in range(20 * trial, 20 * trial + 20):
            calls = {name: functools.partial(torch.add, x, x) for name in ("torch", "other")}
            found = race(calls, CPU, again=AGAIN, effort=Effort((12,), 1e-3, 9), seed=seed)
            chosen.append(decide(timed(candidates(calls), found), found[AGAIN]).chosen)
        wins.append(chosen.count("other"))
        if wins[-1] <= most_wins(20):
            return
    pytest.fail(f"false wins of 20 cells: {wins}, at most {most_wins(20)}")
