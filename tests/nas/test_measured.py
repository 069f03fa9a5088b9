"""Runs between a first run for a capture and its recording."""

from types import SimpleNamespace

import pytest

from nxcore.graphs import measured
from nxcore.graphs.measured import MORE, Measured
from tests.stand_ins import stand_in

measured_has = stand_in(measured)


@pytest.mark.parametrize(
    ("first", "later", "runs"),
    [
        ((0, 9, 0), [], 0),
        ((3, 3, 0), [(0, 0, 0)], 1),
        ((3, 0, 0), [], 0),
        ((3, 3, 2), [(2, 0, 0)], 1),
        ((3, 3, 0), [(1, 1, 0)] * 5, MORE),
    ],
    ids=["known", "measured", "pairs alone", "pairs wait", "at most"],
)
def test_a_run_follows_one_that_measured_problems_or_left_pairs(first, later, runs, measured_has):
    state = {"races": 5, "made": 7, "waiting": 0}
    pairs = type("Pairs", (), {"made": 0})()
    chooser = type("Chooser", (), {"pairs": pairs})()
    type(chooser).made = property(lambda _: state["made"])
    type(pairs).waiting = property(lambda _: state["waiting"])
    measured_has(
        default=lambda: SimpleNamespace(chooser=chooser), tally=lambda: SimpleNamespace(races=state["races"])
    )
    found, seen = Measured(), []

    def ran(races, problems, waiting):
        state.update(races=state["races"] + races, made=state["made"] + problems, waiting=waiting)

    ran(*first)

    def run():
        ran(*later[len(seen)])
        seen.append(1)

    found.repeated(run)
    assert len(seen) == runs
