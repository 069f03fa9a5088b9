"""From a lesson to the calls that its choice serves."""

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
