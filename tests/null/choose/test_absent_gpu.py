"""Workers compile for a GPU that they don't have, the problem and each sample on its own."""

import contextlib
import json
import threading

import pytest
import torch

from nxcore.choose import ahead, workers
from nxcore.choose.ahead import compiled, steps
from nxcore.choose.contenders import Contender
from nxcore.choose.learn.lesson import Lesson
from nxcore.choose.process import Answer
from nxcore.choose.tuner import Tuner
from nxcore.choose.worker import done
from nxcore.measure.decision import Candidate
from nxcore.spec.compiling import compiling
from nxcore.spec.problem import Problem
from nxcore.spec.tally import tally
from nxcore.store.files import Store
from nxcore.store.problems import moved
from nxcore.store.wisdom import key
from nxcore.trust.gate import Gate
from tests.null import fakes
from tests.null.choose.learn.test_exploration import learning
from tests.null.choose.test_workers import PROBLEM, started
from tests.null.fakes import SPECS
from tests.stand_ins import stand_in

ahead_has = stand_in(ahead)

FACTS = {"name": "a GPU", "major": 9, "minor": 0, "shared_memory_per_block_optin": 232448}
ON_GPU = moved(PROBLEM, torch.device("cuda"))


def absent(calls):
    """Return a registry with a kernel that is compiled for a GPU that isn't here."""

    def ahead(kernel, problem, capability):
        compiling("it")
        calls.append((kernel.op, problem, capability, torch.cuda.get_device_properties(0).name))

    kernels = [fakes.kernel(op) for op in SPECS if not SPECS[op].parts]
    return fakes.registry(fakes.replace(fakes.backend("gpu", *kernels), ahead=ahead))


@pytest.fixture
def pretending(monkeypatch, cuda_answers):
    cuda_answers(get_device_properties=torch.cuda.get_device_properties)
    monkeypatch.setattr(workers, "properties", lambda device: FACTS)


def test_a_task_has_the_expression_that_a_worker_may_not_know(pretending):
    from nxcore.expression.grammar import parsed
    from nxcore.registry import made

    spec = made.define(fakes.registry(), parsed("x * y + x", {}), "drawn")
    problem = moved(Problem.of(spec, (torch.ones(3), torch.ones(3), None)), torch.device("cuda"))
    found, calls = started(), []
    found.most, found.thread = 0, threading.current_thread()
    found.ask(problem, "gpu", print)

    def ahead(kernel, problem, capability):
        calls.append((kernel.op, problem.spec.expression.key))

    printing = fakes.replace(fakes.backend("gpu", fakes.kernel("add")), ahead=ahead)
    registry = fakes.registry(fakes.replace(printing, printers=[fakes.kernel("pointwise", print)]))
    assert "drawn" not in registry.ops
    tuner = Tuner(registry, Gate(registry, Store()))
    assert done(tuner, json.loads(json.dumps(found._tasks[0].request))) == ""
    assert calls == [("drawn", spec.expression.key)]


def test_a_task_for_a_gpu_has_its_properties_and_perhaps_a_sample(pretending):
    found = started()
    found.most = 0  # the tasks stay
    found.thread = threading.current_thread()
    found.ask(ON_GPU, "gpu", print)
    found.ask(ON_GPU, "gpu", print, sample="prime")
    first, second = (task.request for task in found._tasks)
    assert (first["device"], first["sample"], second["sample"]) == (FACTS, "", "prime")
    assert first["problem"]["devices"] == ["cuda", "cuda"]
    found.ask(PROBLEM, "numba", print)
    assert "device" not in found._tasks[-1].request


def test_a_worker_compiles_for_a_gpu_that_it_doesnt_have(pretending):
    calls = []
    registry = absent(calls)
    tuner = Tuner(registry, Gate(registry, Store()))
    task = {"op": "add", "problem": key(ON_GPU), "kernel": "gpu", "threads": torch.get_num_threads()}
    assert done(tuner, task | {"device": FACTS, "sample": ""}) == ""
    assert done(tuner, task | {"device": FACTS, "sample": "prime"}) == ""
    (_, own, capability, name), (_, sample, _, _) = calls
    assert (capability, name) == ((9, 0), "a GPU")
    assert own.to_dict() == ON_GPU.to_dict()
    assert {t.device.type for t in sample.tensors} == {"cuda"}
    assert sample["x"].shape != own["x"].shape


def test_of_a_composed_kernel_a_worker_compiles_each_part(pretending):
    calls = []
    registry = absent(calls)
    tuner = Tuner(registry, Gate(registry, Store()))
    spec = SPECS["sep_conv2d_batch_norm"]
    sample = spec.tagged("smoke")[0].build(spec, "cpu", torch.float32)
    problem = moved(Problem.of(spec, sample), torch.device("cuda"))
    task = {"op": spec.name, "problem": key(problem), "kernel": "gpu", "threads": torch.get_num_threads()}
    assert done(tuner, task | {"device": FACTS, "sample": ""}) == ""
    assert [op for op, *_ in calls] == list(spec.parts.ops)


class Noting:
    """Workers that note the tasks and answer at once."""

    most = 2

    def __init__(self):
        self.asked = []

    def ask(self, problem, kernel, answered, heat=0.0, sample=""):
        self.asked.append((kernel, problem["x"].shape, sample))
        answered(Answer())


def test_for_a_gpu_samples_are_compiled_too_once_for_all_problems(pretending, ahead_has):
    registry = absent([])
    workers_, gate = Noting(), Gate(registry, Store())
    gate.samples = lambda backend, kernel, problem: []
    gate.knows = lambda backend, kernel, problem: False
    tuner = Tuner(registry, gate, workers=workers_)
    tuner.refusal = lambda backend, kernel, problem: None
    more = moved(Problem.of(SPECS["add"], (torch.ones(5), torch.ones(5), 1, None)), torch.device("cuda"))
    compiled(tuner, [ON_GPU], several=True)
    assert workers_.asked == [], "one isn't worth it"
    gate.samples = lambda backend, kernel, problem: ["prime", "empty"]
    compiled(tuner, [ON_GPU, more])
    shape = ON_GPU["x"].shape
    assert workers_.asked == [("gpu", shape, s) for s in ("prime", "empty", "")] + [("gpu", (5,), "")]
    workers_.asked.clear()
    compiled(tuner, [ON_GPU], labels=lambda _: ())
    assert workers_.asked == []
    ahead_has(from_disk=lambda *_: "verified here")
    compiled(tuner, [ON_GPU, more])
    assert workers_.asked == [], "nothing must be compiled"


def test_a_backend_that_needs_the_device_is_left_to_the_program(pretending):
    registry = fakes.registry(fakes.backend("gpu"))
    tuner = Tuner(registry, Gate(registry, Store()))
    assert steps(tuner, *tuner.taking_part("add")[1], ON_GPU) == []
    assert steps(tuner, *tuner.taking_part("add")[1], PROBLEM) == [""]


@pytest.mark.parametrize("missing", [False, True, "fails"])
def test_a_gpu_s_code_that_a_launch_would_compile_is_looked_for_on_disk(
    missing, pretending, ahead_has, cuda_answers
):
    def look(kernel, problem, capability):
        assert capability == (9, 0)
        if missing == "fails":
            raise OSError("no driver")
        if missing:
            compiling("a launch")

    cuda_answers(get_device_capability=lambda device: (9, 0))
    ahead_has(current=lambda device: contextlib.nullcontext())
    kernel = fakes.kernel("add", announces=True)
    backend = fakes.replace(fakes.backend("gpu", kernel), ahead=look)
    registry = fakes.registry(backend)
    tuner = Tuner(registry, Gate(registry, Store()))
    planned = Contender(backend, kernel, Candidate("gpu", "gpu"), print)
    refused = Contender(backend, kernel, Candidate("gpu", "gpu"))
    tuner.gate.knows = lambda *_: True
    tuner.refusal = lambda *_: None
    tuner.ready = lambda *_: planned
    before = tally().compilations
    assert ahead.uncompiled(tuner, ON_GPU) == (["gpu"] if missing else [])
    assert tally().compilations == before
    assert ahead.with_code(refused, ON_GPU) is refused, "nothing is looked for"


class Held:
    """Workers that answer when they are told to."""

    def __init__(self, most):
        self.most, self.asked = most, []

    def ask(self, problem, kernel, answered, heat=0.0, sample=""):
        self.asked.append((kernel, sample, answered))


WANTED = {(label, step): (ON_GPU, label, step) for label, step in (("fast", "prime"), ("fast", ""))}


def lesson(most):
    """Return a lesson of a problem on a GPU that isn't here, its workers and the rests that it takes."""
    session, _, _ = learning(torch=100, fast=50)
    learner = session.chooser.learner
    session.tuner.workers = Held(most)
    rests = []
    learner.pace.rest = rests.append
    return Lesson(learner, ON_GPU, lambda choice: None), session.tuner.workers, rests


def test_online_has_a_gpu_s_kernels_compiled_by_several_workers_only(pretending):
    assert lesson(1)[0]._workers is None
    assert lesson(2)[0]._workers is not None
    assert lesson(0)[0]._workers is None


def test_it_says_once_in_a_terminal_and_always_in_the_log_that_it_compiles(pretending, ahead_has, caplog):
    told = []
    ahead_has(told=told.append)
    ahead._told_once.cache_clear()
    caplog.set_level("INFO", logger="nxcore")
    for _ in range(2):
        found, held, _ = lesson(2)
        found._await(held, WANTED)
    where = "in the background by up to 2 processes"
    assert told == [
        f"nxcore: kernels are compiled {where}; torch serves until then, and the next run finds them"
    ]
    assert caplog.messages == [f"compile: add: 2 kernels and samples, {where}"] * 2


def test_it_goes_on_once_every_sample_is_there(pretending, monkeypatch):
    found, held, _ = lesson(2)
    learner, entered = found._learner, []
    monkeypatch.setattr(learner.preparing, "add", lambda run, heat: entered.append(run))
    found._await(held, WANTED | {("slow", ""): (ON_GPU, "slow", "")})
    assert learner.compiling == 3
    (_, sample, first), (_, _, second), (_, _, third) = held.asked
    assert sample == "prime"
    first(Answer(seconds=1.0))
    third(Answer("it has no compiler"))
    assert entered == []
    second(Answer(seconds=1.0))
    assert entered == [found._enter]
    assert learner.compiling == 0
