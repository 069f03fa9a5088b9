"""A network waits for its capture while problems of it are measured beside the program; torch serves it."""

from types import SimpleNamespace

import pytest

from nxcore import nas
from nxcore.graphs.capture import Capture
from nxcore.nas.mixed import PART
from nxcore.session import default
from tests.nas.test_replays import agree
from tests.nas.test_whole import captured, taken

__all__ = ["taken"]

pytestmark = pytest.mark.usefixtures("decided", "taken")


def test_it_is_captured_once_all_are_measured(monkeypatch):
    survey = SimpleNamespace(open=0, takes=lambda problem: False, stays={})
    monkeypatch.setattr(default().chooser, "survey", survey)
    tried, runs = Capture._tried, []

    def asks(self, *args):
        found = tried(self, *args)
        runs.append(self)
        survey.open = 3
        return found

    monkeypatch.setattr(Capture, "_tried", asks)
    plain, patched, tape = captured()
    assert nas.replays(patched)[""] == "runs: its problems are being measured beside the program"
    assert (len(runs), tape.captured) == (1, 0)
    agree(plain, patched, 3)
    assert (len(runs), tape.captured) == (1, 0), "no call tries while they are"
    survey.open = 0
    agree(plain, patched, 2)
    assert (len(runs), tape.captured) == (2, 0), "what the first run's problems have led to is waited for"
    survey.open = 0
    agree(plain, patched, 1)  # what these have led to is measured in the third run
    assert nas.replays(patched)[""].startswith("replays")
    assert not vars(patched)[PART]._waits
    survey.open, before = 0, tape.replayed
    agree(plain, patched, 2)
    assert (len(runs), tape.replayed - before) == (3, 4)
