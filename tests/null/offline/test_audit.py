"""Regret and audits: what is counted, on timings made up and clocks that are told; one process of its own."""

from __future__ import annotations

import itertools
import random
import statistics
import subprocess

import pytest
import torch
from scipy import stats

from nxcore.choose.learn.budget import Pace
from nxcore.cli import render
from nxcore.errors import NxcoreError
from nxcore.measure.decision import Candidate, decide
from nxcore.offline import audit
from nxcore.offline.audit import Row, judged, regret, summary, wilson
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


def row(op="add", regret=1.0, rule="bracketed", chosen="fast", slower=False):
    return Row(op, op, chosen, rule, "fast", regret, (1.0, 1.0, 1.0), slower)


def timed(label, us):
    return Candidate(label, label.partition("-")[0], timing=timing([us] * 12))


def test_regret_is_what_the_chosen_takes_over_the_best():
    timings = {"torch": timing([4.0] * 12), "fast": timing([2.0] * 12), "slow": timing([8.0] * 12)}
    assert [regret(n, timings) for n in timings] == [(2.0, "fast"), (1.0, "fast"), (4.0, "fast")]


def test_of_equals_nobody_is_fast_by_luck():
    """Picked and timed on the same blocks, the fastest of six equals would be 2% faster than each."""
    dice = random.Random(0)
    found, naive = [], []
    for _ in range(200):
        timings = {str(i): timing([100 * dice.lognormvariate(0, 0.05) for _ in range(20)]) for i in range(6)}
        found.append(regret("0", timings)[0])
        naive.append(timings["0"].median_us / min(t.median_us for t in timings.values()))
    assert statistics.fmean(naive) > 1.01
    assert statistics.fmean(found) == pytest.approx(1, abs=0.003)


def test_a_round_in_which_somebody_was_lucky_names_the_best_and_not_its_time():
    fair, lucky = ({"torch": timing([4.0] * 12), "fast": timing([us] * 12)} for us in (4.2, 2.0))
    assert regret("torch", lucky)[0] == pytest.approx(2)
    # Named by the lucky round, it is slower in the fair one; and by the fair one torch itself is the best.
    assert regret("torch", fair, lucky)[0] == pytest.approx((4 / 4.2) ** 0.5)


def test_a_kernel_is_slower_only_where_every_round_says_so():
    slow, fair = (decide([timed("torch", 100), timed("fast", us)], timing([100] * 12)) for us in (110, 100))
    chosen = decide([timed("torch", 100), timed("fast", 50)])
    assert judged(ADD, chosen, slow, slow).slower
    assert not judged(ADD, chosen, slow, fair).slower
    assert judged(ADD, chosen, slow, fair).us == ({"torch": 100, "fast": 110}, {"torch": 100, "fast": 100})


def test_drift_hits_all_alike():
    drift = [1 + i / 10 for i in range(20)]
    timings = {"torch": timing([3 * d for d in drift]), "fast": timing([2 * d for d in drift])}
    assert regret("torch", timings)[0] == pytest.approx(1.5)


def test_a_candidate_that_was_dropped_is_compared_by_what_it_has():
    timings = {"torch": timing([1.0] * 12), "slow": timing([5.0] * 3)}
    assert regret("slow", timings)[0] == pytest.approx(5)


@pytest.mark.parametrize(("us", "slower"), [(80, False), (101, False), (110, True)])
def test_slower_is_beyond_the_margin(us, slower):
    seen = [timed("torch", 100), timed("fast", us)]
    measured = decide(seen, timing([100] * 12))
    chosen = decide([seen[0], timed("fast", 50)])
    assert chosen.chosen == "fast"
    found = judged(ADD, chosen, measured)
    assert found.slower is slower
    assert found.ratio[0] == pytest.approx(100 / us)


def test_what_was_not_timed_is_not_judged_and_what_cannot_serve_is_not_best():
    seen = [timed("torch", 100), timed("torch-aside", 9)]
    measured = decide(seen, timing([100] * 12))
    torchs = decide(seen[:1])
    assert judged(ADD, torchs, measured, aside=["torch-aside"]).regret == 1.0
    assert judged(ADD, torchs, measured).best == "torch-aside"
    assert judged(ADD, decide([Candidate("gone", "torch")]), measured) is None


def test_a_summary_has_an_entry_an_operator_and_one_of_all():
    rows = [row(regret=1 + i / 100) for i in range(20)] + [row("sum", 3.0, "prior", "torch", slower=True)]
    add, one, everything = summary(rows)
    assert (add["op"], add["problems"], add["p50"], add["p95"], add["max"]) == ("add", 20, 1.09, 1.18, 1.19)
    assert (one["op"], one["p50"], one["slower"], one["others"]) == ("sum", 3.0, 1, 0)
    assert (everything["problems"], everything["max"]) == (21, 3.0)
    assert everything["rules"] == {"bracketed": 20, "prior": 1}
    assert summary([])[-1]["p50"] is None


@pytest.mark.parametrize(("count", "total"), [(0, 10), (3, 40), (100, 100), (17, 1000)])
def test_the_interval_of_a_rate_is_scipys(count, total):
    expected = stats.binomtest(count, total).proportion_ci(method="wilson")
    assert wilson(count, total) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_nothing_counted_leaves_everything_open():
    assert wilson(0, 0) == (0.0, 1.0)


def test_what_is_held_out_is_chosen_by_what_was_learnt_and_measured(monkeypatch):
    session = fakes.scripted(fakes.Clock(), monkeypatch, "add", {"torch": 100, "fast": 50})
    for size in (500, 2000):
        audit.learn(session, "add", (torch.ones(size), torch.ones(size), 1, None))
    calls = [(torch.ones(1000), torch.ones(1000), 1, None), (torch.ones(9, 9), torch.ones(9, 9), 1, None)]
    found, blank = audit.hold_out(session, "add", calls, effort=fakes.QUICK)
    assert (found.chosen, found.rule, found.best) == ("fast", "bracketed", "fast")
    assert found.regret == pytest.approx(1, rel=1e-3)
    assert not found.slower
    assert (blank.chosen, blank.rule, round(blank.regret, 1)) == ("torch", "prior", 2.0)


def test_what_torch_alone_serves_is_held_out_of_nothing():
    session = fakes.session(fakes.backend("fast", fakes.kernel("sum")))
    assert audit.hold_out(session, "add", [(X, X, 1, None)], effort=fakes.QUICK) == [None]


def test_a_choice_may_be_learnt_from_calls(monkeypatch):
    clock = fakes.Clock()
    session = fakes.scripted(clock, monkeypatch, "add", {"torch": 100, "fast": 20})
    session.chooser.learner.clock = clock
    session.chooser.learner.keep_to(Pace(share=float("inf")))
    (found,) = audit.hold_out(session, "add", [(X, X, 1, None)], "online", fakes.QUICK)
    assert (found.chosen, found.rule) == ("fast", "measured")


def test_stored_choices_are_measured_again(monkeypatch):
    times = {"torch": 100.0, "fast": 50.0}
    session = fakes.scripted(fakes.Clock(), monkeypatch, "add", times)
    for size in (500, 2000):
        audit.learn(session, "add", (torch.ones(size), torch.ones(size), 1, None))
    found = audit.here(session, torch.device("cpu"))
    assert (found["choices"], found["audited"], found["violations"], found["rate"]) == (2, 2, 0, 0.0)
    assert found["interval"] == wilson(0, 2)
    assert [r["chosen"] for r in found["rows"]] == ["fast", "fast"]
    assert audit.here(session, torch.device("cpu"), limit=1)["audited"] == 1
    assert audit.here(session, torch.device("cpu"), seconds=-1)["rate"] is None


def test_a_choice_that_became_slow_is_a_violation(monkeypatch):
    slowed, clock = itertools.count(), fakes.Clock()
    session = fakes.scripted(clock, monkeypatch, "add", {"torch": 100, "fast": 50})
    audit.learn(session, "add", (X, X, 1, None))
    backend = session.registry.backend("fast")
    kernel = backend.kernels[0]
    slow = clock.costing(200, lambda *args: (next(slowed), SPECS["add"].reference(*args))[1])
    monkeypatch.setitem(kernel.__dict__, "planner", lambda problem: slow)
    found = audit.here(session, torch.device("cpu"))
    assert next(slowed) > 0
    assert (found["violations"], found["rate"]) == (1, 1.0)


def test_a_kernel_that_is_gone_is_skipped(monkeypatch):
    session = fakes.scripted(fakes.Clock(), monkeypatch, "add", {"torch": 100, "fast": 50})
    audit.learn(session, "add", (X, X, 1, None))
    left = [(b, k) for b, k in session.registry.kernels("add") if b.name == "torch"]
    monkeypatch.setattr(session.registry, "kernels", lambda op: left)
    found = audit.here(session, torch.device("cpu"))
    assert found["skipped"] == {"the chosen kernel can't serve it now": 1}


def test_an_audit_runs_in_a_process_of_its_own(tmp_path, capsys):
    Session(Settings(cache=tmp_path))  # makes the folder
    found = audit.audit("cpu", limit=3, seconds=5, cache=str(tmp_path))
    assert (found["choices"], found["audited"], found["rate"]) == (0, 0, None)
    render.audit(found)
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
    render.audit(facts | {"skipped": {"it is gone": 2}, "rows": rows})
    shown = capsys.readouterr().out
    assert "1 of 4 stored winners on it are slower than torch: 25.0% [5.0%, 70.0%]" in " ".join(shown.split())
    assert "add(x)" in shown
    assert "2 not measured: it is gone" in shown
