"""From a lesson to the calls that its choice serves."""

from nxcore.choose.learn.budget import SHARE, TOTAL, Pace
from tests.null.choose.learn.test_exploration import X, called, learning, ready


def test_what_was_audited_in_its_turns_is_not_audited_again_in_its_first_call():
    session, _, runs = learning(audit=True, torch=100, fast=50)
    ready(session, X, X)
    while session.learning:
        called(session, 1, X, X)
    runs.clear()
    called(session, 1, X, X)
    assert runs == ["fast"]
    called(session, 1, X, X)
    assert "torch" in runs, "its second call is audited"


def test_what_takes_the_place_of_timed_calls_may_take_their_share_too():
    now = [0.0]
    pace = Pace(SHARE, clock=lambda: now[0])
    pace.begin()
    pace.charge(1.0)
    now[0] = 1.0 / TOTAL + 0.1
    assert pace.affords_without_turns
    assert not pace.affords
    pace.hold(5.0)
    assert not pace.affords_without_turns
