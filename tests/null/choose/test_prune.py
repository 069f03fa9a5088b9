"""Pruning: of an unknown problem's kernels only those that may win are compiled."""

import dataclasses

import pytest
import torch

from nxcore.choose.process import Answer
from nxcore.choose.shortlist import shortlisted
from nxcore.measure.decision import Candidate, Decision
from nxcore.offline import ahead
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.compiling import compiling
from nxcore.spec.kernel import Code, Kernel, Refusal
from nxcore.spec.tally import tally
from nxcore.store import wisdom
from nxcore.store.pages import Page
from tests.null import fakes
from tests.null.calls import addition
from tests.null.fakes import SPECS, timing

ADD = SPECS["add"].reference
EFFORT = dataclasses.replace(fakes.QUICK, compiled=2)


@pytest.mark.parametrize(
    ("wins", "ready", "here", "order"),
    [
        ({}, (), (), ("a", "b", "c")),
        ({"torch": 9}, (), (), ("a", "b", "c")),
        ({"c": 3, "torch": 9, "b": 1}, (), (), ("c", "b")),
        ({}, {"ready"}, (), ()),
        ({"ready": 2, "a": 3, "b": 2}, {"ready"}, (), ("a",)),
        ({}, (), {"a"}, ("b", "c", "a")),
        ({"a": 1, "b": 1}, (), {"a"}, ("b", "a")),
    ],
    ids=["nothing is known", "torch's alone", "by wins", "ready", "won more", "no worker", "of equals"],
)
def test_order_and_limit(wins, ready, here, order):
    found = shortlisted(("a", "b", "c"), wins, 2, ready, here)
    assert (found.order, found.first, found.missing) == (order, order[:2], ("a", "b", "c"))
    assert {*found.pruned, *order} == {"a", "b", "c"}
    assert all(why.code == Code.PRUNED for why in found.pruned.values())


class Machine:
    """Backends that compile what isn't on ``disk``, and note it."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.clock, self.disk, self.compiled, self.broken = folder, fakes.Clock(), set(), [], ()
        self.planned, self.images = [], ()
        fakes.clocked(monkeypatch, self.clock)
        fakes.identified(monkeypatch)

    def kernel(self, label, us):
        def plan(problem):
            self.planned.append(label)
            if label not in self.images and (label, problem["x"].shape) not in self.disk:
                compiling(label)
                self.disk.add((label, problem["x"].shape))
                self.compiled.append(label)
                if label in self.broken:
                    raise RuntimeError("no such instruction")
            return self.clock.costing(us, ADD)

        return fakes.kernel("add", announces=True, target=f"{label}:plan", planner=plan)

    def process(self, policy="measure", effort=EFFORT, torchs=100, **us):
        backends = [fakes.backend(label, self.kernel(label, t)) for label, t in us.items()]
        settings = Settings(cache=self.folder, policy=policy)
        return Session(settings, fakes.registry(*backends, specs=fakes.addition(self.clock, torchs)), effort)

    def verified(self, session):
        """Verify all kernels, so that what is compiled later is for a problem."""
        for b, k in session.tuner.taking_part("add"):
            session.gate.verify(b, k, addition(7))
        self.compiled.clear()
        return session


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def decided(session, size=1000):
    x = torch.randn(size)
    return session.explain("add", x, x).decision


FOUR = {"one": 60, "two": 50, "three": 40, "four": 30}


def test_of_an_unknown_problem_two_kernels_are_compiled_in_the_registrys_order(machine):
    found = decided(machine.process(**FOUR))
    assert set(machine.compiled) == {"one", "two"}
    assert found.chosen == "two"
    assert [c.label for c in found.candidates] == ["torch", *FOUR]
    assert found["four"].refusal.code == Code.PRUNED
    assert (
        found["four"].refusal.reason == "not compiled: one and two promise more, and at most 2 are compiled"
    )
    assert found["four"].refusal.hint == "nxcore tune races all kernels"


def test_a_kernel_that_fails_gives_its_place_to_the_next(machine):
    machine.broken = ("one",)
    found = decided(machine.process(**FOUR))
    assert set(machine.compiled) == {"one", "two", "three"}
    assert found.chosen == "three"
    assert found["one"].refusal.code == Code.RAISED
    assert found["four"].refusal.code == Code.PRUNED


def test_where_a_kernel_is_on_disk_nothing_is_compiled_that_promises_nothing(machine):
    session = machine.verified(machine.process(**FOUR))
    machine.disk.add(("two", (1000,)))
    found = decided(session)
    assert machine.compiled == []
    assert found.chosen == "two"
    assert found["four"].refusal.code == Code.PRUNED
    assert found["four"].refusal.reason == "not compiled: it won no more problems than two, compiled already"


def test_a_kernel_on_disk_is_verified_without_a_compiler(machine):
    machine.verified(machine.process(**FOUR))
    machine.disk.add(("two", (1000,)))
    machine.folder = machine.folder / "no verdicts"
    session = machine.process(**FOUR)
    assert decided(session).chosen == "two"
    assert machine.compiled == []


def test_a_kernel_on_disk_that_is_wrong_keeps_no_other_from_the_compiler(machine):
    session = machine.verified(machine.process(**FOUR))
    machine.disk.add(("two", (1000,)))
    (wrong,) = [of for of in session.tuner.taking_part("add") if of[0].name == "two"]
    suspect = session.gate.suspect(*wrong, torch.device("cpu"), torch.float32)
    session.gate.quarantine.add(suspect, "wrong", "a test says so")
    decided(session)
    assert machine.compiled == ["one", "three"]


def test_a_kernel_without_code_for_its_samples_is_tried_once(machine):
    session = machine.process(**FOUR)
    (two,) = [of for of in session.tuner.taking_part("add") if of[0].name == "two"]
    session.gate.verify(*two, addition(7))
    for size in (1000, 2000):
        machine.disk.add(("two", (size,)))
    machine.compiled.clear()
    tried = len(machine.planned)
    decided(session)
    assert "four" in machine.planned[tried:], "its samples might have been on disk"
    tried = len(machine.planned)
    decided(session, 2000)
    assert set(machine.planned[tried:]) == {"two"}
    assert machine.compiled == []


def test_of_a_toolkit_with_nothing_on_disk_three_kernels_are_tried(machine):
    machine.images = ("two",)
    session = machine.process(**FOUR)
    tried = []
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        machine.planned.clear()
        x = torch.randn(1000).to(dtype)
        session.explain("add", x, x)
        tried.append({*machine.planned})
    assert tried[:3] == [{"one", "two", "three", "four"}] * 3
    assert tried[3] == {"two"}
    assert machine.compiled == []


def recorded(session, sizes=(500, 2000), **us):
    """Write what a measurement of these times an element would have left."""
    owned = {b.label(k): (b, k) for b, k in session.tuner.taking_part("add")}
    for size in sizes:
        seen = tuple(Candidate(n, owned[n][0].name, timing=timing([t * size] * 12)) for n, t in us.items())
        makes = {n: session.chooser.recall.make(*owned[n]) for n in us}
        chosen = min(us, key=us.get)
        found = Page(Decision(chosen, "measured", "it was", seen), timing([1] * 12), makes)
        session.wisdom.write(addition(size), found)


def test_other_problems_tell_which_kernels_may_win(machine):
    session = machine.verified(machine.process(**FOUR))
    recorded(session, torch=10, one=9, two=9, three=5, four=4)
    found = decided(session)
    assert machine.compiled == ["four"]
    assert found.chosen == "four", "it is what is measured that counts"
    assert found["one"].refusal.reason == "not compiled: it won no problem, and others did"


def test_a_record_of_another_device_is_a_prior(machine, monkeypatch):
    here = wisdom.describe
    with monkeypatch.context() as there:
        kin = lambda device: dataclasses.replace(here(device), name="another of the family")  # noqa: E731  a stand-in
        there.setattr("nxcore.spec.problem.describe", kin)
        there.setattr(wisdom, "describe", kin)
        session = machine.process(**FOUR)
        recorded(session, sizes=(500, 1000, 2000), torch=10, one=9, two=9, three=5, four=4)
    session = machine.verified(machine.process(**FOUR))
    assert session.wisdom.read(addition(1000)) is None, "it is another device's"
    assert decided(session).chosen == "four"
    assert machine.compiled == ["four"]


def test_the_next_process_has_the_choice_and_tuning_races_the_others_too(machine):
    assert decided(machine.process(**FOUR)).chosen == "two"
    machine.compiled.clear()
    assert decided(machine.process(**FOUR)).chosen == "two"
    assert machine.compiled == [], "what was pruned isn't new"
    session = machine.process(policy="frozen", **FOUR)
    x = torch.randn(1000)
    cell = ahead.Cell(SPECS["add"], "it", lambda: (x, x, 1, None))
    (row,) = ahead.tuned(session, [cell], effort=fakes.QUICK)
    assert (row.status, row.chosen) == ("measured", "four")
    (row,) = ahead.tuned(session, [cell], effort=fakes.QUICK)
    assert row.status == "known"


def test_a_plugin_more_compiles_nothing_for_a_known_problem_without_a_promise(machine):
    machine.images = ("two",)
    assert decided(machine.process(two=50)).chosen == "two"
    session = machine.process(two=50, four=30)
    raced = tally().races
    found = decided(session)
    assert (found.chosen, found["four"].refusal.code) == ("two", Code.PRUNED)
    assert (machine.compiled, tally().races) == ([], raced)
    session = machine.verified(machine.process(two=50, four=30))
    recorded(session, torch=10, two=5, four=3)
    assert decided(session).chosen == "four"
    assert machine.compiled == ["four"], "it won more"


@pytest.mark.parametrize("policy", ["auto", "measure"])
def test_what_must_be_known_at_once_leaves_out_what_figures_of_elsewhere_lack(machine, policy):
    machine.images = ("two", "four")
    decided(machine.process(two=50))
    session = machine.process(policy=policy, two=50, four=30)
    page = session.wisdom.read(addition(1000))
    session.wisdom.write(addition(1000), dataclasses.replace(page, foreign=True))
    found = decided(session)  # by `auto` in place of its turns
    assert found.chosen == ("two" if policy == "auto" else "four")
    if policy == "auto":
        assert "took no part where the figures were measured" in found["four"].refusal.reason


@pytest.mark.parametrize("changed", ["one", "three", "two"], ids=["a loser", "pruned", "the winner"])
def test_a_known_problem_is_learnt_anew_for_a_changed_winner_alone(machine, changed, monkeypatch):
    machine.images = ("one", "two")
    us = {"one": 60, "two": 50, "three": 40}
    found = decided(machine.process(**us))
    assert (found.chosen, found["three"].refusal.code) == ("two", Code.PRUNED)
    session = machine.process(policy="auto", **us)
    page = session.wisdom.read(addition(1000))
    session.wisdom.write(addition(1000), dataclasses.replace(page, foreign=True))
    asked = []

    def identity(backend, kernel):
        asked.append(backend.name)
        return "2" if backend.name == changed else "1"

    fakes.identified(monkeypatch, identity)
    x = torch.randn(1000)
    found = session.chooser.choose(addition(1000), (x, x, 1, None)).decision
    assert (found.rule, found.chosen) == (("exploring", "torch") if changed == "two" else ("measured", "two"))
    assert changed == "two" or changed not in asked, "an identity takes time"


def test_a_page_knows_whether_it_is_complete():
    seen = (Candidate("torch", "torch", timing=timing([1.0])),)
    assert not Page(Decision("torch", "reference", "", seen), None, {}).pruned
    left = (*seen, Candidate("far", "far", refusal=Refusal(Code.PRUNED, "no")))
    assert Page(Decision("torch", "reference", "", left), None, {}).pruned


class Compiling:
    """Workers that compile what they are asked for at once."""

    def __init__(self, machine, most=2):
        self.machine, self.most, self.asked = machine, most, []

    def ask(self, problem, kernel, answered, heat=0.0, sample=""):
        assert self.machine.compiled == [], "the call waits for all"
        self.asked.append(kernel)
        self.machine.disk.add((kernel, problem["x"].shape))
        answered(Answer())


def test_several_workers_compile_the_shortlist_before_the_race(machine):
    session = machine.verified(machine.process(**FOUR))
    session.tuner.workers = Compiling(machine)
    found = decided(session)
    assert session.tuner.workers.asked == ["one", "two"]
    assert machine.compiled == [], "the call found all on disk"
    assert found.chosen == "two"


def test_one_kernel_or_one_worker_isnt_worth_a_process(machine):
    session = machine.verified(machine.process(one=60))
    session.tuner.workers = Compiling(machine)
    assert decided(session).chosen == "one"
    assert session.tuner.workers.asked == []
    session = machine.verified(machine.process(**FOUR))
    session.tuner.workers = Compiling(machine, most=1)
    decided(session, 2000)
    assert session.tuner.workers.asked == []


def test_a_kernel_on_disk_is_planned_once_for_a_race_and_asked_once_whether_it_accepts(machine, monkeypatch):
    machine.images = ("two",)
    session = machine.process(two=50)
    backend, kernel = session.tuner.taking_part("add")[1]
    session.gate.verify(backend, kernel, addition(1000))
    machine.planned.clear()
    asked, takes = [], Kernel.takes
    monkeypatch.setattr(Kernel, "takes", lambda self, of: asked.append(self) or takes(self, of))
    assert decided(session).chosen == "two"
    assert machine.planned == ["two"]
    assert asked.count(kernel) == 1
