"""A plugin that takes long is named in a line, once."""

import sys
import threading
import time

import pytest

from nxcore.call import ending
from nxcore.registry import waiting
from nxcore.registry.registry import Source
from nxcore.spec.kernel import Verdict
from tests.null import fakes

SLOW = Source("slow", "nxcore-slow 1.0")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Wait for hundredths of seconds."""
    for name in ("AFTER_S", "POLL_S"):
        monkeypatch.setattr(waiting, name, getattr(waiting, name) / 40)
    monkeypatch.setattr(waiting, "_waits", waiting._Waits())


def lines(caplog, until=1):
    """Return the lines of the log, once there are so many."""
    by = time.monotonic() + 10
    while len(caplog.messages) < until and time.monotonic() < by:
        time.sleep(0.01)
    return caplog.messages


def test_code_that_takes_long_is_named_once(caplog):
    for _ in range(2):
        with waiting.waiting(SLOW, "the import"):
            (line,) = lines(caplog)
    assert line.startswith("waiting for the import of plugin 'slow' of nxcore-slow 1.0 since ")
    assert line.endswith("s; NXCORE_DISABLE=slow leaves it out")
    with waiting.waiting(SLOW, "accepts"):
        assert len(lines(caplog, 2)) == 2


def test_what_is_waited_for_outside_of_it_is_named_after_it(caplog):
    with waiting.waiting(SLOW, "outer"):
        with waiting.waiting(SLOW, "inner"):
            pass
        (line,) = lines(caplog)
    assert "waiting for outer" in line
    assert waiting._waits.begun == {}


def test_the_end_of_a_process_does_not_wait_for_it():
    others = threading.enumerate()
    with waiting.waiting(SLOW, "the import"):
        (looks,) = (t for t in threading.enumerate() if t not in others)
        time.sleep(0.05)  # it has begun
        assert any(sys._current_frames()[looks.ident] not in ending._running() for _ in range(1000))


def test_the_thread_ends_where_nothing_is_waited_for():
    with waiting.waiting(SLOW, "the import"):
        pass
    by = time.monotonic() + 10
    while any(t.name == "nxcore waits" for t in threading.enumerate()) and time.monotonic() < by:
        time.sleep(0.01)
    assert not waiting._waits._thread


def test_a_probe_and_an_accepts_that_sleep_are_named(caplog):
    def probe():
        lines(caplog, 1)
        return Verdict(True)

    def accepts(problem):
        lines(caplog, 2)
        return fakes.YES

    registry = fakes.registry(fakes.backend("fake", fakes.kernel("add", accepts=accepts, probe=probe)))
    session = fakes.Session(fakes.Settings(), registry, fakes.QUICK)
    session.explain("add", fakes.torch.ones(3), fakes.torch.ones(3))
    named = [line.partition(" of plugin")[0] for line in caplog.messages if line.startswith("waiting")]
    assert named == ["waiting for the probe", "waiting for accepts"]
