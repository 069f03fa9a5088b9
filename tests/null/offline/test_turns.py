"""Turns: kernels are compiled beside measuring on a GPU, and whatever is ready goes first."""

import time

import pytest
import torch

from nxcore.choose import ahead
from nxcore.choose.process import Answer
from nxcore.choose.shortlist import Shortlist
from nxcore.choose.tuner import Tuner
from nxcore.offline import turns
from nxcore.offline.turns import Turn, Turns
from nxcore.spec import tally
from nxcore.spec.kernel import Code, Refusal
from nxcore.spec.problem import Problem
from nxcore.store.files import Store
from nxcore.store.problems import moved
from nxcore.trust.gate import Gate
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.stand_ins import stand_in

turns_has = stand_in(turns)


class Slow:
    """Workers that answer when they are told to."""

    most = 2

    def __init__(self):
        self.asked, self.waiting = [], {}

    def ask(self, problem, kernel, answered, heat=0.0, sample=""):
        size = problem["x"].shape[0]
        self.asked.append((size, kernel))
        self.waiting[size, kernel] = answered

    def answer(self, size, kernel="gpu", why=""):
        self.waiting.pop((size, kernel))(Answer(why))


def problem(size, device="cuda"):
    x = torch.ones(size)
    return moved(Problem.of(SPECS["add"], (x, x, 1, None)), torch.device(device))


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.setattr(ahead, "steps", lambda *_: [""])
    return Slow()


def tuner(workers):
    registry = fakes.registry(fakes.backend("gpu"), fakes.backend("other"))
    return Tuner(registry, Gate(registry, Store()), workers=workers)


def to_compile(of, size, after="", device="cuda", **how):
    return Turn(of, problem(size, device), after, **({"missing": ("gpu",)} | how))


def test_on_a_gpu_kernels_are_compiled_while_others_are_measured(workers, turns_has):
    turns_has(TOGETHER=3)
    wanted = [to_compile(n, n, str(n)) for n in (1, 2, 3, 4)]
    order = iter(Turns(tuner(workers), wanted))
    ask = workers.ask
    workers.ask = lambda *args, **how: (ask(*args, **how), args[0]["x"].shape[0] == 2 and workers.answer(2))
    assert next(order).of == 2, "it is ready, and the first isn't"
    assert [n for n, _ in workers.asked] == [1, 2, 3]
    workers.answer(3)
    assert next(order).of == 3
    assert [n for n, _ in workers.asked] == [1, 2, 3, 4], "another is compiled in place of what was measured"
    workers.answer(1)
    workers.answer(4)
    assert [turn.of for turn in order] == [1, 4]


def test_a_call_waits_for_its_gradient(workers):
    wanted = [to_compile("backward", 1, "add"), to_compile("forward", 2, "add"), Turn("known")]
    order = iter(Turns(tuner(workers), wanted, ends=time.monotonic() + 60))
    ask = workers.ask
    workers.ask = lambda *args, **how: (ask(*args, **how), args[0]["x"].shape[0] == 2 and workers.answer(2))
    assert next(order).of == "known"
    workers.answer(1)
    assert [turn.of for turn in order] == ["backward", "forward"]


def test_on_a_processor_nothing_is_compiled_while_it_is_measured(workers, turns_has):
    turns_has(TOGETHER=2)
    ask = workers.ask
    workers.ask = lambda *args, **how: (ask(*args, **how), workers.answer(args[0]["x"].shape[0]))
    order = iter(Turns(tuner(workers), [to_compile(n, n, str(n), "cpu") for n in (1, 2, 3)]))
    assert next(order).of == 1
    assert [n for n, _ in workers.asked] == [1, 2]
    assert next(order).of == 2
    assert [n for n, _ in workers.asked] == [1, 2]
    assert next(order).of == 3
    assert [n for n, _ in workers.asked] == [1, 2, 3]


def test_the_end_of_the_time_is_not_waited_past(workers):
    began, before = time.monotonic(), tally.seconds()["compile wait"]
    assert list(Turns(tuner(workers), [to_compile(1, 1)], ends=began + 0.2)) == []
    assert 0.2 <= time.monotonic() - began < 3
    assert tally.seconds()["compile wait"] - before >= 0.1
    assert list(Turns(tuner(workers), [Turn(1)], ends=began)) == []


def test_what_is_pruned_is_not_compiled(workers):
    ask = workers.ask
    workers.ask = lambda *args, **how: (ask(*args, **how), workers.answer(1, args[1]))
    listed = Shortlist(("gpu",), 8, {"other": Refusal(Code.PRUNED, "slow")})
    wanted = [to_compile("some", 1, missing=("gpu", "other"), shortlist=listed)]
    assert [turn.shortlist for turn in Turns(tuner(workers), wanted)] == [listed]
    assert workers.asked == [(1, "gpu")]


def test_without_workers_turns_are_read_one_by_one():
    read = []
    order = iter(Turns(tuner(None), (read.append(n) or Turn(n, problem(n)) for n in (1, 2))))
    assert next(order).of == 1
    assert read == [1]
    assert [turn.of for turn in order] == [2]


def test_a_failed_compilation_is_logged_and_its_turn_comes(workers, caplog):
    ask = workers.ask
    workers.ask = lambda *args, **how: (ask(*args, **how), workers.answer(1, why="no compiler"))
    assert [turn.of for turn in Turns(tuner(workers), [to_compile("some", 1)])] == ["some"]
    assert "compile: gpu of add: no compiler" in caplog.text
