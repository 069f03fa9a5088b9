"""Watches: which calls are audited beyond the share of time, and how closely."""

import pytest
import torch

from nxcore.choose.learn import watch, watches
from nxcore.context import KernelWarning, as_captured
from tests.null.choose.learn.test_watch import X, watching


def test_a_run_for_a_capture_is_audited_once_a_kernel_and_for_some_time(monkeypatch):
    session, _ = watching()

    def audits(sizes):
        with session.use("watched"), as_captured():
            for n in sizes:
                session.op("add")(X[:n], X[:n])
        return [w._audits for w in session.chooser.watches._known.values()]

    assert audits([1, 1, 2, 3]) == [2, 1, 1]
    monkeypatch.setattr(watches, "EARLY_S", 0.0)
    assert audits([4, 5]) == [2, 1, 1, 0, 0]
    session.chooser.watches._rotas.clear()
    assert audits([6, 7]) == [2, 1, 1, 0, 0, 1, 0], "the first of each kernel"


def test_the_second_audit_is_certain_only_while_audits_are_early():
    session, _ = watching()
    audits = []
    with session.use("watched"):
        for spent, n in ((0.0, 3), (watches.EARLY_S, 4)):
            session.chooser.watches._early_s[False] += spent
            for _ in range(3):
                session.op("add")(X[:n], X[:n])
            audits.append([w._audits for w in session.chooser.watches._known.values()][-1])
    assert audits == [2, 1]


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
