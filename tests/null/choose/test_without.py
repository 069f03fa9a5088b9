"""NXCORE_NO_JIT and NXCORE_NO_MEASURE: nothing is compiled, nothing is raced, and what is known serves."""

import pytest
import torch

from nxcore.choose.learn.exploration import MET
from nxcore.choose.pairs import Pairs
from nxcore.errors import InvalidInputError, UnsupportedProblemError
from nxcore.offline import ahead
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.compiling import compiling
from nxcore.spec.kernel import Code
from nxcore.spec.problem import Problem
from nxcore.spec.tally import tally
from tests.null import fakes
from tests.null.fakes import SPECS

ADD = SPECS["add"].reference
X = torch.arange(12.0).view(3, 4)


def compiled(disk):
    """Return a planner whose code is on ``disk`` once it was compiled."""

    def plan(problem):
        if problem.op not in disk:
            compiling(problem.op)
            disk.add(problem.op)
        return lambda *args: ADD(*args)

    return plan


def process(folder, disk, *, clock, announces=True, **settings):
    """Return a session with a backend that compiles, and is twice as fast as torch."""
    call = compiled(disk)
    kernel = fakes.kernel("add", None, announces=announces, target="fast:plan")
    planner = lambda problem: clock.costing(50, call(problem))  # noqa: E731  one expression
    object.__setattr__(kernel, "planner", planner)
    settings = Settings(**({"cache": folder, "policy": "measure"} | settings))
    return Session(
        settings, fakes.registry(fakes.backend("fast", kernel), specs=fakes.addition(clock)), fakes.QUICK
    )


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Return a function from settings to a session; all share a cache and a disk of compiled code."""
    clock, disk = fakes.Clock(), set()
    fakes.clocked(monkeypatch, clock)
    fakes.identified(monkeypatch)
    return lambda **how: process(tmp_path, how.pop("disk", disk), clock=clock, **how)


def test_what_isnt_on_disk_is_refused_and_nothing_is_compiled(world):
    before, session = tally(), world(jit=False)
    found = session.explain("add", X, X).decision
    assert found.chosen == "torch"
    refusal = found["fast"].refusal
    assert refusal.code == Code.UNCOMPILED
    assert "NXCORE_NO_JIT is set: add" in refusal.reason
    assert refusal.hint == "unset NXCORE_NO_JIT"
    assert tally() == before, "nothing was compiled, and there was nothing to race"
    assert session.wisdom.read(Problem.of(session.op("add").spec, (X, X, 1, None))) is None
    assert world().explain("add", X, X).decision.chosen == "fast"
    assert tally().compilations == before.compilations + 1
    assert world(jit=False).explain("add", X, X).decision.chosen == "fast", "it is on disk"
    assert tally().compilations == before.compilations + 1


def test_a_call_that_needs_other_code_is_torchs(world, monkeypatch):
    """As Triton, which compiles again for memory that isn't aligned."""
    disk = {"add"}
    assert world(disk=disk).explain("add", X, X).decision.chosen == "fast"
    before, session = tally(), world(jit=False, disk=disk)
    planned = session.registry.backends["fast"].kernels[0].planner

    def plan(problem):
        call = planned(problem)
        return lambda x, y, *rest: compiling("add, elsewhere") if x.data_ptr() % 16 else call(x, y, *rest)

    object.__setattr__(session.registry.backends["fast"].kernels[0], "planner", plan)
    add, odd = session.op("add"), torch.arange(13.0)[1:].view(3, 4)
    assert odd.data_ptr() % 16
    for x in (X, odd, X):
        assert torch.equal(add(x, X), x + X)
    assert session.explain("add", X, X).decision.chosen == "fast"
    assert tally().compilations == before.compilations


def test_a_record_doesnt_compile_either(world):
    assert world().explain("add", X, X).decision.chosen == "fast"
    before = tally()
    session = world(jit=False, disk=set())
    assert torch.equal(session.op("add")(X, X), 2 * X)
    found = session.explain("add", X, X).decision
    assert found.chosen == "torch"
    assert tally().compilations == before.compilations


def test_a_kernel_that_announces_nothing_is_refused(world):
    found = world(jit=False, announces=False).explain("add", X, X).decision
    assert found["fast"].refusal.code == Code.UNCOMPILED
    assert "doesn't announce" in found["fast"].refusal.reason
    with pytest.raises(UnsupportedProblemError, match="NXCORE_NO_JIT"):
        world(jit=False, announces=False).op("add", backend="fast")(X, X)


@pytest.mark.parametrize("policy", ["auto", "measure"])
def test_nothing_is_raced_and_torch_serves_the_unknown(world, policy):
    before, session = tally().races, world(policy=policy, measure=False)
    for _ in range(2 * MET):
        assert torch.equal(session.op("add")(X, X), 2 * X)
    session.chooser.learner.settle(10)
    found = session.explain("add", X, X).decision
    assert (found.chosen, found.rule) == ("torch", "prior")
    assert found.reason.endswith("NXCORE_NO_MEASURE is set")
    assert not session.learning
    with session.policy("measure"):
        assert torch.equal(session.op("add")(X, X), 2 * X)
    assert tally().races == before


@pytest.mark.parametrize("policy", ["auto", "measure"])
def test_what_is_recorded_serves_without_a_race(world, policy):
    world().explain("add", X, X)
    before, session = tally(), world(policy=policy, measure=False, jit=False)
    assert torch.equal(session.op("add")(X, X), 2 * X)
    found = session.explain("add", X, X).decision
    assert (found.chosen, found.rule) == ("fast", "measured")
    assert tally() == before


def test_pairs_arent_raced(tmp_path, monkeypatch):
    fakes.identified(monkeypatch)
    measured = []
    monkeypatch.setattr(Pairs, "measure", lambda *args, **how: measured.append(args))
    settings = Settings(cache=tmp_path, policy="measure", measure=False)
    session = Session(settings, fakes.registry(fakes.backend()), fakes.QUICK)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    for _ in range(12):
        session.op("avg_pool2d")(x, 2).sum().backward()
    assert measured == []


def test_tuning_is_measuring(world):
    with pytest.raises(InvalidInputError, match="NXCORE_NO_MEASURE is set"):
        next(ahead.tuned(world(measure=False), []))


@pytest.mark.parametrize(("text", "allowed"), [("1", False), ("true", False), ("0", True), (" off ", True)])
def test_both_are_read_from_the_environment(text, allowed):
    found = Settings.from_environment({"NXCORE_NO_JIT": text, "NXCORE_NO_MEASURE": text})
    assert (found.jit, found.measure) == (allowed, allowed)
