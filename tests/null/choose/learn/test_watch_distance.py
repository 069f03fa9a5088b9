"""Watches: which calls are audited beyond the share of time, and how closely."""

import contextlib

import pytest
import torch

from nxcore.choose.learn import watch, watches
from nxcore.context import KernelWarning, as_captured
from tests.null.choose.learn.test_watch import X, watching


@pytest.mark.parametrize(("run", "later"), [(as_captured, 0), (contextlib.nullcontext, 1)])
def test_a_run_is_audited_for_some_time_then_each_problem_once_or_each_kernel_for_captures(
    run, later, monkeypatch
):
    session, _ = watching()

    def audits(sizes):
        with session.use("watched"), run():
            for n in sizes:
                session.op("add")(X[:n], X[:n])
        return [w._audits for w in session.chooser.watches._known.values()]

    assert audits([1, 1, 2, 3]) == [2, 1, 1]
    monkeypatch.setattr(watches, "EARLY_S", 0.0)
    assert audits([4, 5, 5]) == [2, 1, 1, later, later]
    session.chooser.watches._rotas.clear()
    assert audits([6, 7]) == [2, 1, 1, later, later, 1, later], "the first of each kernel"


def test_a_call_that_is_not_audited_runs_no_reference(monkeypatch):
    session, kernel = watching()
    monkeypatch.setattr(watches.Watches, "early", lambda self, watch, calls: False)
    runs, run = [], watch.Watch._reference
    monkeypatch.setattr(watch.Watch, "_reference", lambda self, args: runs.append(1) or run(self, args))
    with session.use("watched"), as_captured():
        for _ in range(3):
            assert session.op("add")(X, X).equal(2 * X)
        assert not runs
        kernel.call = lambda *_: torch.ones(3)
        with pytest.warns(KernelWarning, match="shape must be torch's"):
            assert session.op("add")(X, X).equal(2 * X)


def test_the_free_memory_is_asked_for_once_a_second(monkeypatch, cuda_answers):
    now, asked = [0.0], []
    monkeypatch.setattr(watches.time, "monotonic", lambda: now[0])
    cuda_answers(mem_get_info=lambda device: asked.append(device) or (400, 500))
    session, _ = watching()
    room, device = session.chooser.watches.room, torch.device("cuda", 0)
    assert [room(n, device) for n in (100, 101)] == [True, False]
    assert len(asked) == 1
    now[0] = watches.FREE_S
    assert room(1, device)
    assert len(asked) == 2
