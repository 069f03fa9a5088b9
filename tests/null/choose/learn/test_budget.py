"""Work in the background takes its share and no more, ends with the program, and survives a fork."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch

from nxcore.choose.learn.budget import READ_S, Hand, Pace, Running, waited_s
from nxcore.choose.learn.exploration import MET, Exploration
from nxcore.spec.problem import Problem
from nxcore.trust.identity import Identities, Identity
from tests.conftest import left_working
from tests.null import fakes
from tests.null.choose.learn.test_exploration import ADD, CPU, ENOUGH, X, called, learning, ready


class Time:
    """A clock and a processor's, both moved by the test."""

    def __init__(self, ends=None):
        self.now, self.spent, self.ends = 0.0, 0.0, ends

    def work(self, seconds):
        self.now += seconds
        self.spent += seconds

    def wait(self, seconds):
        self.now += seconds
        return self.ends is None or self.now < self.ends


def paced(when, share=0.04):
    return Pace(share, clock=lambda: when.now, processor=lambda: when.spent, wait=when.wait)


def test_work_stays_within_its_share_at_every_moment():
    when, shares = Time(), []
    pace = paced(when)
    pace.begin()
    with pace.working():
        for piece in (0.5, 2.0, 0.1, 1.9, 0.01, 2.0):
            pace.rest(2.0)
            when.work(piece)
            shares.append(when.spent / when.now)
    assert max(shares) < 0.05
    assert shares[-1] > 0.03, "and it takes it"


def test_time_in_which_the_program_waits_for_a_processor_gives_no_share():
    when, waited = Time(), [0.0]
    pace = Pace(0.04, clock=Running(lambda: when.now, lambda: waited[0]), processor=lambda: when.spent)
    pace.begin()
    when.now, waited[0] = 100.0, 75.0
    assert pace.left(1.0) <= 0, "25 s of running time pay for 1 s"
    assert pace.left(1.1) > 0
    when.now, waited[0] = 110.0, 85.0
    assert pace.left(1.1) > 0, "nothing ran meanwhile"


def test_the_wait_for_a_processor_is_read_now_and_then():
    when, reads = Time(), []
    clock = Running(lambda: when.now, lambda: float(len(reads.append(None) or reads)))
    assert clock() == -1.0
    when.now = READ_S / 2
    assert clock() == when.now - 1.0
    when.now = READ_S
    assert clock() == when.now - 2.0


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this system counts no waits")  # noqa: PTH110  read at import
def test_the_main_thread_waits_while_others_run():
    """Two processes on one processor: each waits for the other."""
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(threading.main_thread().native_id, {min(allowed)})
        before, until = waited_s(), time.monotonic() + 1.0
        while time.monotonic() < until:
            pass
        assert waited_s() - before > 0.2
    finally:
        os.sched_setaffinity(threading.main_thread().native_id, allowed)
        for other in others:
            other.kill()
            other.wait()


def test_a_piece_that_takes_longer_than_expected_is_paid_before_the_next():
    when = Time()
    pace = paced(when)
    with pace.working():
        pace.rest(1.0)
        when.work(40)
        pace.rest(1.0)
    assert when.now == pytest.approx(41 / 0.04)


def test_what_pieces_cost_is_counted_too():
    when = Time()
    pace = paced(when)
    pace.charge(3.0)
    with pace.working():
        pace.rest(1.0)
    assert when.now == pytest.approx(4 / 0.04)


def test_a_race_is_charged_and_waits_until_the_budget_allows_a_piece():
    when, pieces = Time(), []
    pace = paced(when)
    found = Exploration(lambda: 0, CPU, wanted=lambda: None, pace=pace)
    for _ in range(MET):
        found.call()

    def piece():
        pieces.append(when.now)
        when.now += 3.0

    pace.begin()
    found.begin(piece)
    for _ in range(3):
        assert found.call() == 0
    assert pieces == [0.0]
    assert pace.spent == pytest.approx(3.0)
    when.now = 3 / 0.04
    found.call()
    assert len(pieces) == 2


def test_who_rests_holds_nothing_and_the_programs_end_ends_the_rest():
    free = []
    when = Time(ends=10.0)
    pace = paced(when)

    def take():
        with pace.busy:
            free.append(True)

    def wait(seconds):
        other = threading.Thread(target=take)
        other.start()
        other.join(5)
        return when.wait(seconds)

    pace._wait = wait
    with pytest.raises(SystemExit), pace.working():
        pace.rest(1.0)
    assert free == [True]


def test_a_hand_does_the_next_job_after_one_that_raised():
    done, failures = [], []
    hand = Hand(Pace(float("inf")), idle=lambda: done.append("idle"), failed=failures.append, most=9)
    hand.add(fakes.raising(RuntimeError("no")))
    hand.add(lambda: done.append("second"))
    if thread := hand.thread:
        thread.join(20)
    assert [str(f) for f in failures] == ["no"]
    assert done[-2:] == ["second", "idle"]


def test_a_hand_whose_rest_is_over_for_good_drops_its_jobs_and_takes_later_ones():
    ends, done = threading.Event(), []
    pace = Pace(0.01, grace=60.0, wait=lambda _: ends.wait(30) and False)
    hand = Hand(pace, idle=list, failed=done.append, most=3)
    hand.add(lambda: done.append("dropped"))
    resting = hand.thread
    assert left_working(0.01) == ["nxcore learns"]
    ends.set()
    resting.join(30)
    pace.grace = 0.0
    hand.add(lambda: done.append("later"))
    assert not left_working(30)
    assert done == ["later"]


def slow_to_plan(session, seconds, lock):
    kernel = next(k for b, k in session.registry.kernels("add") if b.name == "fast")
    ran = kernel.plan(None)

    def plan(problem):
        with lock:
            time.sleep(seconds)
        return ran

    object.__setattr__(kernel, "planner", plan)


def test_no_call_waits_for_a_compiler():
    session, _, runs = learning(torch=100, fast=50)
    slow_to_plan(session, 0.3, threading.Lock())
    op, longest, ends = session.op("add"), 0.0, time.monotonic() + 30
    op(X, X)  # torch imports its compiler to broadcast shapes
    while "fast" not in runs[-3:] and time.monotonic() < ends:
        started = time.monotonic()
        op(X, X)
        longest = max(longest, time.monotonic() - started)
        time.sleep(1e-3)
    assert runs.count("torch") > 100, "it took its time"
    assert longest < 0.25


def test_threads_that_meet_the_same_problem_have_it_prepared_once():
    session, _, _ = learning(torch=100, fast=50)
    asked, entered = [], session.tuner.entered
    session.tuner.entered = lambda *of: asked.append(of[0]) or entered(*of)
    threads = [threading.Thread(target=called, args=(session, MET, X, X)) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    session.chooser.learner.settle(30)
    assert len(asked) == 1


END = """
import torch
from nxcore.session import Session
from nxcore.settings import Settings
from tests.null import fakes
session = Session(Settings(policy="auto"), fakes.registry(fakes.backend("fake")))
x = torch.ones(3, 4)
for _ in range(20):
    session.op("add")(x, x)
assert session.chooser.learner.preparing.thread.is_alive()
print("done", flush=True)
"""


def test_a_program_that_ends_waits_for_nothing():
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", END], capture_output=True, text=True, timeout=300, check=True
    )
    assert (done.stdout.strip(), done.stderr) == ("done", "")
    assert time.monotonic() - started < 20, "a compiler's rest lasts longer"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_is_forked_amid_the_work_has_no_lock_held_and_learns_anew():
    session, _, runs = learning(torch=100, fast=50)
    compilers = threading.Lock()
    slow_to_plan(session, 0.05, compilers)
    for _ in range(MET):
        session.op("add")(X, X)
    ends = time.monotonic() + 20
    while not compilers.locked() and time.monotonic() < ends:
        time.sleep(1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process of several threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            ok = compilers.acquire(timeout=5)
            compilers.release()
            session.chooser.learner.keep_to(Pace(float("inf")))
            ready(session, X, X)
            called(session, ENOUGH, X, X)
            status = 0 if ok and session.chooser.choices and runs[-1] == "fast" else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    session.chooser.learner.settle(30)
    called(session, ENOUGH, X, X)
    assert runs[-1] == "fast", "the parent goes on"


def _learn(folder, told):
    Identities.of = lambda *_: Identity("1", "1")
    session, _, runs = learning(folder, torch=100, fast=50)
    op = session.op("add")
    told.send(torch.equal(op(X, X), ADD(X, X, 1, None)))
    ready(session, X, X)
    called(session, ENOUGH, X, X)
    told.send((runs[0], runs[-1]))


def test_what_one_spawned_process_learnt_serves_the_next_from_its_first_call(tmp_path):
    context, first = multiprocessing.get_context("spawn"), []
    for _ in range(2):
        here, there = context.Pipe()
        child = context.Process(target=_learn, args=(tmp_path, there))
        child.start()
        assert here.poll(100)
        assert here.recv()
        assert here.poll(100)
        first.append(here.recv())
        child.join(30)
        assert child.exitcode == 0
    assert first == [("torch", "fast"), ("fast", "fast")]


IMPORT = """
import torch
def refuse(*args, **kwargs):
    raise SystemExit("CUDA was asked for")
asking = {name: getattr(torch.cuda, name) for name in ("is_available", "device_count", "current_device")}
for name in (*asking, "_lazy_init", "init"):
    setattr(torch.cuda, name, refuse)
import nxcore, nxcore.session, nxcore.choose.chooser, nxcore.testing, nxcore.plugin
for name, ask in asking.items():  # a plugin may ask whether there is CUDA, and must not start it
    setattr(torch.cuda, name, ask)
import nxcore_cuda, nxcore_numba, nxcore_triton, nxcore_cupy, nxcore_jax
nxcore.op("add")(torch.ones(3), torch.ones(3))
nxcore.backends()
assert not torch.cuda.is_initialized()
print("none")
"""


def test_nothing_starts_cuda_at_import():
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip() == "none", done.stderr[-1500:]


@pytest.mark.gpu
def test_work_in_another_thread_does_a_captured_graph_no_harm():
    """On one GPU: with the thread's mode as it is by default, the capture ends in an error."""
    from nxcore.spec.device import heed_no_capture

    x, asked, done = torch.ones(1 << 20, device="cuda"), threading.Event(), threading.Event()

    def work():
        asked.wait(20)
        heed_no_capture()
        y = torch.empty(1 << 26, device="cuda")
        y.fill_(1)
        torch.cuda.current_stream().synchronize()
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = x + 1
        asked.set()
        assert done.wait(20)
        z = y + 1
    thread.join()
    graph.replay()
    torch.cuda.synchronize()
    assert float(z[0]) == 3.0


def test_a_look_at_the_explorations_hashes_no_problem(monkeypatch):
    """A watch over steps looks four times a second, and a network has hundreds of problems."""
    session, *_ = learning(torch=100, fast=50)
    ready(session, X, X)
    hashed = []
    monkeypatch.setattr(Problem, "__hash__", lambda self: hashed.append(self) or id(self))
    assert len(session.chooser.explorations()) == 1
    assert session.learning
    assert hashed == []
