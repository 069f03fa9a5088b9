"""A race without a verdict chooses nothing: torch serves, no record is written, and it is repeated later."""

import logging
from dataclasses import replace

import pytest
import torch

from nxcore.cli import tables
from nxcore.measure import race
from nxcore.offline import ahead, survey
from nxcore.spec.problem import Problem
from tests.null import fakes
from tests.null.fakes import SPECS, Clock

X = torch.ones(3, 4)
ADD = Problem.of(SPECS["add"], (X, X, 1, None))
WHY = "for 80% of its time others had the processors"


@pytest.fixture
def machine(monkeypatch):
    """Return a session whose second kernel is the faster one, and what makes its races' machine busy."""
    fakes.identified(monkeypatch)
    session = fakes.scripted(Clock(), monkeypatch, "add", {"torch": 100, "fast": 50})
    run, state = race.race, {"fault": WHY, "races": 0}

    def raced(*args, **how):
        state["races"] += 1
        found = run(*args, **how)
        return {label: replace(t, lost=0.8, fault=state["fault"]) for label, t in found.items()}

    fakes.raced(monkeypatch, raced)
    return session, state


def test_torch_serves_and_nothing_is_kept_until_it_is_repeated(machine, caplog):
    session, state = machine
    add = session.op("add")
    with caplog.at_level(logging.INFO, "nxcore"):
        for _ in range(3):
            assert torch.equal(add(X, X), X + X)
    assert state["races"] == 1, "no call waits for a second race at once"
    found = session.explain("add", X, X)
    assert (found.decision.chosen, found.decision.rule) == ("torch", "inconclusive")
    assert WHY in str(found)
    assert "to change it: a race on a less busy machine" in str(found)
    assert WHY in caplog.text
    assert session.wisdom.read(ADD) is None
    row = survey.row_of(ADD, 1, survey.known(session, ADD))
    assert (row.state, WHY in row.reason) == ("learning", True)

    state["fault"] = ""
    session.chooser.retries._due()
    assert torch.equal(add(X, X), X + X)
    assert state["races"] == 2
    assert session.explain("add", X, X).decision.chosen == "fast"
    assert session.wisdom.read(ADD).decision.chosen == "fast"


def test_it_is_repeated_by_itself_after_a_while(machine):
    session, state = machine
    session.chooser.retries._wait = 0.01
    session.op("add")(X, X)
    state["fault"] = ""
    session.chooser.retries._timer.join()
    session.op("add")(X, X)
    assert (state["races"], session.explain("add", X, X).decision.chosen) == (2, "fast")


def test_an_earlier_verdict_serves_where_a_later_race_gives_none(machine):
    session, state = machine
    state["fault"] = ""
    session.op("add")(X, X)
    state["fault"] = WHY
    later = session.tuner.choose(ADD, (X, X, 1, None))
    assert later.decision.rule == "inconclusive"
    assert session.chooser.recall.kept(ADD, (X, X, 1, None), later).decision.chosen == "fast"
    assert session.wisdom.read(ADD).decision.chosen == "fast"


def test_tuning_says_so(machine, capsys):
    session, _ = machine
    cell = ahead.Cell(SPECS["add"], "small", lambda: (X, X, 1, None))
    (row,) = ahead.tuned(session, [cell])
    assert (row.status, row.chosen, WHY in row.reason) == ("inconclusive", "torch", True)
    tables.tune({"rows": [row.to_dict()], "stopped": "", "left": 0})
    assert "inconclusive add small" in " ".join(capsys.readouterr().out.split())
    assert session.wisdom.read(ADD) is None
