"""Family decisions: under online a size between two that one kernel clearly won is served by it, unlearnt."""

import logging
from dataclasses import replace

import pytest
import torch

from nxcore.call.gradient_route import gain_us, pays
from nxcore.call.rare import RARE
from nxcore.choose import family
from nxcore.choose.chooser import enough
from nxcore.choose.contenders import Choice
from nxcore.choose.family import End, Point, comparable, enclosing, end
from nxcore.choose.learn.budget import Pace
from nxcore.choose.learn.confirmation import CALLS
from nxcore.choose.learn.exploration import MET
from nxcore.choose.learn.learner import Learner
from nxcore.measure.decision import Candidate, Decision, Interval, decide
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.compiling import UncompiledError
from nxcore.spec.kernel import YES, no
from nxcore.spec.problem import Problem
from nxcore.spec.spec import Cost
from nxcore.store.pages import Page
from nxcore.store.wisdom import environment
from nxcore.trust.gate import Gate
from tests.null import fakes
from tests.null.calls import addition
from tests.null.fakes import SPECS, timing

ADD = SPECS["add"].reference


# ---- the pure function


def place(*sizes, total=None, flops=None, grain=16, branch=None):
    count = total or sizes[0] * 4
    return Point(sizes, Cost(count, flops or count // 4), grain=grain, branches=branch or {})


def won(*sizes, label="fast", ahead=1.5, **how):
    return End(place(*sizes, **how), label, ahead, 10.0)


def between(at, *ends):
    found = enclosing(at, [e for e in ends if comparable(at, e.point)])
    return found and tuple(e.point.sizes for e in found)


def test_a_size_between_two_that_one_kernel_clearly_won_is_its_own():
    assert between(place(1000), won(500), won(2000)) == ((500,), (2000,))
    assert between(place(1000), won(1000), won(2000)) == ((1000,), (2000,))
    assert between(place(1000), won(300), won(900), won(1100), won(2500)) == ((900,), (1100,)), "the nearest"


@pytest.mark.parametrize(
    ("at", "ends"),
    [
        (place(2001), (won(500), won(2000))),
        (place(1000), (won(500),)),
        (place(1000), ()),
        (place(1000), (won(500), won(2000, label="other"))),
        (place(1000), (won(500), won(2000, ahead=1.04))),
        (place(1000), (won(500), won(2000, label="torch", ahead=0.0))),
        (place(1000), (won(200), won(2000))),
        (place(1000, grain=4), (won(500), won(2000))),
        (place(1000), (won(500), won(2000), won(1500, label="torch", ahead=0.0))),
        (place(1000), (won(400), won(2000), won(600, label="other"))),
        (place(1000, branch={"fast": 2}), (won(500, branch={"fast": 1}), won(2000, branch={"fast": 1}))),
        (place(1000, flops=9000), (won(500), won(2000))),
        (place(1000, 8), (won(500, 4), won(2000, 4))),
        (place(1000, total=16000), (won(500), won(2000))),
    ],
    ids=[
        "beyond",
        "one end",
        "no end",
        "two winners",
        "a margin that is too small",
        "torch at one end",
        "too far away",
        "narrower loads",
        "torch within",
        "another one within",
        "another branch of the kernel",
        "another amount of work",
        "beyond in one size",
        "more bytes than both",
    ],
)
def test_elsewhere_it_must_be_learnt(at, ends):
    assert between(at, *ends) is None


def test_of_many_measured_sizes_the_nearest_are_compared():
    ends = [won(n) for n in range(100, 1100)]
    assert between(place(500, grain=16), *ends) is not None
    assert between(place(2000), *ends) is None


def test_an_end_is_a_winner_by_the_rule_with_its_interval():
    def decided(rule="measured", captured=None, **us):
        timed = [Candidate(n, n, timing=timing([t] * 12)) for n, t in us.items()]
        return replace(decide(timed, timed[0].timing), rule=rule, captured=captured)

    found = end(place(1000), decided(torch=30, fast=10))
    assert (found.label, found.ahead, found.saves_us) == ("fast", *map(pytest.approx, (3, 20)))
    assert found.clear
    slower = end(place(1000), decided(torch=10, fast=30))
    assert (slower.label, slower.clear) == ("torch", False)
    assert not end(place(1000), decided("reference", torch=30, fast=10)).clear
    assert not end(place(1000), decided(captured=Decision("torch", "reference", ""), torch=30, fast=10)).clear
    assert end(place(1000), decided(captured=Decision("fast", "measured", ""), torch=30, fast=10)).clear
    wide = Candidate("fast", "fast", timing=timing([10.0]), ratio=Interval(1.5, 0.9, 2.0))
    assert not end(place(1000), Decision("fast", "measured", "", (wide,))).clear


# ---- in calls


class World:
    """A process whose kernels and torch take scripted times a element, and a record of some sizes."""

    def __init__(self, folder, monkeypatch):
        fakes.identified(monkeypatch)
        self.folder, self.clock, self.runs = folder, fakes.Clock(), []

    def process(self, *backends, audit=False, policy="auto", **us):
        specs = fakes.addition(self.clock, us.pop("torch", 100))
        made = [fakes.backend(n, self.kernel(n, t)) for n, t in us.items()]
        settings = Settings(audit=audit, cache=self.folder, policy=policy)
        session = Session(settings, fakes.registry(*made, *backends, specs=specs), fakes.QUICK)
        chooser = session.chooser
        chooser.learner = Learner(
            chooser.recall, session._forget, self.clock, Pace(share=float("inf")), family=chooser.between
        )
        return session

    def kernel(self, name, us, **how):
        timed = self.clock.costing(us, ADD)

        def run(*args):
            self.runs.append(name)
            return timed(*args)

        return fakes.kernel("add", how.pop("call", run), target=f"{name}:plan", **how)


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


def wrote(session, problems, us):
    """Write the pages of measurements with these times, into a record that was read."""
    session.wisdom.shelf(environment(torch.device("cpu")), "any")
    for of in problems:
        owned = {b.label(k): (b, k) for b, k in session.tuner.taking_part(of.op)}
        makes = {n: session.chooser.recall.make(*k) for n, k in owned.items()}
        timed = [Candidate(n, owned[n][0].name, timing=timing([t] * 12)) for n, t in us.items()]
        again = fakes.replace(timing([us["torch"]] * 12), repeats="torch")
        session.wisdom.write(of, Page(decide(timed, again), again, makes))


def record(session, sizes=(512, 2048), verified=True, **us):
    """Leave what measurements of these times would have left; verify the kernels, and read the record."""
    owned = {b.label(k): (b, k) for b, k in session.tuner.taking_part("add")}
    wrote(session, map(addition, sizes), us)
    for label in us if verified else ():
        if label != "torch":
            session.tuner.enter(*owned[label], addition(4), (torch.zeros(4), torch.zeros(4), 1, None))


def called(session, size, times):
    x = torch.randn(size)
    for _ in range(times):
        assert torch.equal(session.op("add")(x, x), 2 * x)
    return session.chooser.known(addition(size))


def test_the_kernel_serves_from_the_fourth_call_on_and_nothing_is_learnt(world):
    session = world.process(fast=50)
    record(session, torch=100, fast=50)
    world.runs.clear()
    assert called(session, 1024, RARE) is None
    assert world.runs == [], "torch serves a size that may never come back"
    choice = called(session, 1024, 1)
    assert (choice.decision.chosen, choice.decision.rule) == ("fast", "family")
    assert world.runs == ["fast", "fast"], "its first run is a run of its own"
    called(session, 1024, 40)
    assert world.runs == ["fast"] * 42
    assert session.chooser.known(addition(1024)).decision.rule == "family"
    assert session.chooser.learner.preparing.thread is None


def test_explain_names_the_rule_and_the_sizes(world):
    session = world.process(fast=50)
    record(session, torch=100, fast=50)
    called(session, 1024, RARE + 1)
    x = torch.randn(1024)
    told = session.explain("add", x, x, decide=False)
    assert (told.decision.chosen, told.decision.rule) == ("fast", "family")
    assert "fast runs it (family): it won at two measured sizes of the family around this one" in str(told)
    assert "at least 2.00x at 512 and at least 2.00x at 2048" in str(told)
    assert "to change it: a measurement of this problem: nxcore tune add, or policy 'measure'" in str(told)


def test_a_measurement_replaces_it():
    choice = Choice(Decision("fast", "family", ""), ADD, None, None)
    assert [enough(choice, policy) for policy in ("auto", "known", "measure")] == [True, True, False]


@pytest.mark.parametrize(
    ("sizes", "us"),
    [((512, 900), {"fast": 50}), ((512, 2048), {"fast": 98}), ((512, 2048), {"fast": 150})],
    ids=["not between", "too small a margin", "torch won"],
)
def test_where_the_record_doesnt_say_so_the_size_is_learnt(world, sizes, us):
    session = world.process(**us)
    record(session, sizes, torch=100, **us)
    assert called(session, 1024, RARE + 1).decision.rule == "exploring"


def test_a_kernel_that_isnt_verified_or_must_be_compiled_is_learnt_so_no_call_waits(world, monkeypatch):
    session = world.process(fast=50)
    record(session, torch=100, fast=50, verified=False)
    verified = []
    verify = Gate.verify
    monkeypatch.setattr(Gate, "verify", lambda *a: verified.append(a) or verify(*a))
    assert called(session, 1024, RARE + 1).decision.rule == "exploring"
    assert verified == []

    def planner(of):
        if of["x"].shape == (1024,):
            raise UncompiledError("its code")
        return ADD

    session = world.process(fakes.backend("fast", fakes.kernel("add", planner=planner)))
    record(session, torch=100, fast=50)
    assert called(session, 1024, RARE + 1).decision.rule == "exploring"


def test_the_real_size_is_asked_whether_it_can_be_served(world):
    def odd(p):
        return YES if p["x"].shape[0] % 3 else no("odd")

    backend = fakes.backend("fast", world.kernel("fast", 50, accepts=odd))
    session = world.process(backend)
    record(session, torch=100, fast=50)
    assert called(session, 1024, RARE + 1).decision.rule == "family"
    assert called(session, 1200, RARE + 1).decision.rule == "exploring"


def test_a_changed_or_a_new_kernel_has_the_sizes_learnt(world):
    record(world.process(fast=50), torch=100, fast=50)
    session = world.process(fast=50)
    record(session, ())
    assert called(session, 1024, RARE + 1).decision.rule == "family"
    session = world.process(fast=50, new=20)
    record(session, (), fast=50, new=20)
    assert called(session, 1040, RARE + 1).decision.rule == "exploring"


def test_a_kernel_that_fails_its_first_run_is_learnt_and_torch_serves(world):
    def broken(x, y, alpha=1, out=None):
        if x.numel() == 1024:
            raise RuntimeError("no")
        return ADD(x, y, alpha=alpha)

    session = world.process(fakes.backend("fast", world.kernel("fast", 50, call=broken)))
    record(session, torch=100, fast=50)
    assert called(session, 1024, RARE + 1).decision.rule == "exploring"


def test_a_wrong_result_is_found_by_the_watch(world):
    """Right on every sample and at its first look: wrong from then on, at sizes in between."""

    def wrong(x, y, alpha=1, out=None):
        result = ADD(x, y, alpha=alpha)
        return result + 1 if x.numel() == 1024 else result

    session = world.process(fakes.backend("fast", world.kernel("fast", 50, call=wrong)), audit=True)
    record(session, torch=100, fast=50)
    x = torch.randn(1024)
    for _ in range(200):
        session.op("add")(x, x)
        session.chooser.learner.settle(30)
    assert torch.equal(session.op("add")(x, x), 2 * x)
    backend, kernel = next((b, k) for b, k in session.tuner.taking_part("add") if b.name == "fast")
    assert session.gate.refusal(backend, kernel, addition(1024)) is not None, "it is in quarantine"


def test_a_size_at_which_it_is_slower_is_found_and_learnt(world, caplog, raced_by):
    """The kernel takes 1.3 times as long as torch here, other than at both ends."""
    from nxcore.measure import race

    run = race.race
    raced_by(lambda *a, **k: run(*a, **{**k, "clock": world.clock}))
    session = world.process(fast=130)
    record(session, torch=100, fast=50)
    assert called(session, 1024, RARE + 1).decision.rule == "family"
    with caplog.at_level(logging.WARNING, "nxcore"):
        called(session, 1024, CALLS)
        session.chooser.learner.settle(30)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("confirmation: ")]
    assert len(lines) == 1
    assert "fast takes 1.30 times as long as torch here" in lines[0]
    for _ in range(400):
        called(session, 1024, 1)
        session.chooser.learner.settle(30)
    assert session.chooser.known(addition(1024)).decision.chosen == "torch"
    assert session.wisdom.read(addition(1024)).decision.chosen == "torch", "its own figures"


@pytest.mark.parametrize("us", [{}, {"torch": 100, "fast": 150}], ids=["nothing measured", "torch won"])
def test_no_call_waits_for_identities_or_descriptions_where_no_family_can_serve(world, monkeypatch, us):
    """The first of a process take a second."""
    session = world.process(fast=50)
    record(session, (512, 2048) if us else (), **us)
    asked = []
    session.chooser.recall.make = lambda *_: asked.append("identity")
    if not us:  # what was measured has a point, too
        monkeypatch.setattr(family, "point", lambda *_: asked.append("description"))
    assert session.chooser.between(addition(1024)) is None
    assert asked == []


def test_no_call_waits_for_the_record_to_be_read(world):
    record(world.process(fast=50), torch=100, fast=50)
    session = world.process(fast=50)
    assert called(session, 1024, RARE + 1).decision.rule == "exploring"
    assert not session.wisdom.shelved(environment(torch.device("cpu")))
    called(session, 1024, MET)
    session.chooser.learner.settle(30)
    assert session.chooser.known(addition(1024)).decision.rule == "family", "it was read in the background"
    assert called(session, 1040, RARE + 1).decision.rule == "family"


def test_sizes_met_before_any_was_measured_are_decided_by_those_learnt_first(world):
    session = world.process(fast=50)
    exploring = called(session, 1024, RARE + 1)
    assert exploring.decision.rule == "exploring"
    record(session, torch=100, fast=50)
    world.runs.clear()
    called(session, 1024, MET - RARE - 1)  # a further one may be served by the kernel already
    session.chooser.learner.settle(30)
    assert session.chooser.known(addition(1024)).decision.rule == "family"
    assert world.runs == ["fast"], "on random numbers, in the background"
    called(session, 1024, 3)
    assert world.runs == ["fast"] * 4


# ---- with gradients


def differentiated(size):
    return Problem.of(SPECS["entropy"], (torch.empty(4, size),), needs_grad=True)


@pytest.mark.parametrize("torchs", [100, 20])
def test_with_a_gradient_the_least_savings_at_the_ends_must_pay_for_the_bridge(torchs, monkeypatch):
    """The kernel takes half of torch's time; half of the bridge takes 6.5 us."""
    fakes.identified(monkeypatch)
    session = Session(Settings(audit=False), fakes.registry(fakes.backend("fast")), fakes.QUICK)
    us = {"torch": torchs, "fast": torchs / 2}
    wrote(session, map(differentiated, (512, 2048)), us)
    (owned,) = [(b, k) for b, k in session.tuner.taking_part("entropy") if b.name == "fast"]
    session.tuner.enter(*owned, differentiated(8), (torch.ones(4, 8),))
    x = torch.randn(4, 1024, requires_grad=True)
    for _ in range(RARE + 1):
        torch.testing.assert_close(session.op("entropy")(x), SPECS["entropy"].reference(x))
    choice = session.chooser.known(differentiated(1024))
    assert choice.decision.rule == "family"
    assert gain_us(choice, 6.5) == pytest.approx(torchs / 2 - 6.5)
    assert pays(choice, 6.5) == (torchs / 2 > 13)
