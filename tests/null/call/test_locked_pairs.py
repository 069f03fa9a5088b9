"""A lock holds what forward and backward together decided, so that processes and ranks choose alike."""

import random

import pytest
import torch

from nxcore.cli import tables, tune
from nxcore.distributed import agreed, offer
from nxcore.measure.decision import Decision
from nxcore.store import lock, transfer
from nxcore.store.wisdom import digest, environment, is_pair
from tests.null import fakes
from tests.null.call.crossing import BACKWARD, FORWARD, XS, learning, step


@pytest.fixture
def decided(joining, monkeypatch):
    """Return a function that measures a pair, with a bridge of so many microseconds; it returns the session.

    Both kernels win their halves, each by 30 us.
    """
    fakes.identified(monkeypatch)

    def run(us, folder, noise=lambda: 1.0):
        session, _ = learning(0.7, 0.7, "measure", folder, noise=noise)
        joining(us, session.chooser.learner.clock)
        for _ in range(2):
            step(session, dense=True)
        return session

    return run


def written(session, path):
    """Write the session's winners into a lock."""
    here = digest(environment(torch.device("cpu")))
    transfer.write(path, lock.locked(session.wisdom.store, here))
    return path


def runs_of(session, runs):
    """Return whether a call with a gradient crosses, and which kernels run in it."""
    step(session, dense=True)
    runs.clear()
    return step(session, dense=True), set(runs)


@pytest.mark.parametrize("policy", ["frozen", "auto", "measure"])
@pytest.mark.parametrize(("us", "expected"), [(70, (False, set())), (0, (True, {"forward", "backward"}))])
def test_a_lock_decides_both_ways_together(us, expected, policy, decided, joining, tmp_path):
    path = written(decided(us, tmp_path / "one"), tmp_path / "lock.json")
    session, runs = learning(0.7, 0.7, policy, tmp_path / "other", lock=path)
    joining(70 - us, session.chooser.learner.clock)  # a race here would decide otherwise
    assert runs_of(session, runs) == expected
    assert not [of for of, _ in session.wisdom.pages(torch.device("cpu")) if is_pair(of)], "none was measured"
    xs, weights = [x.clone().requires_grad_() for x in XS], torch.ones(2, requires_grad=True)
    found = session.explain(FORWARD, xs, weights)
    assert (found.decision.chosen, found.decision.rule) == ("fast", "locked")
    assert found.pair == Decision("fast + fast" if expected[0] else "torch", "locked", "the lock names it")


def test_a_lock_counts_whatever_is_on_record(decided, tmp_path):
    path = written(decided(0, tmp_path / "one"), tmp_path / "lock.json")
    decided(70, tmp_path / "other")
    for given, expected in ((None, (False, set())), (path, (True, {"forward", "backward"}))):
        session, runs = learning(0.7, 0.7, "measure", tmp_path / "other", lock=given)
        assert runs_of(session, runs) == expected


def test_a_lock_without_pairs_is_read_as_before(decided, tmp_path):
    path = written(decided(70, tmp_path / "one"), tmp_path / "lock.json")
    document = transfer.read_json(path)
    (pair,) = [e["problem"] for e in document["locked"] if is_pair(e["problem"])]
    assert pair["kernels"] == "fast + fast"
    old = [e for e in document["locked"] if not is_pair(e["problem"])]
    assert {e["problem"]["op"]: e["kernel"] for e in old} == {FORWARD: "fast", BACKWARD: "fast"}
    transfer.write(path, document | {"locked": old})
    session, runs = learning(0.7, 0.7, "frozen", lock=path)
    assert runs_of(session, runs) == (True, {"forward", "backward"}), "the kernels that it names"


def test_a_pair_holds_for_its_kernels_alone(decided, tmp_path):
    path = written(decided(70, tmp_path / "one"), tmp_path / "lock.json")
    document = transfer.read_json(path)
    for entry in document["locked"]:
        if entry["problem"]["op"] == BACKWARD:
            entry["kernel"] = "torch"
    transfer.write(path, document)
    session, runs = learning(0.7, 0.7, "frozen", lock=path)
    assert runs_of(session, runs) == (True, {"forward"}), "nobody measured this kernel with torch's backward"


def test_a_request_in_the_program_comes_before_the_lock(decided, tmp_path):
    path = written(decided(70, tmp_path / "one"), tmp_path / "lock.json")
    session, runs = learning(0.7, 0.7, "frozen", lock=path)
    with session.use("fast"):
        assert runs_of(session, runs) == (True, {"forward", "backward"})


def test_ranks_agree_on_the_firsts_pair(decided, joining, tmp_path):
    first, second = decided(70, tmp_path / "first"), decided(0, tmp_path / "second")
    assert (runs_of(first, [])[0], runs_of(second, [])[0]) == (False, True)
    for order, crosses in (((first, second), False), ((second, first), True)):
        chosen = agreed([offer(s) for s in order])[2]
        assert len(chosen.chosen) == 3
        for session in order:
            session.hold(chosen, "frozen")
            assert runs_of(session, [])[0] == crosses
            session.hold(lock.Lock({}), "measure")  # the lock that a rank had would count


def test_a_kernel_that_some_rank_lacks_takes_no_part_in_a_pair(decided, tmp_path):
    first = decided(0, tmp_path)
    mine = offer(first)
    other = type(mine)({}, {}, mine.here, {FORWARD: {"torch"}, BACKWARD: {"torch", "fast"}}, {})
    first.hold(agreed([mine, other])[2], "frozen")
    runs = []
    assert first.chooser.policy == "frozen"
    step(first, dense=True)
    chosen = {p.op: c.decision.chosen for (p, *_), c in first.chooser.choices.items()}
    assert chosen[FORWARD] == "torch"
    assert first.chooser.pairs.of(next(p for (p, *_) in first.chooser.choices if p.op == FORWARD)) is None
    assert runs == []


# ---- noise


@pytest.mark.parametrize(
    ("us", "crosses"), [(60, False), (30, True), (90, False)], ids=["as fast as torch", "faster", "slower"]
)
def test_however_the_timings_are_shuffled_both_ways_together_choose_alike(us, crosses, decided):
    """Both halves save 60 us of 200, and the bridge takes about that much."""
    assert {noisy(seed, us, decided)[0] for seed in range(5)} == {crosses}


def noisy(seed, us, decided, folder=None):
    """Return whether a new process crosses, whose times are within 1% of the others', and its session."""
    dice = random.Random(seed)
    session = decided(us, folder, lambda: dice.uniform(0.99, 1.01))
    return step(session, dense=True), session


def test_on_the_edge_of_the_margin_the_record_counts(decided, tmp_path):
    """A bridge that leaves 2% to 3% of gain: noise may decide a race, and the record all later ones."""
    for us in (54, 56):
        first, session = noisy(0, us, decided, tmp_path / str(us))
        recorded = dates(session)
        assert len(recorded) == 3
        for seed in range(1, 4):
            crosses, session = noisy(seed, us, decided, tmp_path / str(us))
            assert (crosses, dates(session)) == (first, recorded), "nothing was raced again"


def dates(session):
    """Return when each page was measured."""
    return {digest(of): page.date for of, page in session.wisdom.pages(torch.device("cpu"))}


def test_a_pair_is_exported_and_shown(joining, monkeypatch, as_default, tmp_path):
    fakes.identified(monkeypatch)
    session, _ = learning(0.7, 0.7, "measure", tmp_path / "one")
    joining(70, session.chooser.learner.clock)
    for _ in range(2):
        step(session, dense=True)
    document = transfer.exported(session.wisdom.store)
    transfer.write(tmp_path / "wisdom.json", document)
    (part,) = document["environments"]
    (pair,) = [e for e in part["entries"] if e["key"]["op"] == f"{FORWARD} with gradient"]
    assert pair["page"]["makes"] == {f"{FORWARD}: fast": "1", f"{BACKWARD}: fast": "1"}
    as_default(session)
    rows = [row for row in tune.known() if row["problem"]["op"] == f"{FORWARD} with gradient"]
    assert [row["chosen"] for row in rows] == ["torch"]
    assert "2 x float32[3, 4], float32[2]" in tables.described(rows[0]["problem"])

    other, runs = learning(0.7, 0.7, "frozen", tmp_path / "other")
    transfer.imported(other.wisdom.store, *transfer.read(tmp_path / "wisdom.json"))
    step(other, dense=True)
    runs.clear()
    assert not step(other, dense=True), "the halves alone would be taken"
    assert runs == []
