"""A problem's kernels are raced beside its own calls, for a while each, and torch serves them until then."""

import functools
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from nxcore.choose.learn.budget import Pace
from nxcore.choose.learn.exploration import CALL_S, MET, Exploration
from nxcore.choose.learn.learner import Learner
from nxcore.measure import race
from nxcore.session import Session
from nxcore.settings import Settings
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.table import for_each

ADD = SPECS["add"].reference
X = torch.arange(12.0).view(3, 4)
CPU = torch.device("cpu")
ENOUGH = 4
"""Calls of a tenth of a millisecond in which a race is over."""
LONG = 100_000
"""Microseconds of a call that bears one step of a race."""


class Kernel:
    """Right, and noted each time it runs."""

    def __init__(self, name, runs, clock, us):
        self.name, self.runs, self.clock, self.us = name, runs, clock, us
        self.error, self.errors = None, []

    def __call__(self, *args):
        if args[0].is_meta:  # asked for the result's layout
            return ADD(*args)
        self.clock.now += round(self.us * 1e3)
        self.runs.append(self.name)
        if self.errors:
            raise self.errors.pop()
        if self.error:
            raise self.error
        return ADD(*args)


def learning(folder=None, yardstick=None, audit=False, **us):
    """Return an online session, its kernels by name, and the names of those that ran, in order."""
    clock, runs = fakes.Clock(), []
    kernels = {name: Kernel(name, runs, clock, time) for name, time in us.items()}
    spec = fakes.replace(SPECS["add"], reference=kernels.pop("torch"), idioms={})
    spec.reference.__module__, spec.reference.__qualname__ = "fakes", "add"
    if yardstick:
        kernels["torch-other"] = other = Kernel("torch-other", runs, clock, yardstick)
        other.__module__, other.__qualname__ = "fakes", "other"
        spec = fakes.replace(spec, yardsticks={"other": kernels.pop("torch-other")})
    backends = [
        fakes.backend(name, fakes.kernel("add", k, target=f"{name}:plan")) for name, k in kernels.items()
    ]
    settings = Settings(audit=audit, cache=folder, policy="auto")  # an audit adds runs
    session = Session(settings, fakes.registry(*backends, specs=fakes.specs_with(spec)), fakes.QUICK)
    chooser, pace = session.chooser, Pace(share=float("inf"))
    chooser.learner = Learner(chooser.recall, session._forget, clock, pace)
    return session, kernels | {"torch": spec.reference}, runs


def ready(session, *args):
    """Call until the problem is worth the work, and wait for the background."""
    for _ in range(MET):
        result = session.op("add")(*args)
    session.chooser.learner.settle(30)
    return result


def called(session, times, *args):
    """Call, and give the background its time after each."""
    for _ in range(times):
        session.op("add")(*args)
        session.chooser.learner.settle(30)


def test_a_call_bears_one_step_of_a_long_race_and_is_served_by_torch():
    session, _, runs = learning(torch=LONG, fast=LONG / 2, slow=0.9 * LONG)
    ready(session, X, X)
    runs.clear()
    op = session.op("add")
    for i in range(25):
        assert torch.equal(op(X, X + i), 2 * X + i)
    assert runs[1::2] == ["torch"] * 25
    assert len(runs) == 2 * 25
    assert {runs[18:50:2].count("fast"), runs[18:50:2].count("slow")} == {4}
    assert runs[18:50:2].count("torch") == 8, "itself and the A/A row"


def test_a_call_bears_so_much_of_a_race_and_a_short_race_is_over_in_one():
    session, _, runs = learning(torch=2000, fast=1800)
    ready(session, X, X)
    clock, op, before = session.chooser.learner.clock, session.op("add"), []
    for _ in range(4):
        before.append(clock.now)
        op(X, X)
    took = [(b - a) * 1e-9 for a, b in itertools.pairwise(before)]
    assert CALL_S < took[0] <= CALL_S + 3 * 2e-3 + 2e-3, "its last step, and the call"
    session, _, runs = learning(torch=10, fast=5)
    ready(session, X, X)
    called(session, 1, X, X)
    runs.clear()
    called(session, 5, X, X)
    assert runs == ["fast"] * 5


@pytest.mark.parametrize(
    ("us", "chosen", "rule"),
    [({"fast": 50, "faster": 25}, "faster", "measured"), ({"fast": 110}, "torch", "reference")],
)
def test_the_fastest_serves_once_it_is_clear_and_it_sticks(us, chosen, rule):
    session, _, runs = learning(torch=100, **us)
    ready(session, X, X)
    called(session, ENOUGH, X, X)
    runs.clear()
    called(session, 10, X, X)
    assert runs == [chosen] * 10
    found = session.explain("add", X, X).decision
    assert (found.chosen, found.rule) == (chosen, rule)
    assert found["fast"].timing is not None


@pytest.mark.parametrize(("us", "times"), [(500 * LONG, 1), (20 * LONG, 2)])
def test_a_hopeless_candidate_leaves_at_its_first_or_second_call(us, times):
    session, _, runs = learning(torch=LONG, hopeless=us)
    ready(session, X, X)
    runs.clear()
    called(session, 80, X, X)
    assert runs.count("hopeless") == times
    found = session.explain("add", X, X).decision
    assert found.chosen == "torch"
    assert found["hopeless"].timing.median_us == pytest.approx(us, rel=1e-3)


def test_until_the_kernels_are_ready_torch_serves():
    session, _, runs = learning(torch=100, fast=50)
    held = threading.Event()
    entered = session.tuner.entered
    session.tuner.entered = lambda *of: held.wait(20) and entered(*of)
    for _ in range(50):
        session.op("add")(X, X)
    assert runs == ["torch"] * 50, "no call waits for a compiler"
    held.set()
    ready(session, X, X)
    for _ in range(12):
        session.op("add")(X, X)
    assert "fast" in runs


def test_a_candidate_that_raises_or_is_laid_out_otherwise_is_left_out_and_the_answer_is_right():
    session, kernels, _ = learning(torch=100, fast=50, sad=60, odd=20)
    odd = next(k for b, k in session.registry.kernels("add") if b.name == "odd")
    ran = odd.plan(None)

    def turned(x, y, alpha, out):
        return ran(x, y, alpha, out).t().contiguous().t() if x.shape == X.shape else ran(x, y, alpha, out)

    object.__setattr__(odd, "planner", lambda problem: turned)
    ready(session, X, X)
    kernels["sad"].error = RuntimeError("no")
    op = session.op("add")
    for i in range(ENOUGH):
        assert torch.equal(op(X, X + i), 2 * X + i)
    found = session.explain("add", X, X).decision
    assert found.chosen == "fast"
    assert "RuntimeError: no" in found["sad"].refusal.reason
    assert "its result must be" in found["odd"].refusal.reason


def test_what_was_learnt_is_known_to_the_next_process(tmp_path, monkeypatch):
    fakes.identified(monkeypatch)
    session, _, _ = learning(tmp_path, torch=100, fast=50)
    ready(session, X, X)
    called(session, ENOUGH, X, X)
    again, _, runs = learning(tmp_path, torch=100, fast=50)
    again.op("add")(X, X)
    assert runs == ["fast"]
    ((_, page),) = again.wisdom.pages(CPU)
    assert page.policy == "auto"


def test_explaining_decides_now(raced_by):
    session, _, runs = learning(torch=100, fast=50)
    raced_by(functools.partial(race.race, clock=session.chooser.learner.clock))
    ready(session, X, X)
    assert session.explain("add", X, X).decision.rule == "measured"
    runs.clear()
    for _ in range(6):
        session.op("add")(X, X)
    assert set(runs) == {"fast"}


@for_each("how", ["deterministic", "out", "empty", "frozen"])
def test_here_nothing_is_explored(how):
    session, _, runs = learning(torch=100, fast=50)
    torch.use_deterministic_algorithms(how == "deterministic")
    x, more = (torch.zeros(0) if how == "empty" else X), {"out": torch.zeros(3, 4)} if how == "out" else {}
    try:
        with session.policy("frozen" if how == "frozen" else "auto"):
            for _ in range(3 * MET):
                session.op("add")(x, x, **more)
                session.chooser.learner.settle(30)
    finally:
        torch.use_deterministic_algorithms(False)
    assert runs == ["torch"] * 3 * MET


def test_an_exploration_that_runs_leaves_deterministic_calls_alone():
    session, _, runs = learning(torch=100, fast=50)
    ready(session, X, X)
    runs.clear()
    torch.use_deterministic_algorithms(True)
    try:
        called(session, 20, X, X)
    finally:
        torch.use_deterministic_algorithms(False)
    assert runs == ["torch"] * 20
    called(session, ENOUGH, X, X)
    runs.clear()
    called(session, 1, X, X)
    assert runs == ["fast"]


def test_what_was_measured_serves_a_call_with_an_out():
    session, _, runs = learning(torch=100, fast=50)
    with session.policy("measure"):
        session.op("add")(X, X, out=torch.zeros(3, 4))
    serving = session.explain("add", X, X, out=torch.zeros(3, 4)).decision.chosen
    runs.clear()
    session.op("add")(X, X, out=torch.zeros(3, 4))
    assert runs == [serving]


def test_where_nobody_else_is_there_nothing_is_explored():
    session, _, runs = learning(torch=100)
    called(session, 2 * MET, X, X)
    assert session.chooser.learner.preparing.thread is None
    assert runs == ["torch"] * 2 * MET


def test_a_shape_that_comes_but_once_is_not_worth_the_work():
    session, _, runs = learning(torch=100, fast=50)
    for n in range(1, 40):
        called(session, 1, torch.ones(n), torch.ones(n))
    assert runs == ["torch"] * 39


def test_where_torchs_best_answers_otherwise_it_races_and_serves_no_call():
    session, _, runs = learning(yardstick=0.2 * LONG, torch=LONG, fast=LONG / 2)
    ready(session, X, X)
    runs.clear()
    assert all(torch.equal(session.op("add")(X, X), 2 * X) for _ in range(60))
    assert "torch-other" in runs
    assert session.explain("add", X, X).decision.chosen == "torch", "fast is slower than torch's best"


def test_gradients_are_right_while_kernels_are_raced():
    session, _, _ = learning(torch=100, fast=50)
    leaf = X.clone().requires_grad_()
    ready(session, leaf, X)
    for _ in range(30):
        leaf.grad = None
        session.op("add")(leaf, X).sum().backward()
        assert torch.equal(leaf.grad, torch.ones_like(X))


def test_threads_share_an_exploration_and_all_answers_are_right():
    session, _, _ = learning(torch=100, fast=50)
    ready(session, X, X)
    op = session.op("add")

    def work(thread):
        return all(torch.equal(op(X, X + i + thread), 2 * X + i + thread) for i in range(100))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    # Who won is chance here: the clock of this test goes on in all threads at once.
    (choice,) = session.chooser.choices.values()
    assert choice.decision.rule != "exploring"


def test_a_race_begins_and_ends_beside_calls_that_torch_serves():
    pieces = []
    found = Exploration(lambda *args: sum(args), CPU, wanted=lambda: None, pace=Pace(float("inf")))
    for _ in range(MET):
        found.call(1, 2)
    found.begin(lambda: pieces.append(1))
    assert [found.call(1, 2) for _ in range(2)] == [3, 3]
    found.end()
    assert found.call(1, 2) == 3
    assert pieces == [1, 1]
    found.race()
    assert pieces == [1, 1]


def test_a_kernel_that_was_convicted_since_does_not_win():
    session, *_ = learning(torch=LONG, fast=LONG / 2)
    ready(session, X, X)
    backend, kernel = session.tuner.taking_part("add")[1]
    session.gate.quarantine.add(session.gate.suspect(backend, kernel, CPU, X.dtype), "wrong", "elsewhere")
    called(session, 60, X, X)
    found = session.explain("add", X, X, decide=False).decision
    assert (found.chosen, found.rule) == ("torch", "reference")


def test_what_torch_itself_raises_in_a_race_is_nobodys_strike():
    session, kernels, _ = learning(torch=100, fast=50)
    ready(session, X, X)
    kernels["torch"].errors.append(RuntimeError("torch can't"))
    called(session, ENOUGH, X, X)
    assert session.gate.quarantine._strikes == {}
    found = session.explain("add", X, X, decide=False).decision
    assert found.rule == "reference"
    assert found.reason.startswith("not measured: RuntimeError: torch can't")
