"""Before a capture: torch serves calls whose place a replay takes, and what is unknown is learnt."""

import pytest
import torch

from nxcore.context import Purpose, in_force
from nxcore.spec.tally import tally
from nxcore.store.lock import Lock
from tests.null.calls import addition
from tests.null.choose.test_prune import decided, machine

__all__ = ["machine"]


def later(session, size=1000, **policy):
    """Return the decision on a call in a block that leaves choices to a capture."""
    x = torch.randn(size)
    with in_force(purpose=Purpose.WAIT, **policy):
        return session.chooser.choose(addition(size), (x, x, 1, None)).decision


def test_before_a_capture_torch_serves_what_is_known_and_what_would_be_measured(machine):
    machine.images = ("two",)
    session = machine.process(two=50)
    raced = tally().races
    found = later(session)
    assert (found.chosen, found.reason) == (
        "torch",
        "torch serves it until a replay takes the place of its calls",
    )
    assert (tally().races, machine.planned) == (raced, [])
    assert decided(session).chosen == "two", "a call outside of the block is decided as ever"
    session = machine.process(policy="auto", two=50)
    machine.planned.clear()
    assert later(session).chosen == "torch"
    assert machine.planned == []
    assert decided(session).chosen == "two"


@pytest.mark.parametrize("policy", ["auto", "frozen"])
def test_before_a_capture_what_is_unknown_is_learnt_as_ever(machine, policy):
    machine.images = ("two",)
    found = later(machine.process(policy=policy, two=50))
    assert found.rule == ("exploring" if policy == "auto" else "prior")


def test_before_a_capture_a_request_counts(machine):
    machine.images = ("two",)
    session = machine.process(two=50)
    assert later(session, backends=("two",)).chosen == "two"
    session.chooser.hold(Lock({"add": {"x": "two"}}), session.settings)
    session.chooser.lock.label = lambda _: "two"
    assert later(session).chosen == "two"
