"""What would end the program is a kernel's fault where the kernel raises it, and Ctrl-C is nobody's."""

import contextlib
import functools
import signal
import sys
import warnings

import pytest
import torch

from nxcore.context import KernelWarning
from nxcore.errors import VerificationError
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.exits import leave
from nxcore.spec.kernel import YES
from nxcore.testing import examine
from nxcore.trust.quarantine import Quarantine
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.table import for_each

X = torch.randn(3, 50)
LOGITS = torch.rand(8, 40, requires_grad=True)
(GRADIENT,) = torch.autograd.grad(SPECS["entropy"].reference(*SPECS["entropy"].bind(LOGITS)).sum(), LOGITS)
ADD = Quarantine.add


def generator():
    raise GeneratorExit


def interrupt():
    raise KeyboardInterrupt


def in_a_handler(raised):
    """A handler of another signal raises, as frameworks' do at the end of a job."""

    def handler(*given):
        raise raised

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def converted():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        sys.exit(1)


EXITS = {
    "SystemExit": functools.partial(sys.exit, 3),
    "GeneratorExit": generator,
    "KeyboardInterrupt": interrupt,
}
OUTSIDE = {
    "Ctrl-C": functools.partial(signal.raise_signal, signal.SIGINT),
    "Ctrl-C, turned into another exit": converted,
    "the exit of a handler": functools.partial(in_a_handler, SystemExit(2)),
    "the interruption of a handler": functools.partial(in_a_handler, KeyboardInterrupt()),
    "the end of the program": leave,
}

PLACES = ("accepts", "planner", "gate", "race", "call", "strict call", "backward call", "audit")


class Kernel:
    """Right, but for what it does at one place of its life."""

    def __init__(self, op, act):
        self.op, self.act, self.place, self.calls = op, act, "", 0

    def at(self, place, *, now=True):
        if self.place == place and now:
            self.act()

    def accepts(self, problem):
        self.at("accepts")
        return YES

    def plan(self, problem):
        self.at("planner")
        return self.run

    def run(self, *args):
        self.calls += 1
        self.at("gate")
        self.at("race", now=self.calls > fakes.verified_runs(self.op) + 3)
        self.at("call")
        self.at("audit", now=self.calls < 0)
        if self.place == "audit":
            self.calls = -9  # it is wrong, and acts where that is confirmed
        result = SPECS[self.op].reference(*args)
        return result + 1 if self.place == "audit" else result


def provoked(place, act):
    """Have a kernel act; return its session, and what the user's calls return."""
    backward = place == "backward call"
    kernel = Kernel("entropy_backward" if backward else "add", act)
    made = fakes.kernel(kernel.op, planner=kernel.plan, accepts=kernel.accepts, dtypes=(torch.float32,))
    session = Session(Settings(policy="measure"), fakes.registry(fakes.backend("hostile", made)), fakes.QUICK)
    strict = "hostile" if place == "strict call" else None

    def run():
        if backward:
            return torch.autograd.grad(session.op("entropy")(LOGITS).sum(), LOGITS)[0]
        return session.op("add", backend=strict)(X, X)

    preferred = session.use("hostile") if "call" in place or place == "audit" else contextlib.nullcontext()
    with preferred:
        if "call" in place or place == "audit":
            run()
        kernel.place = "call" if "call" in place else place
        return session, [run() for _ in range(3)]


@for_each("place", PLACES)
@for_each("name", EXITS)
def test_it_is_the_kernels_fault_and_the_caller_has_torchs_result(name, place, monkeypatch):
    kept = []
    monkeypatch.setattr(Quarantine, "add", lambda *args: kept.append(args[2:]) or ADD(*args))
    strict = pytest.raises(VerificationError, match=name)
    with warnings.catch_warnings(), strict if place == "strict call" else contextlib.nullcontext():
        warnings.simplefilter("ignore", KernelWarning)
        _, results = provoked(place, EXITS[name])
        right = GRADIENT if place == "backward call" else X + X
        torch.testing.assert_close(results, [right] * 3)
    convicted = [kind for kind, why in kept if f"raised {name}" in why]
    assert convicted == ["wrong"] * (place != "accepts")


@for_each("place", PLACES)
@for_each("name", OUTSIDE)
def test_what_comes_from_outside_goes_on_at_once_and_convicts_nobody(name, place, monkeypatch):
    kept = []
    monkeypatch.setattr(Quarantine, "add", lambda *args: kept.append(args[2:]) or ADD(*args))
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        provoked(place, OUTSIDE[name])
    assert not kept


@pytest.mark.parametrize("place", ["planner", "call"])
def test_it_breaks_a_rule_of_the_kit(place):
    kernel = Kernel("add", EXITS["SystemExit"])
    kernel.place = place
    made = fakes.kernel("add", planner=kernel.plan, dtypes=(torch.float32,))
    (row,) = examine(fakes.registry(fakes.backend("hostile", made)), ops=["add"])
    assert "raises_nothing" in row.rules, row.broken


def test_the_compiled_path_of_calls_sees_an_exit_too():
    """With the extension the call of a plan is in C++; where it isn't built, calls go the other way."""
    _, kernel = None, Kernel("add", EXITS["GeneratorExit"])
    made = fakes.kernel("add", planner=kernel.plan, dtypes=(torch.float32,))
    session = Session(Settings(policy="measure", audit=False), fakes.registry(fakes.backend("hostile", made)))
    with session.use("hostile"):
        for _ in range(3):
            session.op("add")(X, X)
        kernel.place = "call"
        with pytest.warns(KernelWarning, match="raised ExitError: raised GeneratorExit"):
            assert torch.equal(session.op("add")(X, X), X + X)
