"""Workers compile beside the program: their failures are told, and none outlives it."""

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch

from nxcore.choose.ahead import compiled, pays, uncompiled
from nxcore.choose.process import Answer, Task
from nxcore.choose.worker import Niceness
from nxcore.choose.workers import BESIDE, Workers
from nxcore.interop import native
from nxcore.spec.compiling import compiling
from nxcore.spec.problem import Problem
from nxcore.spec.tally import tally
from nxcore.store.files import Store
from nxcore.trust.quarantine import Quarantine
from nxcore.trust.suspect import Suspect
from tests.null.choose.learn.test_exploration import ENOUGH, X, called, learning, ready
from tests.null.fakes import SPECS

PROBLEM = Problem.of(SPECS["add"], (X, X, 1, None))

# Answers as a worker does; what it does with a task is told by the kernel's name.
WORKER = """
import json, os, sys, time
print("note", os.getpid(), file=sys.stderr, flush=True)
for line in sys.stdin:
    name = json.loads(line)["kernel"]
    if name == "crash":
        print("the last words", file=sys.stderr, flush=True)
        os._exit(3)
    time.sleep(60 if name == "hang" else 0)
    why = "can't" if name == "fails" else ""
    print(json.dumps({"why": why, "seconds": 0.5, "compilations": 2}), flush=True)
"""
COMMAND = (sys.executable, "-c", WORKER)


def started(most=1, **limits):
    return Workers(COMMAND, os.environ, most, **limits)


def asked(found, *names, heats=()):
    """Ask for kernels, wait for all, and return names and answers in the order of the answers."""
    answers, done = [], threading.Semaphore(0)

    def answered(name, answer):
        answers.append((name, answer))
        done.release()

    for i, name in enumerate(names):
        heat = heats[i] if heats else 0.0
        found.ask(PROBLEM, name, lambda answer, name=name: answered(name, answer), heat)
    for _ in names:
        assert done.acquire(timeout=300)
    return answers


def ended(found):
    """Wait until no worker is left."""
    found._idle_s = 0.0
    if thread := found.thread:
        thread.join(20)
        assert not thread.is_alive()


def test_a_task_is_answered_and_the_hottest_is_first():
    found = started()
    before = tally().compilations
    assert asked(found, "one") == [("one", Answer("", 0.5, 2))]
    assert tally().compilations == before + 2, "it was compiled for this process"
    found.ask(PROBLEM, "first", lambda answer: time.sleep(0.3))
    order = [name for name, _ in asked(found, "cold", "warm", "hot", heats=(0.1, 0.2, 0.3))]
    assert order[-1] == "cold"
    ended(found)


BY_WHOM = """
import json, os, sys, time
for line in sys.stdin:
    time.sleep(0.1)
    print(json.dumps({"why": f"{os.getpid()}"}), flush=True)
"""


def test_an_operator_is_one_workers_while_there_are_others():
    """Two processes that measure verified each kernel twice."""
    found, done, whose = Workers((sys.executable, "-c", BY_WHOM), os.environ, 2), threading.Semaphore(0), []

    def answered(op, answer):
        whose.append((op, answer.why))
        done.release()

    for op in [*["add"] * 5, *["sum"] * 5]:
        found.add(Task({"op": op}, functools.partial(answered, op)))
    for _ in range(10):
        assert done.acquire(timeout=60)
    rarest = [n for _, n in Counter(whose).most_common()[2:]]
    assert sum(rarest) <= 1, "the last one may be anyone's"
    ended(found)


def test_a_worker_that_crashes_fails_its_task_alone_and_its_last_words_are_told():
    found = started()
    (_, answer), (_, then) = asked(found, "crash", "fine")
    assert "status 3" in answer.why
    assert "the last words" in answer.why
    assert then.why == ""
    ended(found)


def test_a_worker_that_hangs_is_ended():
    found = started(patience=1.0)
    (_, answer), (_, then) = asked(found, "hang", "fine")
    assert "no answer for 1 s" in answer.why
    assert then.why == ""
    ended(found)


NICE = """
import json, os, sys
for line in sys.stdin:
    said = f"{sys.argv[1]} {json.loads(line)['nice']}"
    print(json.dumps({"why": said, "seconds": 0.5}), flush=True)
"""


def test_workers_have_the_programs_priority_until_they_have_taken_their_seconds():
    """With the lowest one a program with a thread a core had no kernel after minutes."""
    found = Workers((sys.executable, "-c", NICE), os.environ, 1, full=1.0, low=10)
    assert [answer.why for _, answer in asked(found, "one")] == ["0 0"]
    assert [answer.why for _, answer in asked(found, "two")] == ["0 0"]
    assert [answer.why for _, answer in asked(found, "three")] == ["0 10"]
    ended(found)
    assert [answer.why for _, answer in asked(found, "four")] == ["10 10"], "a new one starts with it"
    ended(found)


def test_a_worker_never_takes_more_priority(monkeypatch):
    steps = []
    monkeypatch.setattr(os, "nice", steps.append)
    niceness = Niceness()
    for wanted in (0, 10, 0, 10, 19):
        niceness.raise_to(wanted)
    assert steps == [10, 9]


def test_while_the_cpu_races_workers_begin_nothing_and_a_race_waits_for_those_at_work():
    session, _, runs = learning(torch=100, fast=50)
    session.tuner.workers = there = Answering()
    learner = session.chooser.learner
    learner.keep_quiet()
    assert there.affords()
    ready(session, X, X)
    assert not there.affords(), "its kernels are ready"
    there.busy = True
    runs.clear()
    called(session, 5, X, X)
    assert runs == ["torch"] * 5
    there.busy = False
    called(session, ENOUGH, X, X)
    assert runs[-1] == "fast"


def test_what_cant_be_started_is_told():
    found = Workers(("/no/such/python",), os.environ, 1)
    ((_, answer),) = asked(found, "any")
    assert "no worker could be started" in answer.why
    ended(found)


def test_an_idle_worker_ends_and_the_next_task_has_another():
    found = started(idle=0.0)
    asked(found, "one")
    ended(found)
    assert found._workers == []
    assert asked(found, "two")[0][1].why == ""
    ended(found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_no_workers_and_its_parents_go_on():
    found = started()
    asked(found, "one")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process of several threads
        child = os.fork()
    if child == 0:
        found.after_fork()
        os._exit(0 if (found.most, found.thread, found._workers) == (0, None, []) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert asked(found, "two")[0][1].why == ""
    ended(found)


END = """
import os, sys
sys.path.insert(0, {root!r})
from tests.null.choose.test_workers import PROBLEM, started
found = started()
found.ask(PROBLEM, "hang", print)
while not (found._workers and found._workers[0].task):
    pass
print(found._workers[0]._process.pid, flush=True)
{then}
"""


@pytest.mark.parametrize("then", ["", "os.kill(os.getpid(), 9)"], ids=["ends", "is killed"])
def test_no_worker_outlives_a_program_and_none_is_waited_for(then):
    script = END.format(root=str(Path(__file__).parents[3]), then=then)
    if then:  # a worker of ours reads its standard input while it works; this one doesn't
        script = script.replace('"hang"', '"fine"').replace(
            "found._workers[0].task", "found._workers[0].answers"
        )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == (-signal.SIGKILL if then else 0), done.stderr
    pid, ends = int(done.stdout.split()[0]), time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < ends:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


SUSPECT = Suspect("add", "fake", "float32", {"type": "cpu", "name": "any"}, {"sources": {"a": "1"}})


def _die_within(folder, master):
    quarantine = Quarantine(Store(folder))
    if master:
        quarantine.work_for(master)
    with quarantine.watched(SUSPECT, "its verification"):
        os._exit(0)


def _ended_in_the_middle(folder, master):
    child = multiprocessing.get_context("fork").Process(target=_die_within, args=(folder, master))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process of several threads
        child.start()
    child.join(30)
    return child.pid


def test_a_kernel_that_ends_a_worker_is_doubted_and_one_that_ends_with_its_program_isnt(tmp_path):
    found = Quarantine(Store(tmp_path))
    gone = _ended_in_the_middle(tmp_path / "other", 0)
    _ended_in_the_middle(tmp_path, gone)
    found.read()
    assert not found.doubts, "both were killed"
    _ended_in_the_middle(tmp_path, os.getpid())
    found.read()
    assert len(found.doubts) == 1
    assert not list(found)


def test_who_leaves_withdraws_its_notes(tmp_path):
    found = Quarantine(Store(tmp_path))
    pid = _ended_in_the_middle(tmp_path, os.getpid())
    found.withdraw(pid)
    found.read()
    assert not found.doubts


class Answering:
    """Workers that answer at once."""

    def __init__(self, why=""):
        self.why, self.most, self.asked, self.busy = why, 1, [], False

    def ask(self, problem, kernel, answered, heat=0.0, sample=""):
        self.asked.append(kernel)
        answered(Answer(self.why, 2.0))


@pytest.mark.parametrize("why", ["", "it has ended"])
def test_what_workers_compiled_is_raced_and_what_they_couldnt_is_compiled_here(why, caplog):
    session, _, runs = learning(torch=100, fast=50)
    session.tuner.workers = there = Answering(why)
    ready(session, X, X)
    called(session, ENOUGH, X, X)
    assert there.asked == ["fast"], "torch's own needs none"
    assert runs[-1] == "fast"
    assert session.chooser.learner.pace.charged == pytest.approx(BESIDE * 2.0, rel=0.5)
    assert (why in caplog.text) if why else not caplog.records


def test_what_must_be_compiled_or_verified_is_known():
    session, _, _ = learning(torch=100, fast=50)
    tuner = session.tuner
    assert uncompiled(tuner, PROBLEM) == ["fast"], "it isn't verified"
    kernel = next(k for b, k in session.registry.kernels("add") if b.name == "fast")
    tuner.gate.verify(session.registry.backend("fast"), kernel, PROBLEM)
    assert uncompiled(tuner, PROBLEM) == []
    object.__setattr__(kernel, "planner", lambda problem: compiling("add"))
    assert uncompiled(tuner, PROBLEM) == ["fast"], "it isn't on disk"
    tuner.gate.quarantine.add(
        tuner.gate.suspect(session.registry.backend("fast"), kernel, PROBLEM.device, PROBLEM.dtype),
        "wrong",
        "x",
    )
    assert uncompiled(tuner, PROBLEM) == []


def test_problems_are_compiled_by_several_workers_and_not_waited_for_from_one():
    session, _, _ = learning(torch=100, fast=50)
    session.tuner.workers, told = Answering(), []
    assert not pays(session.tuner)
    session.tuner.workers.most = 2
    assert pays(session.tuner)
    compiled(session.tuner, [PROBLEM, PROBLEM], lambda *step: told.append(step))
    assert told == [("fast of add", 1, 1)]


PROGRAM = """
import torch, nxcore, time
print("begun", flush=True)
torch.set_num_threads(1)
xs, logits = tuple(torch.randn(8, 16, 16, 16) for _ in range(8)), torch.randn(8)
op, ends = nxcore.op("softmax_sum"), time.monotonic() + 240
for _ in range(20):
    op(xs, logits)
while nxcore.session.default().learning:
    op(xs, logits)
    assert time.monotonic() < ends
found = nxcore.explain("softmax_sum", xs, logits, decide=False).decision
print([c.refusal for c in found.candidates if c.label == "numba"], flush=True)
"""


REPEATS = """
from nxcore.choose import worker
from nxcore.spec.launched import repeats

worker.done = lambda tuner, task: f"repeats: {repeats()}"
worker.main()
"""


@pytest.mark.slow
def test_a_workers_plans_take_the_programs_path(tmp_path):
    """Or their verdicts would not count in the program, which would compile again what they compiled."""
    there = native.found().extension is not None
    for wanted, expected in (("1", there), ("0", False)):
        env = os.environ | {"NXCORE_NATIVE": wanted, "NXCORE_CACHE": str(tmp_path), "NXCORE_BACKENDS": ""}
        ((_, answer),) = asked(Workers((sys.executable, "-c", REPEATS), env, 1), "any")
        assert answer.why == f"repeats: {expected}"


@pytest.mark.slow
def test_a_program_without_a_guard_has_its_kernels_compiled_beside_it(tmp_path):
    env = os.environ | {
        "NXCORE_WORKERS": "1",
        "NXCORE_CACHE": str(tmp_path),
        "NXCORE_POLICY": "auto",
        "NXCORE_BACKENDS": "numba",
        "NXCORE_LOG": "warning",
    }
    env.pop("NUMBA_CACHE_DIR", None)
    env.pop("PYTEST_XDIST_WORKER", None)
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.stdout.split("\n")[:2] == ["begun", "[None]"], done.stderr
    assert done.stderr == ""
    journal = tmp_path / "v1" / "journal"
    assert not journal.exists() or not list(journal.iterdir())
    assert torch.get_num_threads()
