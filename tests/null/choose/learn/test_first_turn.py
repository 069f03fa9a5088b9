"""The first run of a kernel: its result is looked at once."""

from nxcore.choose.learn import watch
from tests.null.choose.learn.test_exploration import ENOUGH, X, called, learning, ready


def test_a_large_result_is_no_fault_of_its_kernel(monkeypatch):
    """The first result was looked at twice, and its own memory was taken for that of the call before."""
    monkeypatch.setattr(watch, "HELD", 0)  # larger than what a watch keeps
    session, *_ = learning(torch=100, fast=50, audit=True)
    ready(session, X, X)
    called(session, ENOUGH, X, X)
    assert not list(session.gate.quarantine)
    assert session.explain("add", X, X).decision.chosen == "fast"
