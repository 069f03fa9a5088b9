"""Policy estimate: what was measured at other sizes serves, by kernels that can, and never as measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from nxcore.choose.chooser import enough
from nxcore.choose.estimate import estimator
from nxcore.errors import InvalidInputError
from nxcore.measure import race as racing
from nxcore.measure.decision import Candidate, Decision, Interval
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.device import describe
from nxcore.spec.kernel import YES, no
from nxcore.spec.problem import Problem
from nxcore.store import pages, transfer, wisdom
from nxcore.store.owner import StoreWarning
from nxcore.store.pages import Page
from nxcore.store.wisdom import Wisdom, digest, environment, key
from tests.null import fakes
from tests.null.fakes import SPECS, timing

ADD = SPECS["add"].reference
NEAR = (500, 2000)


@pytest.fixture(autouse=True)
def _nothing_is_measured(monkeypatch):
    def race(*args, **how):
        raise AssertionError("policy estimate measures nothing")

    monkeypatch.setattr(racing, "race", race)


def estimating(folder=None, *backends, policy="estimate"):
    return Session(
        Settings(cache=folder, policy=policy), fakes.registry(*(backends or [fakes.backend("fast")]))
    )


def problem(size):
    return Problem.of(SPECS["add"], (torch.empty(size), torch.empty(size), 1, None))


def page(session, of, **us):
    """Return what a measurement of these times would have left."""
    owned = {b.label(k): (b, k) for b, k in session.tuner.taking_part("add")}
    ratios = {n: Interval(*[us["torch"] / t] * 3) for n, t in us.items()}
    seen = tuple(
        Candidate(n, owned[n][0].name, timing=timing([t] * 12), ratio=ratios[n]) for n, t in us.items()
    )
    chosen = min(us, key=us.get)
    makes = {n: session.chooser.recall.make(*owned[n]) for n in us}
    rule = "reference" if chosen == "torch" else "measured"
    return Page(Decision(chosen, rule, "it was", seen), timing([1] * 12), makes)


def learnt(session, sizes=NEAR, **us):
    for size in sizes:
        of = problem(size)
        session.wisdom.write(of, page(session, of, **{n: t * size for n, t in us.items()}))


def decision(session, size=1000):
    op = session.op("add")
    x = torch.randn(size)
    assert torch.equal(op(x, x), 2 * x)
    of = problem(size)
    return session.chooser.choose(of, (x, x, 1, None)).decision


def test_a_size_between_two_that_were_measured_takes_their_winner():
    session = estimating()
    learnt(session, torch=2, fast=1)
    found = decision(session)
    assert (found.chosen, found.rule) == ("fast", "bracketed")
    assert "2.00x at 500" in found.reason


def noisy(session, size, **us):
    """Keep an unclear race of one size, with more noise than any kernel gained."""
    found, noise = page(session, problem(size), **us), max(us.values()) / min(us.values())
    session.wisdom.write(problem(size), replace(found, decision=replace(found.decision, noise=noise)))


def test_a_kernel_that_won_an_unclear_race_by_twice_its_noise_is_the_end_of_a_bracket():
    session = estimating()
    learnt(session, (500,), torch=2, fast=1)
    noisy(session, 2000, torch=9000, fast=2000)
    found = decision(session)
    assert (found.chosen, found.rule) == ("fast", "bracketed")
    assert "4.50x at 2000" in found.reason


def test_an_unclear_race_that_torch_won_says_nothing_of_other_sizes():
    session = estimating()
    noisy(session, 500, torch=1000, fast=2000)
    noisy(session, 2000, torch=2000, fast=9000)
    found = decision(session)
    assert (found.chosen, found.rule) == ("torch", "prior")
    assert "never measured" in found.reason


def test_times_of_unclear_races_enter_no_model():
    """Torch's time was noise; by it the model would promise a gain beyond the clear points."""
    clear, all_of = estimating(), estimating()
    for session in (clear, all_of):
        learnt(session, (600, 700, 800, 1000), torch=2, fast=2)
    noisy(all_of, 3000, torch=90000, fast=2000)
    found = [decision(s, 1900) for s in (clear, all_of)]
    assert {(d.chosen, d.rule) for d in found} == {("torch", "prior")}
    assert found[0].reason == found[1].reason
    assert not all_of.chooser.estimator.predicted(
        problem(3500), all_of.chooser.estimator.able(problem(3500))[1]
    )


def test_of_nothing_known_torch_serves():
    found = decision(estimating())
    assert (found.chosen, found.rule) == ("torch", "prior")
    assert "never measured" in found.reason


def test_what_this_process_measures_is_known_at_once():
    session = estimating()
    assert decision(session, 900).chosen == "torch"
    learnt(session, torch=2, fast=1)
    assert decision(session).chosen == "fast"


def test_another_process_reads_it_from_disk_once(tmp_path, monkeypatch):
    learnt(estimating(tmp_path), torch=2, fast=1)
    session = estimating(tmp_path)
    reads = []
    items = session.wisdom.store.items
    monkeypatch.setattr(session.wisdom.store, "items", lambda kind: (reads.append(kind), items(kind))[1])
    assert decision(session, 1000).chosen == "fast"
    assert decision(session, 1001).chosen == "fast"
    assert sum(kind.endswith("/entries") for kind in reads) == 1


def test_the_real_shape_is_asked_whether_it_can_be_served():
    odd = fakes.backend(
        "fast", fakes.kernel("add", accepts=lambda p: YES if p["x"].shape[0] % 2 == 0 else no("odd"))
    )
    session = estimating(None, odd)
    learnt(session, torch=2, fast=1)
    assert decision(session, 1000).chosen == "fast"
    refused = decision(session, 1001)
    assert refused.chosen == "torch"


def test_what_fails_at_its_first_run_leaves_it_to_the_next():
    broken = fakes.backend("best", fakes.kernel("add", planner=fakes.raising(RuntimeError("no such tile"))))
    session = estimating(None, broken, fakes.backend("fast"))
    learnt(session, torch=4, fast=2, best=1)
    found = decision(session)
    assert found.chosen == "fast"
    assert "no such tile" in found["best"].refusal.reason


def test_a_simulated_kernel_is_never_taken():
    simulated = fakes.backend("fast", probe=lambda: replace(YES, simulated=True))
    session = estimating(None, simulated)
    learnt(session, torch=2, fast=1)
    assert decision(session).chosen == "torch"


def test_a_kernel_that_is_made_otherwise_by_now_is_a_prior_at_most():
    session = estimating()
    for size in (400, 500, 800, 1500, 2000, 3000):
        of = problem(size)
        kept = page(session, of, torch=2 * size, fast=size)
        session.wisdom.write(of, replace(kept, makes=dict.fromkeys(kept.makes, "another")))
    found = decision(session)
    assert (found.chosen, found.rule) == ("fast", "prior")
    assert "by other versions" in found.reason


def elsewhere(session, folder, *, sizes=(400, 500, 800, 1500, 2000, 3000), **facts):
    """Write what another device, or this one, would have exported."""
    entries = [
        {"key": key(of), "page": page(session, of, torch=2 * s, fast=s).to_dict()}
        for s in sizes
        for of in (problem(s),)
    ]
    there = describe("cpu").to_dict() | facts
    document = {"format": 1, "environments": [{"facts": there, "entries": entries}]}
    transfer.write(folder / "cpu-some.json", document)
    return folder / "cpu-some.json"


def test_imported_figures_of_another_device_are_a_prior(tmp_path):
    session = estimating(tmp_path)
    found = transfer.read(elsewhere(session, tmp_path, name="a faster one"))
    transfer.imported(session.wisdom.store, *found)
    known = decision(session)
    assert (known.chosen, known.rule) == ("fast", "prior")
    assert "on another device" in known.reason
    exact = decision(session, 800)
    assert exact.rule == "prior", "what was measured there is not measured here"


def shipping(folder, monkeypatch):
    monkeypatch.setattr(transfer, "SHIPPED", folder)
    return estimating()


def test_what_is_shipped_is_known_on_the_very_same_device(tmp_path, monkeypatch):
    elsewhere(estimating(), tmp_path)
    session = shipping(tmp_path, monkeypatch)
    exact = decision(session, 800)
    assert (exact.chosen, exact.rule) == ("fast", "measured")
    assert decision(session, 1000).rule == "bracketed"


@pytest.mark.parametrize("other", [{"name": "another"}, {"units": 999}, {"memory": 1}, {"l2": 1}])
def test_what_is_shipped_of_another_device_is_a_prior(tmp_path, monkeypatch, other):
    elsewhere(estimating(), tmp_path, **other)
    assert decision(shipping(tmp_path, monkeypatch), 800).rule == "prior"


@pytest.fixture
def related(monkeypatch):
    """Processors have related ones too."""
    monkeypatch.setattr(wisdom, "RELATED", ("cuda", "cpu"))


def test_what_a_related_device_clearly_won_serves_until_it_is_confirmed(tmp_path, monkeypatch, related):
    elsewhere(estimating(), tmp_path, name="another", memory=1)
    session = shipping(tmp_path, monkeypatch)
    found = decision(session, 800)
    assert (found.chosen, found.rule) == ("fast", "measured")
    x = torch.randn(800)
    assert "on another by policy" in str(session.explain("add", x, x))
    assert session.chooser.known(problem(800)).foreign, "its calls are counted, and it is confirmed"
    session.wisdom.doubt(problem(800))
    assert session.wisdom.related(problem(800)) is None
    assert session.wisdom.read(problem(800)) is None, "it has no figures of its own"


@pytest.mark.parametrize("other", [{"capability": "another"}, {"units": 999}])
def test_a_device_of_another_kind_is_not_related(tmp_path, monkeypatch, related, other):
    elsewhere(estimating(), tmp_path, name="another", **other)
    assert decision(shipping(tmp_path, monkeypatch), 800).rule == "prior"


def test_a_narrow_win_on_a_related_device_is_a_prior(tmp_path, monkeypatch, related):
    elsewhere(estimating(), tmp_path, name="another")
    session = shipping(tmp_path, monkeypatch)
    monkeypatch.setattr(pages, "AHEAD", 3.0)
    assert decision(session, 800).rule == "prior"


def test_under_measure_a_related_device_counts_for_nothing(tmp_path, monkeypatch, related):
    elsewhere(estimating(), tmp_path, name="another")
    monkeypatch.setattr(transfer, "SHIPPED", tmp_path)
    assert decision(estimating(policy="measure"), 800).chosen == "torch", "its race failed here"


def test_what_was_measured_here_comes_before_what_is_shipped(tmp_path, monkeypatch):
    elsewhere(estimating(), tmp_path)
    session = shipping(tmp_path, monkeypatch)
    learnt(session, (800,), torch=1, fast=2)
    assert decision(session, 800).chosen == "torch"


def test_a_broken_shipped_file_is_one_warning(tmp_path):
    (tmp_path / "cpu-broken.json").write_text("{", encoding="utf-8")
    wisdom = Wisdom(fakes.session().wisdom.store, lambda kind: transfer.shipped(kind, tmp_path))
    with pytest.warns(StoreWarning, match=r"shipped wisdom is ignored: .*cpu-broken\.json isn't JSON"):
        assert wisdom.environments("cpu") == []
    assert wisdom.read(problem(5)) is None
    assert transfer.shipped("cuda", tmp_path) == ({}, {})


def test_what_is_shipped_reads_as_a_file_of_wisdom():
    """Whatever lies in the package is whole, and for a device type that torch knows."""
    for path in transfer.SHIPPED.glob("*"):
        assert path.name.startswith(("cuda-", "cpu-"))
        environments, pages = transfer.read(path)
        assert pages
        assert {facts["type"] for facts in environments.values()} == {path.name.partition("-")[0]}


def test_pages_that_describe_no_problem_are_left_aside(tmp_path):
    session = estimating(tmp_path)
    learnt(session, torch=2, fast=1)
    facts = environment(torch.device("cpu"))
    for wrong in ({"op": "add"}, {"op": "add", "devices": ["cpu"], "x": 3}):
        kept = page(session, problem(5), torch=2, fast=1).to_dict()
        session.wisdom.store.write(f"{digest(facts)}/entries", wrong | {"deterministic": False}, kept)
    assert decision(estimating(tmp_path)).chosen == "fast"


def test_a_file_that_is_no_wisdom_names_itself(tmp_path):
    (tmp_path / "cpu-x.json").write_text(json.dumps({"format": 9}), encoding="utf-8")
    with pytest.raises(InvalidInputError, match="isn't wisdom of format 1"):
        transfer.read(tmp_path / "cpu-x.json")


def test_an_estimate_is_measured_where_the_policy_says_so():
    session = estimating()
    learnt(session, torch=2, fast=1)
    assert decision(session).rule == "bracketed"
    choice = session.chooser.choose(problem(1000), (torch.ones(1000), torch.ones(1000), 1, None))
    assert enough(choice, "estimate")
    assert not enough(choice, "measure")
    assert not enough(choice, "online")


def test_a_number_among_the_arguments_is_no_obstacle():
    x = torch.ones(5)
    assert torch.equal(estimating().op("add")(x, 1.5, alpha=2), x * 4)


def halves(problem):
    """Tell the ways of an invented kernel apart: whether it takes an even number of elements."""
    if problem["x"].numel() == 2000:
        raise ValueError("a call that today's kernel doesn't take")
    return problem["x"].numel() % 2 == 0


@pytest.mark.parametrize(("size", "rule"), [(1000, "prior"), (1001, "bracketed")])
def test_a_kernel_is_asked_which_way_a_call_goes(size, rule):
    told = replace(fakes.kernel("add"), branch=f"{__name__}:halves")
    session = estimating(None, fakes.backend("fast", told))
    learnt(session, (501, 1999), torch=2, fast=1)
    assert decision(session, size).rule == rule


def test_a_page_of_which_a_kernel_can_tell_no_way_is_read_all_the_same():
    told = replace(fakes.kernel("add"), branch=f"{__name__}:halves")
    session = estimating(None, fakes.backend("fast", told))
    learnt(session, (500, 2000, 501, 1999), torch=2, fast=1)
    assert decision(session, 1001).chosen == "fast"


def test_of_ever_new_sizes_the_newest_are_kept_at_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(wisdom, "SHELF", 4)
    facts = environment(torch.device("cpu"))
    session = estimating(tmp_path)
    assert decision(session).chosen == "torch"  # which reads the shelf
    learnt(session, range(300, 320), torch=2, fast=1)
    learnt(session, NEAR, torch=2, fast=1)
    learnt(session, (300,), torch=2, fast=1)
    again = estimating(tmp_path)
    for known in (session, again):
        shapes = [of["x"]["shape"] for of, _ in known.wisdom.shelf(facts, "add").values()]
        assert shapes == [[319], [500], [2000], [300]]
        assert decision(known, 999).chosen == "fast"


def test_what_is_kept_of_pages_has_an_end(monkeypatch):
    monkeypatch.setattr(estimator, "POINTS", 8)
    monkeypatch.setattr(wisdom, "SHELF", 4)
    session = estimating()
    for size in range(300, 340, 2):
        learnt(session, (size,), torch=2, fast=1)
        assert decision(session, size + 1).chosen == "fast"
    assert len(session.chooser.estimator._points) <= 8 + 4
