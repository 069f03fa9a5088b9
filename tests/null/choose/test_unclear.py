"""A race that noise spoilt decides nothing for good: it is held again, and a clear verdict outlives it."""

from __future__ import annotations

import pytest

from nxcore.spec.problem import Problem
from nxcore.store import pages, transfer, wisdom
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
    first = machine.chosen(fast=50)
    assert (first.chosen, first.unclear) == ("torch", True)
    assert page_of(machine).unclear == 1
    machine.noise = 0.0
    second = machine.chosen(fast=50)
    assert machine.raced == [["fast", "torch"]]
    assert (second.chosen, second.unclear) == ("fast", False)
    assert page_of(machine).unclear == 0
    machine.chosen(fast=50)
    assert machine.raced == [], "and it is known from then on"


def test_where_noise_never_ends_races_do(machine):
    races, machine.noise = 0, 4.0
    for noise in (4.0, 3.0, 5.0, 4.0, 4.0):
        machine.noise = noise
        assert machine.chosen(fast=50).chosen == "torch"
        races += len(machine.raced)
    assert races == pages.RACES
    assert page_of(machine).decision.noise < 3.5, "the one with the least noise stays"
    machine.noise = 0.0
    session = machine.process(fast=50)
    with session.policy("frozen"):
        session.op("add")(X, X)
    assert machine.raced == [], "other policies measure nothing, as ever"


def test_a_clear_verdict_outlives_a_noisy_race_with_a_new_kernel(machine):
    machine.chosen(fast=50)
    machine.noise = 7.5
    for _ in range(pages.RACES):
        found = machine.chosen(fast=50, new=20)
        assert machine.raced == [["new", "torch"]]
        assert found.chosen == "fast"
        assert found["new"].refusal.reason.startswith("not measured: the A/A noise was ")
    found = machine.chosen(fast=50, new=20)
    assert (found.chosen, found["new"].refusal.reason) == ("fast", "not measured in its present version")
    assert machine.raced == [], "enough was tried"


def test_a_clear_verdict_serves_where_a_later_race_is_noisy(machine):
    """As where two processes race one problem, and the noisy one ends last."""
    known = machine.chosen(fast=50)
    machine.noise = 7.5
    session = machine.process(fast=50)
    problem = Problem.of(SPECS["add"], (X, X, 1, None))
    noisy_one = session.tuner.choose(problem, (X, X, 1, None))
    assert noisy_one.decision.chosen == "torch"
    served = session.chooser.recall.kept(problem, (X, X, 1, None), noisy_one)
    assert (served.decision.chosen, served.decision.noise) == ("fast", known.noise)
    assert page_of(machine).decision.chosen == "fast"


def test_a_page_of_before_has_no_count_and_says_by_its_noise_whether_it_is_clear(machine):
    machine.chosen(fast=50)
    store, problem = Store(machine.folder), Problem.of(SPECS["add"], (X, X, 1, None))
    folder = f"{wisdom.digest(wisdom.environment(X.device))}/entries"
    document = store.read(folder, wisdom.key(problem))
    del document["unclear"]
    document["again"].pop("repeats")
    store.write(folder, wisdom.key(problem), document)
    assert (page_of(machine).unclear, page_of(machine).open) == (0, False)
    assert machine.chosen(fast=50).chosen == "fast"
    assert machine.raced == []
    document["decision"]["noise"] = 7.588
    store.write(folder, wisdom.key(problem), document)
    assert page_of(machine).open
    machine.chosen(fast=50)
    assert len(machine.raced) == 1


def test_of_two_pages_a_clear_one_stays(machine):
    machine.chosen(fast=50)
    of, clear = transfer.gathered(Store(machine.folder))
    ((place, (at, document)),) = clear.items()
    later = document | {"decision": document["decision"] | {"noise": 3.0}, "date": document["date"] + 60}
    for order in ((clear, {place: (at, later)}), ({place: (at, later)}, clear)):
        assert transfer.merged((of, pages) for pages in order)[1][place][1] == document
    assert transfer.imported(Store(machine.folder), of, {place: (at, later)}) == 0


def test_a_win_by_far_replaces_an_earlier_page_whatever_its_noise(machine):
    """A kernel of another toolkit, which won years ago, would be compiled in its place."""
    machine.chosen(fast=50)
    of, clear = transfer.gathered(Store(machine.folder))
    ((place, (at, document)),) = clear.items()
    assert document["decision"]["rule"] == "measured"
    noisy = document | {"decision": document["decision"] | {"noise": 0.3}, "date": document["date"] + 60}
    assert not pages.page(noisy).decision.unclear
    for order in ((clear, {place: (at, noisy)}), ({place: (at, noisy)}, clear)):
        assert transfer.merged((of, each) for each in order)[1][place][1] == noisy
