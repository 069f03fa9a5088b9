"""Audits: what is counted, on timings made up and clocks that are told; one process of its own."""

import itertools
import subprocess

import pytest
import torch
from scipy import stats

from nxcore.cli import scoreboard
from nxcore.errors import NxcoreError
from nxcore.measure.decision import Candidate, decide
from nxcore.offline import audit
from nxcore.offline.audit import judged, wilson
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import Problem
from tests.null import fakes
from tests.null.fakes import SPECS, timing

X = torch.arange(64.0)
ADD = Problem.of(SPECS["add"], (X, X, 1, None))


@pytest.fixture(autouse=True)
def _kernels_are_made_of_something(monkeypatch):
    fakes.identified(monkeypatch)


def learn(session, size):
    x = torch.ones(size)
    with session.policy("measure"):
        session.op("add")(x, x)


def timed(label, us):
    return Candidate(label, label.partition("-")[0], timing=timing([us] * 12))


@pytest.mark.parametrize(("us", "slower"), [(80, False), (101, False), (110, True)])
def test_slower_is_beyond_the_margin(us, slower):
    seen = [timed("torch", 100), timed("fast", us)]
    measured = decide(seen, timing([100] * 12))
    chosen = decide([seen[0], timed("fast", 50)])
    assert chosen.chosen == "fast"
    found = judged(ADD, chosen, measured)
    assert found.slower is slower
    assert found.ratio[0] == pytest.approx(100 / us)


@pytest.mark.parametrize(("count", "total"), [(0, 10), (3, 40), (100, 100), (17, 1000)])
def test_the_interval_of_a_rate_is_scipys(count, total):
    expected = stats.binomtest(count, total).proportion_ci(method="wilson")
    assert wilson(count, total) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_nothing_counted_leaves_everything_open():
    assert wilson(0, 0) == (0.0, 1.0)


def test_stored_choices_are_measured_again(monkeypatch):
    times = {"torch": 100.0, "fast": 50.0}
    session = fakes.scripted(fakes.Clock(), monkeypatch, "add", times)
    for size in (500, 2000):
        learn(session, size)
    found = audit.here(session, torch.device("cpu"))
    assert (found["choices"], found["audited"], found["violations"], found["rate"]) == (2, 2, 0, 0.0)
    assert found["interval"] == wilson(0, 2)
    assert [r["chosen"] for r in found["rows"]] == ["fast", "fast"]
    assert audit.here(session, torch.device("cpu"), limit=1)["audited"] == 1
    assert audit.here(session, torch.device("cpu"), seconds=-1)["rate"] is None


def test_a_choice_that_became_slow_is_a_violation(monkeypatch):
    slowed, clock = itertools.count(), fakes.Clock()
    session = fakes.scripted(clock, monkeypatch, "add", {"torch": 100, "fast": 50})
    learn(session, 64)
    backend = session.registry.backend("fast")
    kernel = backend.kernels[0]
    slow = clock.costing(200, lambda *args: (next(slowed), SPECS["add"].reference(*args))[1])
    monkeypatch.setitem(kernel.__dict__, "planner", lambda problem: slow)
    found = audit.here(session, torch.device("cpu"))
    assert next(slowed) > 0
    assert (found["violations"], found["rate"]) == (1, 1.0)


def test_a_kernel_that_is_gone_is_skipped(monkeypatch):
    session = fakes.scripted(fakes.Clock(), monkeypatch, "add", {"torch": 100, "fast": 50})
    learn(session, 64)
    left = [(b, k) for b, k in session.registry.kernels("add") if b.name == "torch"]
    session.registry.kernels = lambda op: left
    found = audit.here(session, torch.device("cpu"))
    assert found["skipped"] == {"the chosen kernel can't serve it now": 1}


def test_an_audit_runs_in_a_process_of_its_own(tmp_path, capsys):
    Session(Settings(cache=tmp_path))  # makes the folder
    found = audit.audit("cpu", limit=3, seconds=5, cache=str(tmp_path))
    assert (found["choices"], found["audited"], found["rate"]) == (0, 0, None)
    scoreboard.audit(found)
    assert "no stored winner was measured again" in capsys.readouterr().out


def test_an_audit_that_fails_says_why(monkeypatch):
    ended = subprocess.CompletedProcess([], 3, "", "it burns")
    monkeypatch.setattr(subprocess, "run", lambda *args, **how: ended)
    with pytest.raises(NxcoreError, match="ended with status 3: it burns"):
        audit.audit("cpu")


def test_an_audit_is_printed(capsys):
    rows = [{"op": "add", "problem": "add(x)", "chosen": "fast", "ratio": (0.8, 0.7, 0.9), "slower": True}]
    facts = {
        "device": "it",
        "choices": 9,
        "audited": 4,
        "violations": 1,
        "rate": 0.25,
        "interval": (0.05, 0.7),
    }
    scoreboard.audit(facts | {"skipped": {"it is gone": 2}, "rows": rows})
    shown = capsys.readouterr().out
    assert "1 of 4 stored winners on it are slower than torch: 25.0% [5.0%, 70.0%]" in " ".join(shown.split())
    assert "add(x)" in shown
    assert "2 not measured: it is gone" in shown
