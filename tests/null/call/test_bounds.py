"""Memory is bounded, however many problems a process meets: by capacities, made small here."""

import gc
import tracemalloc

import pytest
import torch

from nxcore.call import operator, rare
from nxcore.call.rare import RARE
from nxcore.choose import chooser, recorded
from nxcore.choose.learn import watches
from nxcore.measure.timing import Timing
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.store import files
from nxcore.store.files import Store
from tests.null import fakes
from tests.stand_ins import stand_in

operator_has = stand_in(operator)

SMALL, MANY = 16, 150
CAPACITIES = {rare: "COUNTED", recorded: "PROBLEMS", chooser: "PROBLEMS", files: "KEPT", watches: "PROBLEMS"}
BASE = torch.ones(3 * MANY + 8)


@pytest.fixture
def small(monkeypatch, operator_has, raced_by):
    """Make every capacity small, and a race cost nothing."""
    operator_has(CAPACITY=SMALL)
    for home, name in CAPACITIES.items():
        monkeypatch.setattr(home, name, SMALL)

    def race(calls, device, **how):
        us = {label: 100.0 if label.startswith("torch") else 50.0 for label in calls}
        return {label: Timing((t,) * 8, (t,) * 8) for label, t in us.items()}

    raced_by(race)


def meet(op, start, times):
    """Meet as many problems, each some times."""
    for n in range(start + 1, start + 1 + MANY):
        for _ in range(times):
            op(BASE[:n])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "times"), [("frozen", 2), ("measure", 2), ("auto", 2), ("auto", RARE + 2)]
)
def test_what_a_session_keeps_does_not_grow_with_the_problems_it_meets(small, policy, times):
    session = Session(Settings(policy=policy), fakes.registry(fakes.backend()), fakes.QUICK)
    op = session.op("sum")
    sizes = []
    tracemalloc.start()
    try:
        for turn in range(3):
            meet(op, turn * MANY, times)
            session.chooser.learner.settle(30)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(op.plans) + len(op._older) <= 2 * SMALL
    assert len(op.near) <= SMALL
    assert len(op.rare) <= SMALL
    assert len(session.chooser.choices) <= SMALL
    # The first turn fills the tables; a problem takes kilobytes where it is kept.
    assert sizes[2] - sizes[1] < 100 * MANY


def test_after_a_million_shapes_the_table_of_plans_is_no_larger():
    """The table alone, at its real capacity: a million misses would take minutes."""
    op = fakes.session(fakes.backend()).op("sum")
    for n in range(1_000_000):
        op._remember((n,), op.spec.reference)
    assert len(op.plans) + len(op._older) <= 2 * operator.CAPACITY
    assert (999_999,) in op.plans


def test_a_new_plan_takes_the_place_of_one_that_was_not_used(operator_has):
    operator_has(CAPACITY=64)
    op = fakes.session(fakes.backend()).op("sum")
    used, kept = torch.ones(1), []
    with fakes.counting_resolves(op) as seen:
        for n in range(1, 600):
            op(BASE[:1].expand(n))
            op(used.view(1, 1))
            kept.append(len(op.plans) + len(op._older))
    assert len(seen) == 600, "the one in use was found once"
    assert kept[126:] == [128] * (599 - 126), "as many at any time"


def test_plans_in_use_stay_near_while_none_is_new(operator_has):
    operator_has(CAPACITY=64)
    op = fakes.session(fakes.backend()).op("sum")
    shapes = [BASE[:n] for n in range(1, 61)]
    for x in shapes:
        op(x)
    for x in shapes:
        op(x)
    near, plans = op.near, op.plans
    for x in shapes:
        op(x)
    assert (op.near, op.plans) == (near, plans)
    assert op.near is near
    assert len(near) == len(plans) == 60


def test_memory_in_place_of_a_folder_is_bounded(small):
    kept = Store()
    for n in range(3 * SMALL):
        kept.write("some", {"n": n}, {"value": n})
    kept.write("others", {"n": 0}, {"value": "rare"})
    assert len(list(kept.items("some"))) == SMALL
    assert kept.read("some", {"n": 3 * SMALL - 1}) == {"value": 3 * SMALL - 1}
    assert kept.read("others", {"n": 0}) == {"value": "rare"}
