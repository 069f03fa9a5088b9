"""A shortage of the machine refuses no kernel for the rest of the process."""

import errno
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from nxcore.choose import retries
from nxcore.registry import discovery
from nxcore.spec.kernel import Code, Verdict
from nxcore.trust.quarantine import STRIKES
from tests.null import fakes
from tests.null.fakes import SPECS

ADD = SPECS["add"].reference
X = torch.arange(12.0).view(3, 4)
SHORT = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EROFS, "Read-only file system"),
    RecursionError("maximum recursion depth exceeded"),
    MemoryError(),
    torch.OutOfMemoryError("full"),
    ImportError("cannot import name 'x' from partially initialized module 'y'"),
]


class Machine:
    """What a kernel, its planner, its ``accepts`` and its probe raise, while anything is short."""

    def __init__(self, where, error):
        self.where, self.error = where, error

    def meets(self, where):
        if self.error is not None and where == self.where:
            raise self.error

    def kernel(self):
        def call(x, y, alpha, out):
            self.meets("call")
            return ADD(x, y, alpha, out)

        def accepts(problem):
            self.meets("accepts")
            return fakes.YES

        def probe():
            self.meets("probe")
            return Verdict(True)

        return fakes.kernel("add", call, accepts=accepts, probe=probe)


@pytest.fixture
def again(monkeypatch):
    """Return what lets all waits of retries end now."""
    timers = []

    class Timer:
        def __init__(self, seconds, due):
            self.seconds, self.due = seconds, due
            timers.append(self)

        def start(self):
            pass

    monkeypatch.setattr(retries.threading, "Timer", Timer)

    def due():
        waits = [timer.seconds for timer in timers]
        for timer in [*timers]:
            timers.remove(timer)
            timer.due()
        return waits

    return due


@pytest.mark.parametrize("where", ["call", "accepts", "probe"])
@pytest.mark.parametrize("error", SHORT, ids=lambda e: type(e).__name__)
def test_a_kernel_that_met_a_shortage_serves_later(again, where, error):
    machine = Machine(where, error)
    session = fakes.session(fakes.backend("fake", machine.kernel()))
    problems = [torch.ones(3, n) for n in range(1, STRIKES + 3)]
    for x in problems:
        assert torch.equal(session.op("add")(x, x), 2 * x)
    refusal = session.explain("add", X, X).decision["fake"].refusal
    assert refusal.code is Code.MEMORY
    assert list(session.gate.quarantine) == []
    assert again() == [retries.FIRST_S], "one wait for all problems"
    machine.error = None
    for x in problems:
        assert session.explain("add", x, x).decision["fake"].refusal is None
    assert again() == []


def test_waits_become_longer_and_a_fork_has_none(again):
    machine = Machine("call", MemoryError())
    session = fakes.session(fakes.backend("fake", machine.kernel()))
    waits = []
    for _ in range(3):
        session.op("add")(X, X)
        waits += again()
    assert waits == [retries.FIRST_S, 4 * retries.FIRST_S, 16 * retries.FIRST_S]
    session.op("add")(X, X)
    session.chooser.retries.after_fork()
    session.op("add")(torch.ones(2), torch.ones(2))
    assert len(again()) == 2


def test_a_shortage_in_a_call_is_no_strike():
    machine = Machine("call", None)
    session = fakes.session(fakes.backend("fake", machine.kernel()))
    op = session.op("add", backend="fake")
    assert torch.equal(op(X, X), 2 * X)
    machine.error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        op(X, X)
    machine.error = None
    assert torch.equal(op(X, X), 2 * X)
    assert list(session.gate.quarantine) == []


def deep(function, left):
    """Call a function with so many frames left."""
    at, depth = sys._getframe(), 0
    while (at := at.f_back) is not None:
        depth += 1

    def down(n):
        return function() if n <= 0 else down(n - 1)

    return down(sys.getrecursionlimit() - depth - left)


def test_a_first_call_deep_in_a_recursion_is_torchs_and_later_ones_are_the_kernels():
    session = fakes.session(fakes.backend("fake", Machine("", None).kernel()))
    op, served = session.op("add"), 0
    for left in range(20, 120, 10):
        try:
            result = deep(lambda: op(X, X), left)
        except RecursionError:
            continue  # not even torch's function fits
        served += 1
        assert torch.equal(result, 2 * X)
    assert served
    assert list(session.gate.quarantine) == []
    session.chooser.retries._due()
    assert session.explain("add", X, X).decision["fake"].refusal is None


def test_plugins_are_found_deep_in_a_recursion():
    settings = type(
        "Settings", (), {"backends": frozenset({"numba"}), "disable": frozenset(), "strict": True}
    )
    with ThreadPoolExecutor(1) as pool:  # this thread's depth is pytest's
        found = pool.submit(deep, lambda: discovery.installed(settings), 60).result()
    assert found.refused == [] or all(status.status == "disabled" for status in found.refused)
