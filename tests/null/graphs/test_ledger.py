"""A ledger counts steps, and knows what a network owes beside torch's own."""

import pytest

from nxcore.graphs.ledger import PLAIN, Ledger


def after(*steps):
    """Return a ledger after steps, each of seconds and of what was in them, and its clock."""
    now = [100.0]
    ledger = Ledger(lambda: now[0])
    for seconds, what in steps:
        ledger.begins()
        if what == "plain":
            ledger.plainly()
        elif what:
            ledger.add(what)
        now[0] += seconds
    ledger.begins()
    return ledger, now


PLAINLY = [(0.5, "plain"), (0.4, "plain"), (0.6, "plain")]


def test_the_fastest_step_of_torch_alone_is_torchs():
    ledger, now = after((1.0, ""), *PLAINLY[:2])
    assert ledger.plain_s == 0.0, "too few are known"
    ledger, now = after((0.1, ""), (3.0, 2.8), *PLAINLY, (0.1, "plain"))
    assert len(PLAINLY) == PLAIN
    assert ledger.plain_s == pytest.approx(0.4), "later ones may run beside the process that measures"
    assert (ledger.steps, ledger.spent_s) == (6, pytest.approx(4.7))
    now[0] += 0.2
    assert ledger.elapsed_s == pytest.approx(4.9)


def test_a_step_in_which_something_was_captured_is_not_torchs():
    ledger, now = after()
    ledger.plainly()
    ledger.add(1.0)
    now[0] += 2.0
    ledger.begins()
    assert ledger._found == []


def test_what_is_owed_is_what_exceeds_a_twentieth():
    ledger, _ = after(*PLAINLY)
    assert ledger.owes(), "1.5 s for three steps of 0.4"
    ledger, _ = after(*PLAINLY, *[(0.2, "")] * 2)
    assert (ledger.owes(), ledger.owes(0.15), ledger.owes(0.25)) == (False, False, True)


def test_a_pause_of_the_program_is_no_step():
    ledger, _ = after(*PLAINLY, (9.0, ""), (9.0, 8.5))
    assert ledger.spent_s == pytest.approx(1.5 + 0.4 + 9.0)
