"""Doubt: a choice by figures of elsewhere is confirmed once, and where they are wrong it is learnt anew."""

import logging
import time

import pytest
import torch

from nxcore.choose.learn import confirmation
from nxcore.choose.learn.budget import Pace
from nxcore.choose.learn.confirmation import CALLS, SECONDS
from nxcore.choose.learn.learner import Learner
from nxcore.measure.decision import Candidate, Decision
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.device import describe
from nxcore.spec.kernel import Code
from nxcore.spec.problem import Problem
from nxcore.store import transfer
from nxcore.store.pages import Page
from nxcore.store.wisdom import Wisdom, key
from tests.null import fakes
from tests.null.fakes import SPECS, timing
from tests.stand_ins import stand_in

confirmation_has = stand_in(confirmation)

ADD = SPECS["add"].reference
X = torch.arange(12.0).view(3, 4)
PROBLEM = Problem.of(SPECS["add"], (X, X, 1, None))


def planted(folder, monkeypatch, chosen="fast", **us):
    """Ship a record that gives each label these times."""
    seen = tuple(Candidate(n, n, timing=timing([t] * 12)) for n, t in us.items())
    makes = dict.fromkeys(us, "1")
    again = fakes.replace(timing([us["torch"]] * 12), repeats="torch")
    page = Page(Decision(chosen, "measured", "it was", seen), again, makes, date=1.0)
    entries = [{"key": key(PROBLEM), "page": page.to_dict()}]
    document = {"format": 1, "environments": [{"facts": describe("cpu").to_dict(), "entries": entries}]}
    folder.mkdir()
    transfer.write(folder / "cpu-some.json", document)
    monkeypatch.setattr(transfer, "SHIPPED", folder)
    fakes.identified(monkeypatch)


class World:
    """Kernels of scripted speed and a record that says otherwise."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch, self.clock = folder, monkeypatch, fakes.Clock()
        fakes.clocked(monkeypatch, self.clock)

    def ship(self, **us):
        planted(self.folder / "shipped", self.monkeypatch, **us)

    def process(self, policy="auto", call=ADD, audit=False, **us):
        specs = fakes.addition(self.clock, us.pop("torch"))
        backends = fakes.adders(self.clock, us, call)
        settings = Settings(audit=audit, cache=self.folder / "cache", policy=policy)
        session = Session(settings, fakes.registry(*backends, specs=specs), fakes.QUICK)
        chooser, pace = session.chooser, Pace(share=float("inf"))
        chooser.learner = Learner(chooser.recall, session._forget, self.clock, pace)
        return session


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def called(session, times):
    for _ in range(times):
        assert torch.equal(session.op("add")(X, X), 2 * X)
        session.chooser.learner.settle(30)


def chosen(session):
    return session.explain("add", X, X, decide=False).decision.chosen


def fast_calls(session, times):
    """Call without a wait after each."""
    for _ in range(times):
        session.op("add")(X, X)
    session.chooser.learner.settle(30)


@pytest.mark.parametrize("policy", ["auto", "measure"])
def test_a_wrong_entry_is_found_after_a_thousand_calls_and_that_problem_alone_is_learnt_anew(
    world, policy, caplog
):
    world.ship(torch=100, fast=50)
    session = world.process(policy, torch=100, fast=130)
    fast_calls(session, CALLS - 1)
    assert chosen(session) == "fast", "as recorded"
    with caplog.at_level(logging.WARNING, "nxcore"):
        fast_calls(session, 1)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("confirmation: ")]
    assert len(lines) == 1
    assert "fast takes 1.30 times as long as torch here" in lines[0]
    assert session.wisdom.read(PROBLEM) is None
    called(session, 400)
    assert chosen(session) == "torch"
    page = session.wisdom.read(PROBLEM)
    assert page.decision.chosen == "torch"
    assert not page.foreign
    assert chosen(world.process(torch=100, fast=130)) == "torch", "the next process knows"


@pytest.mark.parametrize(("policy", "takes_part"), [("auto", False), ("frozen", False), ("measure", True)])
def test_a_plugin_that_the_record_does_not_know_has_no_known_problem_learnt_anew(world, policy, takes_part):
    world.ship(torch=100, fast=50)
    session = world.process(policy, torch=100, fast=50, another=10)
    called(session, 60)
    found = session.explain("add", X, X, decide=False).decision
    assert found.rule == "measured"
    assert found.chosen == ("another" if takes_part else "fast")
    assert bool(found["another"].timing) == takes_part


def test_where_the_records_winner_has_changed_an_unknown_plugin_takes_part_too(world, monkeypatch):
    world.ship(torch=100, fast=50)
    fakes.identified(monkeypatch, lambda backend, kernel: "2" if backend.name == "fast" else "1")
    session = world.process(torch=100, fast=50, another=10)
    called(session, 400)
    assert session.explain("add", X, X, decide=False).decision.chosen == "another"


def test_a_watch_over_the_kernel_changes_nothing_of_that(world):
    world.ship(torch=100, fast=50)
    session = world.process(audit=True, torch=100, fast=130)
    fast_calls(session, CALLS)
    assert session.wisdom.read(PROBLEM) is None


def test_what_is_confirmed_serves_on_at_its_own_speed(world, caplog):
    world.ship(torch=100, fast=50)
    session = world.process(torch=100, fast=60)
    with caplog.at_level(logging.WARNING, "nxcore"):
        fast_calls(session, CALLS - 20)
        called(session, 40)  # a call during the confirmation would advance its clock
    assert chosen(session) == "fast"
    assert caplog.records == []
    choice = session.chooser.known(PROBLEM)
    assert choice.call.func is choice.kernel.plan(PROBLEM), "nothing is counted any more"


def test_sixty_seconds_are_enough_with_fewer_calls(world):
    world.ship(torch=100, fast=50)
    session = world.process(torch=100, fast=130)
    fast_calls(session, 2)
    world.clock.now += int(SECONDS * 1e9)
    fast_calls(session, 1)
    assert session.wisdom.read(PROBLEM) is None


def test_a_noisy_confirmation_is_repeated_and_then_left(world, confirmation_has):
    world.ship(torch=100, fast=50)
    seen = []

    def compared(*args):
        seen.append(args)
        return 2.0, 0.5

    confirmation_has(compared=compared)
    session = world.process(torch=100, fast=130)
    fast_calls(session, CALLS)
    assert len(seen) == 1
    for _ in range(5):
        fast_calls(session, CALLS)
    assert len(seen) == confirmation.ATTEMPTS
    assert chosen(session) == "fast"


def test_a_confirmation_that_fails_changes_nothing(world, confirmation_has):
    world.ship(torch=100, fast=50)
    confirmation_has(compared=fakes.raising(torch.OutOfMemoryError("no")))
    session = world.process(torch=100, fast=130)
    fast_calls(session, CALLS)
    assert chosen(session) == "fast"


def test_other_policies_measure_nothing(world):
    world.ship(torch=100, fast=50)
    session = world.process("frozen", torch=100, fast=130)
    fast_calls(session, CALLS + 1)
    assert session.wisdom.read(PROBLEM) is not None


def test_imported_figures_are_confirmed_and_this_machines_own_arent(world, tmp_path):
    world.ship(torch=100, fast=50)
    facts, pages = transfer.read(tmp_path / "shipped" / "cpu-some.json")
    session = world.process(torch=100, fast=130)
    transfer.imported(session.wisdom.store, facts, pages)
    found = Wisdom(session.wisdom.store).read(PROBLEM)
    assert found.foreign
    assert Wisdom(session.wisdom.store).read(PROBLEM).to_dict().get("foreign") is not False
    session.wisdom.write(PROBLEM, fakes.replace(found, foreign=False))
    assert not Wisdom(session.wisdom.store).read(PROBLEM).foreign
    fast_calls(session, CALLS + 1)
    assert chosen(session) == "fast", "its own figures need none"


def test_a_planted_kernel_that_is_wrong_serves_no_call(world):
    ran = []

    def wrong(*args):
        ran.append(args)
        return ADD(*args) + 1

    world.ship(torch=100, fast=10)
    session = world.process(torch=100, fast=10, call=wrong)
    called(session, 20)
    found = session.explain("add", X, X, decide=False).decision
    assert found.chosen == "torch"
    assert session.tuner.refusal(*session.tuner.taking_part("add")[1], PROBLEM).code == Code.WRONG
    assert not any(a[0] is X for a in ran), "it ran on samples alone"


def spinning(us):
    """Return an addition that takes so long on a real clock."""

    def call(*args):
        ends = time.perf_counter_ns() + us * 1000
        result = ADD(*args)
        while time.perf_counter_ns() < ends:
            pass
        return result

    return call


@pytest.mark.slow
def test_a_kernel_that_is_slower_here_is_found_within_a_minute_of_use(tmp_path, monkeypatch):
    planted(tmp_path / "shipped", monkeypatch, torch=400, fast=200)
    spec = fakes.replace(SPECS["add"], reference=spinning(400), idioms={})
    slower = fakes.backend("fast", fakes.kernel("add", spinning(520), target="fast:plan"))
    session = Session(
        Settings(cache=tmp_path / "cache"), fakes.registry(slower, specs=fakes.specs_with(spec))
    )
    op, began = session.op("add"), time.monotonic()
    op(X, X)
    assert chosen(session) == "fast"
    while chosen(session) == "fast":
        for _ in range(20):
            op(X, X)
        assert time.monotonic() - began < 60
