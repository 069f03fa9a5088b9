"""Problems are measured by a process beside the program, which reads what it found."""

import functools
import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nxcore.call import serving
from nxcore.choose import survey, worker, workers
from nxcore.choose.process import Answer, Task
from nxcore.choose.survey import RACE, REST, Survey
from nxcore.context import Purpose, in_force
from nxcore.measure import race as racing
from nxcore.settings import Settings
from nxcore.spec.problem import Problem
from nxcore.store import transfer
from tests.null import fakes
from tests.null.choose.learn.test_exploration import X, learning
from tests.null.fakes import SPECS
from tests.stand_ins import stand_in

worker_has = stand_in(worker)
workers_has = stand_in(workers)
survey_has = stand_in(survey)

PROBLEM = Problem.of(SPECS["add"], (X, X, 1, None))


class Process:
    """Stands in for the process: it notes the tasks, and answers when it is told to."""

    most = 1

    def __init__(self):
        self.tasks, self.affords = [], None

    def give(self, problem, request, answered, heat=0.0):
        self.tasks.append((problem, json.loads(json.dumps(request)), answered))

    def answer(self, *, do=lambda problem, request: Answer(seconds=2.0, raced=0.5)):
        tasks, self.tasks = self.tasks, []
        for problem, request, answered in tasks:
            answered(do(problem, request))


@pytest.fixture(autouse=True)
def _processors(monkeypatch, survey_has, raced_by):
    """Problems of the CPU are taken, and one clock tells the time of all kernels."""
    clock = fakes.Clock()
    survey_has(DEVICES=("cpu",))
    fakes.identified(monkeypatch)
    monkeypatch.setattr(fakes, "Clock", lambda: clock)
    raced_by(functools.partial(racing.race, clock=clock))


def surveyed(process=None):
    """Return a survey with its process, its budget, and how often plans were made again."""
    process, changes = process or Process(), []
    found = Survey(process, lambda: changes.append(1))
    budget = SimpleNamespace(spent=0.0, affords=True)
    budget.charge = lambda seconds: setattr(budget, "spent", budget.spent + seconds)
    found.keep_to(lambda: budget)
    return found, process, budget, changes


def test_a_problem_is_measured_once_within_the_budget_and_all_who_ask_are_told():
    found, process, budget, changes = surveyed()
    told = []
    assert found.takes(PROBLEM)
    found.ask(PROBLEM, told.append)
    found.ask(PROBLEM, told.append)
    found.ask(PROBLEM)
    assert (len(process.tasks), found.open, changes) == (1, 1, [])
    budget.affords = False
    assert not process.affords()
    process.answer()
    assert (told, found.open, changes) == (["", ""], 0, [1])
    assert budget.spent == pytest.approx(0.5 * RACE + 1.5 * REST)
    assert not found.takes(PROBLEM), "its page is on disk, or it can't be measured there"


@pytest.mark.parametrize(("busy", "part"), [(None, 1.0), (0.3, 0.3), (1.0, 1.0)])
def test_a_race_costs_more_the_more_the_device_is_at_work(busy, part):
    found, process, budget, _ = surveyed()
    found.ask(PROBLEM)
    process.answer(do=lambda *_: Answer(seconds=3.0, raced=1.0, busy=busy))
    assert budget.spent == pytest.approx(part * (RACE + 2 * REST))


@pytest.mark.parametrize(
    ("saved", "every", "paid"), [(0.2, 0.5, True), (0.2, 1.5, False), (0.0, 0.01, False)]
)
def test_calls_that_save_enough_pay_for_it_without_a_budget(saved, every, paid, monkeypatch):
    found, process, budget, _ = surveyed()
    now = [100.0]
    monkeypatch.setattr(survey.time, "monotonic", lambda: now[0])
    for _ in range(2):
        found.pay(saved)
        now[0] += every
    now[0] += 0.1
    found.ask(PROBLEM)
    budget.affords = False
    assert process.affords() is paid
    process.answer()
    assert (budget.spent == 0) is paid
    now[0] += 1.0
    assert not process.affords(), "the last such call was long ago"


def test_the_process_is_started_before_there_is_a_problem():
    found, process, budget, _ = surveyed()
    tasks = []
    process.add = tasks.append
    for device in ("cpu", "cpu"):
        found.prepare(torch.device(device))
    (task,) = tasks
    assert task.request == {"prepare": 0}
    task.answered(Answer(seconds=2.0))
    assert budget.spent == pytest.approx(2.0 * REST)
    assert not found.open


@pytest.mark.parametrize(
    ("policy", "known", "prepared"), [("auto", False, 1), ("auto", True, 0), ("measure", False, 0)]
)
def test_it_is_prepared_where_nothing_is_known_of_a_device(tmp_path, policy, known, prepared):
    chooser, found = beside(tmp_path, torch=50, fast=100)[0].chooser, []
    chooser.survey.prepare = found.append
    chooser.recall.wisdom.has = lambda device: known
    with in_force(policy=policy):
        chooser.expect(torch.ones(1))
    assert len(found) == prepared


def test_what_the_process_needs_to_measure_alike_is_in_the_task():
    found, process, _, _ = surveyed()
    before = survey.modes()
    torch.set_float32_matmul_precision("high")
    try:
        found.ask(PROBLEM)
    finally:
        survey.adopt(before)
    _, request, _ = process.tasks[0]
    assert request["shipped"] == str(transfer.SHIPPED)
    assert request["modes"] == before | {"matmul": "high"}
    survey.adopt(request["modes"])
    assert survey.modes()["matmul"] == "high"
    survey.adopt(before)


@pytest.mark.parametrize("how", ["none", "device", "writes", "deterministic", "forked"])
def test_what_is_not_taken(how, monkeypatch, survey_has):
    found, _, _, _ = surveyed()
    problem = PROBLEM
    if how == "none":
        found, *_ = Survey(None, lambda: None), None
    elif how == "device":
        survey_has(DEVICES=("cuda",))
    elif how == "writes":
        problem = Problem.of(SPECS["add"], (X, X, 1, torch.empty_like(X)))
    elif how == "forked":
        found.ask(problem)
        found.after_fork()
        assert found.open == 0
    if how == "deterministic":
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert not found.takes(problem)


def test_without_memory_nothing_is_asked():
    found, process, _, _ = surveyed()
    told = []
    found._room = lambda problem: False
    found.ask(PROBLEM, told.append)
    assert told == ["the device has too little free memory"]
    assert (process.tasks, found.takes(PROBLEM)) == ([], False)


def test_a_process_keeps_little_memory_between_problems_and_frees_more(cuda_answers):
    freed = []
    for held in (survey.ROOM // 16, survey.ROOM // 8):
        cuda_answers(memory_reserved=lambda _, n=held: n, empty_cache=lambda n=held: freed.append(n))
        worker.free_much(torch.device("cuda"))
    worker.free_much(torch.device("cpu"))
    assert freed == [survey.ROOM // 8]


def test_a_process_looks_once_how_busy_the_device_is(tmp_path, worker_has):
    found, looks = worker.Surveyor(learning(folder=tmp_path, torch=50)[0].tuner), []
    worker_has(busy=lambda index: looks.append(index) or 0.4)
    for _ in range(2):
        found._look(1)
    assert (found.busy, looks) == (0.4, [1]), "from then on it is this process that is at work"


def test_the_program_keeps_most_of_the_free_memory(cuda_answers):
    x = torch.empty(2**26, device="meta")  # 256 MiB
    problem, looks = SimpleNamespace(device=torch.device("cuda"), tensors=[x, x]), []
    for free, roomy in ((20 * 2**30, False), (21 * 2**30, True)):
        found, _, _, _ = surveyed()
        seen = free, 80 * 2**30
        cuda_answers(mem_get_info=lambda device, seen=seen: looks.append(1) or seen)
        assert [found._room(problem) for _ in range(2)] == [roomy] * 2
    assert len(looks) == 2, "a network has a hundred problems at once"


@pytest.mark.parametrize("how", ["few", "many", "begun"])
def test_few_problems_are_taken_back_unless_one_is_begun(how, survey_has):
    found, process, _, _ = surveyed()
    told = []
    process.withdrawn = lambda: how != "begun"
    survey_has(FEW=0 if how == "many" else 1)
    assert not found.withdraw(), "there is none"
    found.ask(PROBLEM, told.append)
    assert found.withdraw() is (how == "few")
    assert (found.open, found.takes(PROBLEM), bool(told)) == (
        (0, False, True) if how == "few" else (1, True, False)
    )


def test_the_process_prepares_and_answers(tmp_path):
    answers, done = [], threading.Event()
    settings = Settings(cache=tmp_path)
    found = workers.Workers(
        (sys.executable, "-P", "-m", "nxcore.choose.worker"), workers.environment(settings), 1, idle=0.1
    )
    found.add(Task({"prepare": 0}, lambda answer: (answers.append(answer), done.set())))
    assert done.wait(120)
    assert (answers[0].why, answers[0].compilations) == ("", 0)
    assert answers[0].seconds < 60


def beside(folder, **us):
    """Return an online session whose problems another session measures, with the process."""
    session, _, runs = learning(folder=folder, **us)
    process = Process()
    session.chooser.survey = session.chooser.learner.survey = found = Survey(process, session._forget)
    found.keep_to(lambda: session.chooser.learner.pace)
    other = learning(folder=folder, **us)[0]

    def do(problem, request):
        task = {"op": "add", "problem": workers.key(problem)} | request
        return Answer(stays=worker.Surveyor(other.tuner).measured(task))

    return session, process, runs, lambda: process.answer(do=do)


def called(session, times):
    """Call, and give the background its time after each; the process has its own."""
    for _ in range(times):
        session.op("add")(X, X)
        if thread := session.chooser.learner.preparing.thread:
            thread.join(30)


def test_calls_take_no_turns_and_the_winner_is_read(tmp_path):
    session, process, runs, answer = beside(tmp_path, torch=100, fast=50)
    called(session, 30)
    assert set(runs) == {"torch"}
    assert len(process.tasks) == 1
    assert session.learning
    answer()
    session.chooser.learner.settle(30)
    assert not session.learning
    runs.clear()
    called(session, 3)
    assert runs == ["fast"] * 3
    assert session.wisdom.read(PROBLEM).policy == "measure"


def test_a_problem_that_could_not_be_measured_there_is_learnt_from_its_calls(tmp_path):
    session, process, runs, _ = beside(tmp_path, torch=100, fast=50)
    called(session, 30)
    process.answer(do=lambda *_: Answer("it ended"))
    called(session, 60)
    assert "fast" in runs
    assert session.explain("add", X, X, decide=False).decision.chosen == "fast"


def test_where_nothing_could_be_raced_torch_stays(tmp_path):
    session, process, runs, _ = beside(tmp_path, torch=100, fast=50)
    called(session, 30)
    process.answer(do=lambda *_: Answer(stays="no kernel of another backend can run this call"))
    called(session, 60)
    assert set(runs) == {"torch"}
    assert not session.learning


def test_what_a_capture_asks_is_measured_beside_it_and_read_by_the_next_one(tmp_path):
    session, process, runs, answer = beside(tmp_path, torch=100, fast=50)
    with in_force(purpose=Purpose.WAIT):
        called(session, 30)
    assert session.chooser.explorations() == [], "nothing is learnt for calls that a capture replaces"
    with in_force(purpose=Purpose.CAPTURE):
        session.op("add")(X, X)
    assert (set(runs), len(process.tasks), session.learning) == ({"torch"}, 1, True)
    answer()
    with in_force(purpose=Purpose.CAPTURE):
        runs.clear()
        session.op("add")(X, X)
        assert runs[-1] == "fast"


def test_a_run_that_finds_problems_takes_one_for_a_kernels_until_that_is_known(tmp_path):
    session, _, _, answer = beside(tmp_path, torch=50, fast=100)
    with in_force(purpose=Purpose.CAPTURE):
        assert session.op("add").by_kernel(X, X, 1, None) is None
    with in_force(purpose=Purpose.FIND):
        torch.testing.assert_close(session.op("add").by_kernel(X, X, 1, None), X + X)
        answer()
        assert session.op("add").by_kernel(X, X, 1, None) is None, "the caller runs its own parts"


@pytest.mark.parametrize(("finding", "policy"), [(True, "known"), (False, "auto")])
def test_no_pair_is_measured_of_halves_that_are_not_known(tmp_path, monkeypatch, finding, policy):
    session, *_ = beside(tmp_path, torch=100, fast=50)
    policies = []
    crossing = SimpleNamespace(call=lambda *args: X, settle=lambda half: None)
    monkeypatch.setattr(serving, "Crossing", lambda *_, policy, **__: policies.append(policy) or crossing)
    session.tuner.accepting = lambda *_: ["fast"]
    with in_force(purpose=Purpose.FIND if finding else Purpose.CAPTURE):
        session.op("add")(X, X[:1].clone().requires_grad_())
    assert policies == [policy]


def test_plans_stay_where_a_problem_is_known_that_was_measured_beside(tmp_path):
    session, _, _, answer = beside(tmp_path, torch=100, fast=50)
    with in_force(purpose=Purpose.FIND):
        session.op("add")(X, X)
    answer()
    with in_force(purpose=Purpose.DECIDE):
        session.op("add")(X[:1], X[:1])
        session.op("add")(X, X)
        assert len(session.op("add").plans) == 2, "a recording would have to make the first one again"


def test_who_does_not_come_back_measures_at_once(tmp_path):
    session, process, runs, _ = beside(tmp_path, torch=100, fast=50)
    with in_force(purpose=Purpose.DECIDE):
        session.op("add")(X, X)
    assert process.tasks == []
    assert runs[-1] == "fast"


def test_a_run_measures_as_many_itself_as_it_is_told(tmp_path):
    session, process, runs, _ = beside(tmp_path, torch=100, fast=50)
    session.chooser.survey.left_to_calls = 1
    with in_force(purpose=Purpose.FIND):
        session.op("add")(X, X)
        assert (process.tasks, runs[-1]) == ([], "fast")
        session.op("add")(X[:1], X[:1])
    assert (len(process.tasks), session.chooser.survey.open) == (1, 1)


def test_a_measuring_process_has_the_gpus_and_workers(monkeypatch, workers_has, tmp_path):
    monkeypatch.setenv(workers.VISIBLE, "1")
    workers_has(allowed=lambda settings: 4)
    found = workers.measuring(Settings(cache=tmp_path), "some.module")
    assert (found.most, found._environment[workers.VISIBLE]) == (2, "1")
    assert found._environment["NXCORE_WORKERS"] == "4"
    assert workers.measuring(Settings(cache=tmp_path, measure=False), "some.module") is None
    workers_has(allowed=lambda settings: 1)
    assert workers.measuring(Settings(cache=tmp_path), "some.module") is None


def test_nothing_is_begun_that_is_not_afforded():
    done, answers = threading.Event(), []
    answer = json.dumps({"why": "", "seconds": 1.0, "compilations": 0, "stays": "so"})
    command = (sys.executable, "-c", f"import sys\nfor line in sys.stdin: print({answer!r}, flush=True)")
    found = workers.Workers(command, {}, 1, idle=0.1)
    allowed = []
    found.affords = lambda: bool(allowed)

    def answered(answer):
        answers.append(answer)
        done.set()

    found.give(PROBLEM, {}, answered)
    assert not done.wait(0.2)
    assert found.withdrawn()
    found.give(PROBLEM, {}, answered)
    allowed.append(1)
    assert done.wait(20)
    assert answers == [Answer(stays="so", seconds=1.0)]
    assert Path(command[0]).exists()
