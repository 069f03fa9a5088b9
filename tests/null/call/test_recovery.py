"""A kernel fails in a call: the caller gets the right answer and one warning, and calls like it move on."""

import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from nxcore import session
from nxcore.context import KernelWarning
from nxcore.errors import DeviceLostError
from nxcore.store.files import Store
from nxcore.trust import gate
from nxcore.trust.quarantine import STRIKES
from tests.null import fakes
from tests.null.fakes import SPECS

ADD = SPECS["add"].reference
X = torch.arange(12.0).view(3, 4)
ROOT = Path(__file__).parents[3]


def racing(monkeypatch, **times):
    """Return a session in which each backend takes so many microseconds for an add, and its kernels."""
    clock, kernels = fakes.Clock(), {name: fakes.Moody() for name in times if name != "torch"}
    found = fakes.scripted(clock, monkeypatch, "add", {"torch": times["torch"]})
    for name, kernel in kernels.items():
        found.registry.add_backend(
            fakes.backend(name, fakes.kernel("add", clock.costing(times[name], kernel))),
            fakes.Source(name, f"nxcore-{name} 1.0"),
        )
    return found, kernels


def test_the_runner_up_takes_the_call_and_all_like_it(monkeypatch):
    found, kernels = racing(monkeypatch, torch=100, first=20, second=40, slow=200)
    op = found.op("add")
    op(X, X)
    kernels["first"].error = RuntimeError("no")
    with pytest.warns(
        KernelWarning, match="first, a kernel of 'add', raised RuntimeError: no .*; second serves"
    ):
        assert torch.equal(op(X, X), 2 * X)
    calls = kernels["second"].calls
    assert torch.equal(op(X, X + 1), 2 * X + 1)
    assert kernels["second"].calls == calls + 1
    decision = found.explain("add", X, X).decision
    assert (decision.chosen, decision.rule) == ("second", "measured")
    assert decision.reason.startswith("first was chosen before and raised RuntimeError: no")
    assert "RuntimeError: no" in decision["first"].refusal.reason


def test_where_the_runner_up_fails_too_torch_takes_the_call(monkeypatch):
    found, kernels = racing(monkeypatch, torch=100, first=20, second=40)
    op = found.op("add")
    op(X, X)
    for kernel in kernels.values():
        kernel.error = RuntimeError("no")
    with pytest.warns(KernelWarning, match="torch serves"):
        assert torch.equal(op(X, X), 2 * X)
    assert found.explain("add", X, X).decision.chosen == "torch"


def test_a_kernel_that_raises_on_one_problem_after_another_is_quarantined(monkeypatch):
    found, kernels = racing(monkeypatch, torch=100, first=20)
    op, problems = found.op("add"), [torch.ones(n) for n in range(3, 5 + STRIKES)]
    for x in problems:
        op(x, x)
    kernels["first"].error = RuntimeError("no")
    for x in problems[:STRIKES]:
        with pytest.warns(KernelWarning, match="raised RuntimeError: no"):
            assert torch.equal(op(x, x), 2 * x)
    calls = kernels["first"].calls
    for x in problems:  # those that never failed are taken from it too
        assert torch.equal(op(x, x), 2 * x)
    assert kernels["first"].calls == calls
    (entry,) = found.gate.quarantine
    assert (entry.kind, entry.kernel) == ("raised", "first")
    assert f"raised on {STRIKES} problems" in found.explain("add", X, X).decision["first"].refusal.reason


def test_two_hundred_calls_of_eight_threads_get_right_answers_and_one_warning(monkeypatch):
    found, kernels = racing(monkeypatch, torch=100, first=20, second=40)
    op, barrier = found.op("add"), threading.Barrier(8)
    op(X, X)
    kernels["first"].error = RuntimeError("no")

    def work(thread):
        barrier.wait(timeout=20)
        return all(torch.equal(op(X, X + i + thread), 2 * X + i + thread) for i in range(25))

    with warnings.catch_warnings(record=True) as caught, ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("always")
        assert all(pool.map(work, range(8)))
    assert [w.category for w in caught] == [KernelWarning]
    assert kernels["second"].calls >= 200


def test_one_candidate_that_fails_while_it_is_measured_leaves_the_race_to_the_others(monkeypatch):
    verified = fakes.verified_runs("add")

    class Tired(fakes.Moody):
        def __call__(self, *args):
            if self.calls > verified + 1:
                self.error = self.fault
            return super().__call__(*args)

    for fault, why in (
        (RuntimeError("too hot"), "raised RuntimeError: too hot"),
        (torch.OutOfMemoryError("full"), "out of memory; it is tried again later"),
    ):
        tired = Tired()
        tired.fault = fault
        found, _ = racing(monkeypatch, torch=100, second=40)
        found.registry.add_backend(
            fakes.backend("tired", fakes.kernel("add", tired)), fakes.Source("tired", "t 1")
        )
        decision = found.explain("add", X, X).decision
        assert decision.chosen == "second"
        assert decision["tired"].refusal.reason.startswith(why)


def test_out_of_memory_at_the_first_run_drops_the_candidate():
    def hungry(x, y, alpha, out):
        if x.shape == (3, 4):
            raise torch.OutOfMemoryError("full")
        return ADD(x, y, alpha, out)

    found = fakes.session(fakes.backend("fake", fakes.kernel("add", hungry)))
    assert torch.equal(found.op("add")(X, X), 2 * X)
    assert (
        found.explain("add", X, X).decision["fake"].refusal.reason == "out of memory; it is tried again later"
    )
    assert list(found.gate.quarantine) == []


def test_gradients_come_from_the_runner_up_too(monkeypatch):
    found, kernels = racing(monkeypatch, torch=100, first=20, second=40)
    op, leaf = found.op("add"), X.clone().requires_grad_()
    op(leaf, X).sum().backward()
    kernels["first"].error = RuntimeError("no")
    leaf.grad = None
    with pytest.warns(KernelWarning, match="second serves"):
        op(leaf, X).sum().backward()
    assert torch.equal(leaf.grad, torch.ones_like(X))


@pytest.fixture
def gone(monkeypatch):
    """Nothing on the device works any more once a reason is appended; CPU tensors stand for CUDA's."""
    reasons = []
    for module in (gate, session):
        monkeypatch.setattr(module, "lost", lambda device: reasons[0] if reasons else "")
    return reasons


def test_a_lost_device_is_told_once_and_never_blamed_on_the_next_operator(monkeypatch, gone):
    found, _ = racing(monkeypatch, torch=100, first=20)
    op, total = found.op("add"), found.op("sum")
    op(X, X)
    total(X)
    gone.append("CUDA error: an illegal memory access was encountered")

    def dead(*args):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    for key in total.plans:
        total.replan(key, dead)
    with pytest.raises(
        DeviceLostError, match=r"a call of 'sum'.*an earlier launch may be the cause: first"
    ) as caught:
        total(X)
    assert not caught.value.sure
    assert not op.plans, "every plan is forgotten"
    assert list(found.gate.quarantine) == [], "nobody knows who it was"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session._on_lost_device = lambda problem: True
        for again in (op, total):
            with pytest.raises(DeviceLostError, match="Restart the process"):
                again(X, X) if again is op else again(X)


ENDED = """
import pathlib, sys, torch
from nxcore.errors import DeviceLostError
from nxcore.session import Session
from nxcore.settings import Settings
from tests.null import fakes

def ending(x, y, alpha, out):  # a device-side assertion ends the context as an illegal access does
    return x.flatten()[torch.full((1,), 10**9, device=x.device)]

backend = fakes.backend("fake", fakes.kernel("add", ending))
settings = Settings(cache=pathlib.Path(sys.argv[1]), policy="measure")
session = Session(settings, fakes.registry(backend), fakes.QUICK)
x = torch.ones(3, 4, device="cuda")
for op, args in (("add", (x, x)), ("sum", (x,)), ("add", (x, x))):
    try:
        session.op(op)(*args)
    except DeviceLostError as error:
        print(error.op, error.kernel, error.sure)
print(float(session.op("sum")(torch.ones(5))))
"""


@pytest.mark.gpu
def test_a_context_that_a_kernel_ended_is_told_once_and_the_kernel_is_quarantined(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ENDED, str(tmp_path)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.stdout.splitlines() == ["add fake True"] * 3 + ["5.0"], done.stderr[-2000:]
    ((key, entry),) = Store(tmp_path).items("quarantine")
    assert (key["op"], key["kernel"], entry["kind"]) == ("add", "fake", "crashed")
