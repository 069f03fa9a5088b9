"""Ties: noise changes no choice, in this process, another one, or on another rank."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

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


BOOT = """
import sys
import torch
from nxcore.choose.estimate import neighbours
from nxcore.choose.estimate.model import Point
from nxcore.spec.spec import Cost
from tests.null.fakes import timing
kernels = [f"kernel{i}" for i in range(9)]
times = lambda us: {"torch": timing([2 * us] * 9), **{k: timing([us] * 9) for k in kernels}}
points = [Point((n,), Cost(8 * n, n), times(n / 10)) for n in (1000, 4000)]
at = Point((2000,), Cost(16000, 2000), {})
print(neighbours.guess(at, points, {"torch", *kernels}).label)
"""


@pytest.mark.slow
def test_two_boots_choose_alike_from_the_same_record():
    root = str(Path(__file__).parents[3])
    found = set()
    for seed in ("1", "2", "3"):
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
        command = [sys.executable, "-c", BOOT]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1
