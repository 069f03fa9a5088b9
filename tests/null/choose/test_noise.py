"""A race that noise spoilt decides nothing for good: it is held again, and a clear decision outlives it."""

import re

import pytest

from nxcore.spec.problem import Problem
from nxcore.store.files import Store
from nxcore.store.wisdom import Wisdom
from tests.null.fakes import SPECS
from tests.null.processes import Machine, X


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def page_of(machine):
    """Return the one page that there is of an addition."""
    return Wisdom(Store(machine.folder)).read(Problem.of(SPECS["add"], (X, X, 1, None)))


def test_a_race_that_noise_spoilt_is_held_again_by_the_next_process(machine):
    machine.noise = 4.0
    found = machine.chosen(fast=50)
    assert (found.chosen, found.rule) == ("torch", "inconclusive")
    assert re.search(r"the A/A noise is \d+%, at most 20% is allowed", found.reason)
    assert page_of(machine) is None
    machine.noise = 0.0
    found = machine.chosen(fast=50)
    assert (machine.raced, found.chosen) == ([["fast", "torch"]], "fast")
    machine.chosen(fast=50)
    assert machine.raced == [], "and it is known from then on"


def test_a_verdict_outlives_a_noisy_race_with_a_new_kernel(machine):
    machine.chosen(fast=50)
    machine.noise = 7.5
    found = machine.chosen(fast=50, new=20)
    assert (machine.raced, found.chosen) == ([["new", "torch"]], "fast")
    assert "the A/A noise is " in found["new"].refusal.reason
