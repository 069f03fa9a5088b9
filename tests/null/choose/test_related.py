"""Figures of elsewhere: shipped, imported, of a related device; and what is kept of pages at hand."""

import json

import pytest
import torch

from nxcore.choose import families
from nxcore.errors import InvalidInputError
from nxcore.measure.decision import Candidate, Decision, Interval
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.device import describe
from nxcore.store import pages, transfer, wisdom
from nxcore.store.owner import StoreWarning
from nxcore.store.pages import Page
from nxcore.store.wisdom import Wisdom, digest, environment, key
from tests.null import fakes
from tests.null.calls import addition
from tests.null.fakes import timing
from tests.stand_ins import stand_in

wisdom_has = stand_in(wisdom)

NEAR = (500, 2000)


@pytest.fixture(autouse=True)
def _nothing_is_measured(monkeypatch, raced_by):
    raced_by(fakes.raising(AssertionError("nothing is to be measured")))
    fakes.identified(monkeypatch)


def knowing(folder=None, *backends, policy="frozen"):
    return Session(
        Settings(cache=folder, policy=policy), fakes.registry(*(backends or [fakes.backend("fast")]))
    )


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
        of = addition(size)
        session.wisdom.write(of, page(session, of, **{n: t * size for n, t in us.items()}))


def decision(session, size=1000):
    op = session.op("add")
    x = torch.randn(size)
    assert torch.equal(op(x, x), 2 * x)
    of = addition(size)
    return session.chooser.choose(of, (x, x, 1, None)).decision


def unmeasured(session, size=1000):
    found = decision(session, size)
    return (found.chosen, found.rule) == ("torch", "prior") and "never measured" in found.reason


def test_torch_serves_what_was_never_measured():
    session = knowing()
    assert unmeasured(session)
    learnt(session, torch=2, fast=1)
    assert unmeasured(session, 999), "other sizes serve it under a policy that learns"
    assert decision(session, 500).chosen == "fast"


def elsewhere(session, folder, *, sizes=(400, 500, 800, 1500, 2000, 3000), **facts):
    """Write what another device, or this one, would have exported."""
    entries = [
        {"key": key(of), "page": page(session, of, torch=2 * s, fast=s).to_dict()}
        for s in sizes
        for of in (addition(s),)
    ]
    there = describe("cpu").to_dict() | facts
    document = {"format": 1, "environments": [{"facts": there, "entries": entries}]}
    transfer.write(folder / "cpu-some.json", document)
    return folder / "cpu-some.json"


def test_imported_figures_of_another_device_serve_no_problem_here(tmp_path):
    session = knowing(tmp_path)
    found = transfer.read(elsewhere(session, tmp_path, name="a faster one"))
    transfer.imported(session.wisdom.store, *found)
    assert unmeasured(session, 800)


def shipping(folder, monkeypatch):
    monkeypatch.setattr(transfer, "SHIPPED", folder)
    return knowing()


def test_what_is_shipped_is_known_on_the_very_same_device(tmp_path, monkeypatch):
    elsewhere(knowing(), tmp_path)
    session = shipping(tmp_path, monkeypatch)
    exact = decision(session, 800)
    assert (exact.chosen, exact.rule) == ("fast", "measured")


@pytest.mark.parametrize("other", [{"name": "another"}, {"units": 999}, {"memory": 1}, {"l2": 1}])
def test_what_is_shipped_of_another_device_serves_no_problem_here(tmp_path, monkeypatch, other):
    elsewhere(knowing(), tmp_path, **other)
    assert unmeasured(shipping(tmp_path, monkeypatch), 800)


@pytest.fixture
def related(wisdom_has):
    """Processors have related ones too."""
    wisdom_has(RELATED=("cuda", "cpu"))


def test_what_a_related_device_clearly_won_serves_until_it_is_confirmed(tmp_path, monkeypatch, related):
    elsewhere(knowing(), tmp_path, name="another", memory=1)
    session = shipping(tmp_path, monkeypatch)
    found = decision(session, 800)
    assert (found.chosen, found.rule) == ("fast", "measured")
    x = torch.randn(800)
    assert "on another by policy" in str(session.explain("add", x, x))
    assert session.chooser.known(addition(800)).foreign, "its calls are counted, and it is confirmed"
    session.wisdom.contradict(addition(800))
    assert session.wisdom.related(addition(800)) is None
    assert session.wisdom.read(addition(800)) is None, "it has no figures of its own"


@pytest.mark.parametrize("other", [{"capability": "another"}, {"units": 999}])
def test_a_device_of_another_kind_is_not_related(tmp_path, monkeypatch, related, other):
    elsewhere(knowing(), tmp_path, name="another", **other)
    assert unmeasured(shipping(tmp_path, monkeypatch), 800)


def test_a_narrow_win_on_a_related_device_serves_no_problem_here(tmp_path, monkeypatch, related):
    elsewhere(knowing(), tmp_path, name="another")
    session = shipping(tmp_path, monkeypatch)
    monkeypatch.setattr(pages, "AHEAD", 3.0)
    assert unmeasured(session, 800)


def test_under_measure_a_related_device_counts_for_nothing(tmp_path, monkeypatch, related):
    elsewhere(knowing(), tmp_path, name="another")
    monkeypatch.setattr(transfer, "SHIPPED", tmp_path)
    assert decision(knowing(policy="measure"), 800).chosen == "torch", "its race failed here"


def test_what_was_measured_here_comes_before_what_is_shipped(tmp_path, monkeypatch):
    elsewhere(knowing(), tmp_path)
    session = shipping(tmp_path, monkeypatch)
    learnt(session, (800,), torch=1, fast=2)
    assert decision(session, 800).chosen == "torch"


def test_a_broken_shipped_file_is_one_warning(tmp_path):
    (tmp_path / "cpu-broken.json").write_text("{", encoding="utf-8")
    wisdom = Wisdom(fakes.session().wisdom.store, lambda kind: transfer.shipped(kind, tmp_path))
    with pytest.warns(StoreWarning, match=r"shipped wisdom is ignored: .*cpu-broken\.json isn't JSON"):
        assert wisdom.environments("cpu") == []
    assert wisdom.read(addition(5)) is None
    assert transfer.shipped("cuda", tmp_path) == ({}, {})


def test_what_is_shipped_reads_as_a_file_of_wisdom():
    """Whatever lies in the package is whole, and for a device type that torch knows."""
    for path in transfer.SHIPPED.glob("*"):
        assert path.name.startswith(("cuda-", "cpu-"))
        environments, pages = transfer.read(path)
        assert pages
        assert {facts["type"] for facts in environments.values()} == {path.name.partition("-")[0]}


def test_a_file_that_is_no_wisdom_names_itself(tmp_path):
    (tmp_path / "cpu-x.json").write_text(json.dumps({"format": 9}), encoding="utf-8")
    with pytest.raises(InvalidInputError, match="isn't wisdom of format 1"):
        transfer.read(tmp_path / "cpu-x.json")


def near(session, size=1000):
    """Return the measured sizes of a problem's family."""
    of = addition(size)
    found = session.chooser.families._measured(of, environment(of.device))
    return [end.point.sizes[0] for _, end in found]


def test_pages_that_describe_no_problem_are_left_aside(tmp_path):
    session = knowing(tmp_path)
    learnt(session, torch=2, fast=1)
    facts = environment(torch.device("cpu"))
    for wrong in ({"op": "add"}, {"op": "add", "devices": ["cpu"], "x": 3}):
        kept = page(session, addition(5), torch=2, fast=1).to_dict()
        session.wisdom.store.write(f"{digest(facts)}/entries", wrong | {"deterministic": False}, kept)
    assert near(knowing(tmp_path)) == [*NEAR]


def test_of_ever_new_sizes_the_newest_are_kept_at_hand(tmp_path, wisdom_has):
    wisdom_has(SHELF=4)
    facts = environment(torch.device("cpu"))
    session = knowing(tmp_path)
    session.wisdom.shelf(facts, "add")
    learnt(session, range(300, 320), torch=2, fast=1)
    learnt(session, NEAR, torch=2, fast=1)
    learnt(session, (300,), torch=2, fast=1)
    again = knowing(tmp_path)
    for known in (session, again):
        shapes = [of["x"]["shape"] for of, _ in known.wisdom.shelf(facts, "add").values()]
        assert shapes == [[319], [500], [2000], [300]]


def test_what_is_kept_of_pages_has_an_end(monkeypatch, wisdom_has):
    monkeypatch.setattr(families, "PROBLEMS", 8)
    wisdom_has(SHELF=4)
    session = knowing()
    for size in range(300, 340, 2):
        learnt(session, (size,), torch=2, fast=1)
        assert near(session, size + 1)
    assert len(session.chooser.families._points) <= 8 + 4


def test_a_number_among_the_arguments_is_no_obstacle():
    x = torch.ones(5)
    assert torch.equal(knowing().op("add")(x, 1.5, alpha=2), x * 4)
