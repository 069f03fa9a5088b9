"""What the end of a process waits for."""

import sys
import threading
import types

import pytest

from nxcore.call import ending


def frame(file: str, name: str) -> types.SimpleNamespace:
    """Return a frame of a function."""
    return types.SimpleNamespace(f_code=types.SimpleNamespace(co_filename=file, co_name=name), f_back=None)


@pytest.fixture
def thread():
    done = threading.Event()
    held = threading.Thread(target=done.wait, daemon=True)
    held.start()
    yield held
    done.set()
    held.join()


def looks(monkeypatch, thread, *frames):
    """Let the thread have one of ``frames`` at each look, the last one from then on; count the looks."""
    left, seen = list(frames), []

    def found():
        seen.append(left[0])
        return {thread.ident: left.pop(0) if len(left) > 1 else left[0]}

    monkeypatch.setattr(sys, "_current_frames", found)
    monkeypatch.setattr(ending, "_over", False)
    monkeypatch.setattr(ending, "_daemons", lambda: [thread])
    return seen


WAITING = frame(threading.__file__, "wait")
CALL = frame(f"{ending.OPERATOR}sum>", "__call__")
BETWEEN = frame("program.py", "loop")


def test_a_thread_that_frees_what_its_call_held_is_waited_for(monkeypatch, thread):
    ends = frame(threading.__file__, "_bootstrap_inner")
    seen = looks(monkeypatch, thread, CALL, ends, ends, WAITING)
    ending.end([])
    assert seen == [CALL, ends, ends, WAITING]


def test_the_grace_begins_when_the_last_call_was_seen(monkeypatch, thread):
    monkeypatch.setattr(ending, "POLL_S", ending.GRACE_S / 5)
    calls = [CALL] * 8
    seen = looks(monkeypatch, thread, *calls, BETWEEN)
    ending.end([])
    assert seen[:8] == calls
    assert len(seen) > 8 + 2, "the first look after a call isn't the last"


@pytest.mark.parametrize("function", ["current_thread", "join"])  # the latter of a toolkit's thread
def test_a_call_within_a_function_of_threading_is_waited_for(function, monkeypatch, thread):
    inside = frame(threading.__file__, function)
    inside.f_back = CALL
    seen = looks(monkeypatch, thread, inside, inside, WAITING)
    ending.end([])
    assert seen == [inside, inside, WAITING]


def test_a_thread_of_the_package_that_waits_outside_of_a_call_is_not_waited_for(monkeypatch, thread):
    waits = frame(threading.__file__, "wait")
    waits.f_back = frame(f"{ending._FOLDER}/choose/workers.py", "answer")
    seen = looks(monkeypatch, thread, waits)
    ending.end([])
    assert seen == [waits]
