"""A kernel that did wrong is kept from calls, with a reason, for a term, and across processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from nxcore.store.files import Store
from nxcore.trust import quarantine
from nxcore.trust.quarantine import DAY, STRIKES, TERM, Quarantine
from nxcore.trust.suspect import Suspect
from tests.stand_ins import stand_in

time_has = stand_in(time)

SUSPECT = Suspect(
    "add",
    "fake",
    "float32",
    {"type": "cpu", "name": "One"},
    {"sources": {"fake": "abc"}, "versions": {"torch": "2"}},
)
OTHERS = {
    "dtype": Suspect("add", "fake", "float16", SUSPECT.device, SUSPECT.made_of),
    "kernel": Suspect("add", "other", "float32", SUSPECT.device, SUSPECT.made_of),
    "operator": Suspect("sum", "fake", "float32", SUSPECT.device, SUSPECT.made_of),
    "device": Suspect("add", "fake", "float32", {"type": "cpu", "name": "Two"}, SUSPECT.made_of),
    "driver": Suspect("add", "fake", "float32", {**SUSPECT.device, "driver": 2}, SUSPECT.made_of),
    "source": Suspect(
        "add", "fake", "float32", SUSPECT.device, {**SUSPECT.made_of, "sources": {"fake": "abd"}}
    ),
}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_an_entry_refuses_its_kernel_and_says_why_until_when_and_how_to_lift_it(store):
    found = Quarantine(store)
    assert found.refusal(SUSPECT) is None
    found.add(SUSPECT, "wrong", "NaN must stand")
    refusal = found.refusal(SUSPECT).reason
    until = time.strftime("%Y-%m-%d", time.gmtime(time.time() + TERM["wrong"]))
    lift = f"nxcore quarantine clear {SUSPECT.op} --kernel {SUSPECT.kernel}"
    assert refusal == f"quarantined until {until} (wrong): NaN must stand; {lift} lifts it"


@pytest.mark.parametrize("what", OTHERS)
def test_another_one_is_not_refused(store, what):
    found = Quarantine(store)
    found.add(SUSPECT, "wrong", "zeros")
    assert found.refusal(OTHERS[what]) is None


def test_an_entry_outlives_its_process(store):
    Quarantine(store).add(SUSPECT, "crashed", "gone")
    again = Quarantine(Store(store.folder.parent))
    assert "(crashed): gone" in again.refusal(SUSPECT).reason
    assert [(e.kind, e.op, e.kernel, e.dtype) for e in again] == [("crashed", "add", "fake", "float32")]


@pytest.mark.parametrize("kind", TERM)
def test_an_entry_ends_with_its_term(store, time_has, kind):
    found = Quarantine(store)
    found.add(SUSPECT, kind, "gone")
    now = time.time()
    time_has(time=lambda: now + TERM[kind] + 1)
    assert found.refusal(SUSPECT) is None
    assert list(found) == []
    assert list(Quarantine(store)) == []


def test_the_last_strike_puts_a_kernel_away_and_one_problem_counts_once(store):
    found = Quarantine(store)
    for problem in ("p", "p", *range(STRIKES - 2)):
        assert found.strike(SUSPECT, problem, "RuntimeError: no") is None
    entry = found.strike(SUSPECT, "last", "RuntimeError: no")
    assert (entry.kind, entry.reason) == (
        "raised",
        f"raised on {STRIKES} problems, most recently: RuntimeError: no",
    )
    assert "RuntimeError: no" in found.refusal(SUSPECT).reason


@pytest.mark.parametrize(
    ("how", "left"), [({}, 0), ({"op": "add"}, 1), ({"kernel": "other"}, 2), ({"op": "mul"}, 3)]
)
def test_clearing_lifts_what_was_named_for_good(store, how, left):
    found = Quarantine(store)
    for who in (SUSPECT, OTHERS["kernel"], OTHERS["operator"]):
        found.add(who, "wrong", "zeros")
    lifted = found.clear(**how)
    assert len(lifted) == 3 - left == 3 - len(list(found)) == 3 - len(list(Quarantine(store)))


@pytest.mark.parametrize(
    "document",
    [{}, {"op": 3}, {"kind": "loved"}, {"until": "tomorrow"}, {"facts": []}, {"more": 1}, {"op": "sum"}],
    ids=str,
)
def test_a_document_that_is_no_entry_is_left_out(store, document):
    entry = Quarantine(store).add(SUSPECT, "wrong", "zeros").to_dict()
    store.write("quarantine", SUSPECT.key, entry | document if document else {})
    assert list(Quarantine(store)) == []


def test_the_journal_is_empty_after_a_run_and_after_an_exception(store):
    found = Quarantine(store)
    with found.watched(SUSPECT, "its first run"):
        assert len(list(store.items("journal"))) == 1
    with pytest.raises(RuntimeError), found.watched(SUSPECT, "its first run"):
        raise RuntimeError
    assert list(store.items("journal")) == []
    assert list(found) == []


@pytest.mark.parametrize(("seconds", "count"), [(1.0, 0), (31.0, 1)])
def test_an_interrupted_run_is_doubted_only_after_long(store, time_has, seconds, count):
    found, now = Quarantine(store), time.time()

    def interrupted():
        time_has(time=lambda: now + seconds)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), found.watched(SUSPECT, "its first run"):
        interrupted()
    assert len(found.doubts) == count
    assert list(found) == []


CHILD = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.null.trust.test_quarantine import SUSPECT
from nxcore.trust.quarantine import Quarantine
from nxcore.store.files import Store
with Quarantine(Store(Path(sys.argv[1]))).watched(SUSPECT, "its first run on a problem"):
    print("in", flush=True)
    {ending}
"""


def child(folder, ending):
    root = str(quarantine.__file__).rsplit("/", 3)[0]
    code = textwrap.dedent(CHILD).format(root=root, ending=ending)
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "in\n"
    return process


def ended(process):
    status = process.wait(30)
    process.stdout.close()
    return status


def place(pid=2**22 + 1, born="", host=""):
    """Return the key of a note, by default of a process of this machine that has ended."""
    return {"host": host or os.uname().nodename, "pid": pid, "born": born, "turn": 0}


def note(**more):
    return {
        "what": "its first run",
        "since": time.time(),
        "suspect": {"op": "add", "kernel": "fake", "dtype": "float32", "device": {}, "made_of": {}},
    } | more


def test_a_process_that_ended_in_a_first_run_is_a_doubt_at_the_next_start_and_no_verdict(tmp_path):
    store = Store(tmp_path)
    assert ended(child(tmp_path, "os.kill(os.getpid(), 11)")) == -signal.SIGSEGV
    found = Quarantine(store)
    assert found.refusal(SUSPECT) is None
    assert found.doubt(SUSPECT).reason == "a process ended during its first run on a problem"
    assert list(store.items("journal")) == []
    again = Quarantine(Store(tmp_path))
    assert again.doubt(SUSPECT) == found.doubt(SUSPECT), "and at all after it"
    assert again.doubt(OTHERS["source"]) is None
    again.acquit(SUSPECT)
    assert Quarantine(Store(tmp_path)).doubts == []


def test_many_processes_that_were_killed_at_once_are_one_doubt(tmp_path):
    store = Store(tmp_path)
    for pid in range(8):
        store.write("journal", place(2**22 + pid), note())
    found = Quarantine(store)
    assert len(found.doubts) == 1
    assert list(found) == []


def test_clearing_removes_doubts(store):
    store.write("journal", place(), note())
    found = Quarantine(store)
    found.clear("sum")
    assert len(found.doubts) == 1
    found.clear("add")
    assert found.doubts == Quarantine(store).doubts == []


def test_a_process_that_hangs_is_let_be_and_doubted_once_it_is_killed(tmp_path):
    hung = child(tmp_path, "time.sleep(600)")
    try:
        assert Quarantine(Store(tmp_path)).doubts == [], "it may still end well"
    finally:
        hung.kill()
    ended(hung)
    assert Quarantine(Store(tmp_path)).doubt(SUSPECT)


def test_a_number_that_another_process_has_now_does_not_keep_a_note_alive(store):
    store.write("journal", place(os.getpid(), "1"), note())
    assert [d.suspect.kernel for d in Quarantine(store).doubts] == ["fake"]


@pytest.mark.parametrize(("age", "count"), [(60.0, 0), (DAY + 60, 1)])
def test_a_note_of_another_host_is_believed_for_a_day(store, age, count):
    store.write("journal", place(1, host="elsewhere"), note(since=time.time() - age))
    assert len(Quarantine(store).doubts) == count


@pytest.mark.parametrize("pid", [10**18, -1, 0, 1.5, "1"])
@pytest.mark.parametrize("since", [1e300, -1.0, float("inf"), "now"])
def test_a_note_of_no_process_is_dropped(store, pid, since):
    store.write("journal", place(pid), note(since=since))
    Quarantine(store)
    assert list(store.items("journal")) == []


@pytest.mark.parametrize(
    "note", [{}, {"suspect": 3, "since": 0.0}, {"suspect": {"op": "add"}, "since": 0.0}], ids=str
)
def test_a_note_that_says_nothing_is_dropped(store, note):
    store.write("journal", place(), note)
    assert list(Quarantine(store)) == []
    assert list(store.items("journal")) == []


def test_the_birth_of_this_process_is_read_once_and_that_of_a_child_anew(store, monkeypatch):
    found, asked, own = Quarantine(store), [], os.getpid()
    monkeypatch.setattr(quarantine, "_born", lambda pid: asked.append(pid) or "7")
    quarantine._own_birth.cache_clear()
    for pid in (own, own, own + 1):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        with found.watched(SUSPECT, "its verification"):
            pass
    quarantine._own_birth.cache_clear()
    assert asked == [own, own + 1]
