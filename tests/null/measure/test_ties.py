"""Ties: noise changes no choice, in this process, another one, or on another rank."""

import random

import pytest

from nxcore.measure.decision import Candidate, decide
from tests.null.fakes import timing

BLOCKS = 20
NOISE = 0.01
TIMES = {"torch": 100.0, "second": 50.0, "first": 50.2, "third": 50.4, "far": 70.0}


def shuffled(seed, times=TIMES, noise=NOISE):
    """Return candidates and the A/A row, as another measurement of the same kernels would have them."""
    dice = random.Random(seed)

    def row(us):
        return timing([us * dice.uniform(1 - noise, 1 + noise) for _ in range(BLOCKS)])

    found = [Candidate(n, "torch" if n == "torch" else n, timing=row(us)) for n, us in times.items()]
    again = row(times["torch"])
    return found, type(again)(again.device_us, again.host_us, "torch")


@pytest.mark.parametrize("held", ["second", "first", "third"])
def test_among_ties_the_record_counts_however_the_timings_are_shuffled(held):
    chosen = {decide(*shuffled(seed), "eager", held).chosen for seed in range(200)}
    assert chosen == {held}


def test_without_a_record_the_order_of_the_kernels_counts():
    chosen = {decide(*shuffled(seed)).chosen for seed in range(200)}
    assert chosen == {"second"}
    turned = dict(reversed(TIMES.items())) | {}
    turned = {"torch": 100.0, **{n: us for n, us in turned.items() if n != "torch"}}
    assert {decide(*shuffled(seed, turned)).chosen for seed in range(200)} == {"third"}


def test_the_record_doesnt_hold_a_kernel_that_is_slower_now():
    assert {decide(*shuffled(seed), "eager", "far").chosen for seed in range(50)} == {"second"}
    slow = TIMES | {"second": 150.0, "third": 150.0}
    assert {decide(*shuffled(seed, slow), "eager", "second").chosen for seed in range(50)} == {"first"}


def test_of_torchs_ways_the_one_on_record_stays_too():
    times = {"torch": 100.0, "torch-a": 90.0, "torch-b": 90.2}
    for held in ("torch-a", "torch-b"):
        chosen = set()
        for seed in range(100):
            found, again = shuffled(seed, times)
            found = [Candidate(c.label, "torch", timing=c.timing) for c in found]
            chosen.add(decide(found, again, "eager", held).chosen)
        assert chosen == {held}
