"""Problems measured ahead of their calls: once, thoroughly, as far as the budget goes."""

import dataclasses
import functools
import json
import re
import signal
from types import SimpleNamespace

import pytest
import torch

from nxcore.choose import pairs
from nxcore.choose.contenders import AGAIN, carry_out
from nxcore.choose.process import Answer
from nxcore.choose.prune import Pruner
from nxcore.choose.shortlist import Shortlist
from nxcore.choose.tuner import Tuner
from nxcore.cli import interruption, tune
from nxcore.errors import InvalidInputError, UnknownOperatorError
from nxcore.measure import race as racing
from nxcore.measure.decision import Decision
from nxcore.offline import ahead, turns
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.kernel import Code, Refusal
from nxcore.spec.problem import Problem
from tests.null import fakes
from tests.null.cli.commands import command
from tests.null.fakes import SPECS
from tests.stand_ins import stand_in

torch_has = stand_in(torch)

ADD = SPECS["add"].reference
CPU = torch.device("cpu")


class Machine:
    """A cache folder on a machine whose clock is told what an addition takes."""

    def __init__(self, folder, monkeypatch, as_default):
        self.folder, self.clock, self.raced, self.interrupted = folder, fakes.Clock(), [], None
        self.as_default, self.noise, self.ends = as_default, 0.0, KeyboardInterrupt
        race = functools.partial(racing.race, clock=self.clock)

        def noted(calls, *args, **how):
            if len(self.raced) == self.interrupted:
                raise self.ends
            self.raced.append(how["effort"].looks)
            found = race(calls, *args, **how)
            if self.noise:
                found[AGAIN] = fakes.timing(
                    [us * (1 + self.noise * (i % 2)) for i, us in enumerate(found[AGAIN].call_us)]
                )
            return found

        fakes.raced(monkeypatch, noted)
        fakes.identified(monkeypatch)

    def process(self, fast=50, **others):
        """Return a new session, in which an addition takes torch 100 us and kernels so many."""
        self.raced.clear()
        backends = fakes.adders(self.clock, {"fast": fast} | others)
        registry = fakes.registry(*backends, specs=fakes.addition(self.clock))
        found = Session(Settings(cache=self.folder, policy="frozen"), registry, fakes.QUICK)
        self.as_default(found)
        return found

    def tune(self, *words, status=0):
        return command("tune", "--device", "cpu", *words, status=status).stdout

    def rows(self, *words, status=0):
        return json.loads(self.tune(*words, "--json", status=status))


@pytest.fixture
def machine(tmp_path, monkeypatch, as_default):
    return Machine(tmp_path, monkeypatch, as_default)


SMALL = ("add", "--sample", "prime", "--sample", "row_broadcast", "--dtype", "float32")


@pytest.fixture(autouse=True)
def samples():
    assert {"prime", "row_broadcast"} <= {s.name for s in SPECS["add"].samples}


def test_it_measures_with_patience_and_calls_know(machine):
    machine.process()
    (first, second) = machine.rows(*SMALL)["rows"]
    assert [r["status"] for r in (first, second)] == ["measured", "measured"]
    assert (first["chosen"], first["was"]) == ("fast", "")
    assert first["ratio"] == pytest.approx([2, 2, 2], rel=1e-2)
    assert machine.raced == [(12, 20, 40)] * 2
    session = machine.process()
    decision = session.explain("add", *fakes.build("add", "prime")[:2]).decision
    assert (decision.chosen, decision.rule) == ("fast", "measured")
    assert machine.raced == []


@pytest.mark.parametrize(("together", "raced"), [(100, [0, 0]), (1, [0])])
def test_workers_compile_what_is_unknown_before_it_is_measured(machine, monkeypatch, together, raced):
    monkeypatch.setattr(turns, "TOGETHER", together)

    class Answering:
        most, asked = 2, []

        def ask(self, problem, kernel, answered, heat=0.0, sample=""):
            self.asked.append((kernel, len(machine.raced)))
            answered(Answer())

    session = machine.process()
    session.tuner.workers = Answering()
    machine.tune(*SMALL)
    assert Answering.asked == [("fast", done) for done in raced]
    Answering.asked.clear()
    machine.tune(*SMALL)
    assert Answering.asked == [], "all is known"


def test_a_kernel_that_is_far_behind_doesnt_prolong_a_race(machine):
    """It beats torch, but after three blocks no test can tell; such races went to 40 blocks."""
    session = machine.process(fast=10, slow=30)
    machine.tune("add", "--sample", "prime", "--dtype", "float32")
    page = session.wisdom.read(Problem.of(SPECS["add"], fakes.build("add", "prime")))
    blocks = {c.label: len(c.timing.call_us) for c in page.decision.candidates if c.timing}
    assert blocks == {"torch": 12, "fast": 12, "slow": 3}


def test_in_a_row_a_clear_race_ends_after_eight_blocks(machine):
    session = machine.process()
    cells = ahead.of_samples(session.registry, CPU, ["add"], samples=["prime"], dtypes=["float32"])
    assert [row.status for row in ahead.tuned(session, cells, effort=ahead.IN_A_ROW)] == ["measured"]
    page = session.wisdom.read(Problem.of(SPECS["add"], fakes.build("add", "prime")))
    assert {len(c.timing.call_us) for c in page.decision.candidates if c.timing} == {8}


def test_in_a_row_a_kernel_that_is_known_to_be_slow_is_left_out(machine, monkeypatch):
    why = Refusal(Code.PRUNED, "known to be slow")
    listed = Shortlist(("fast",), 8, {"slow": why})
    monkeypatch.setattr(Pruner, "shortlist", lambda self, problem, missing: listed)
    session = machine.process(slow=30)
    cells = ahead.of_samples(session.registry, CPU, ["add"], samples=["prime"], dtypes=["float32"])
    assert [row.chosen for row in ahead.tuned(session, cells, effort=ahead.IN_A_ROW)] == ["fast"]
    problem = Problem.of(SPECS["add"], fakes.build("add", "prime"))
    assert session.wisdom.read(problem).decision["slow"].refusal == why
    assert [row.status for row in ahead.tuned(session, cells, effort=ahead.IN_A_ROW)] == ["known"]
    monkeypatch.undo()
    assert [row.status for row in ahead.tuned(session, cells)] == ["measured"], "tuning races all"


def test_an_end_in_the_middle_keeps_what_was_measured(machine):
    session = machine.process()
    cells = ahead.of_samples(session.registry, CPU, ["add"], samples=["prime", "row_broadcast"])
    machine.interrupted, machine.ends = 1, tune.Ended
    found = tune.tuned(cells, again=False, budget=None, quiet=True)
    assert [row["status"] for row in found["rows"]] == ["measured"]
    assert (found["left"], found["stopped"]) == (len(cells) - 1, "budget")


def test_a_line_of_progress_tells_what_the_time_was_spent_on(machine, capsys):
    session = machine.process()
    cells = ahead.of_samples(session.registry, CPU, ["add"], samples=["prime"])
    tune.tuned(cells, again=False, budget=None)
    first, last = (line for line in capsys.readouterr().err.splitlines() if line.startswith("tune "))
    assert first.startswith(f"tune 1/{len(cells)}: add prime ")
    number = r"[0-9.]+"
    phases = f"{number} s a problem: compile wait 0.00, gate {number}, timing {number}, the rest {number}"
    assert re.search(f"; {phases}$", last), "none in between: ten seconds haven't gone by"


def test_what_it_measured_is_known_where_a_gradient_is_needed(machine):
    machine.process()
    machine.tune(*SMALL)
    session = machine.process()
    x, y = (t.clone().requires_grad_() for t in fakes.build("add", "prime")[:2])
    with session.policy("frozen"):
        assert session.explain("add", x, y).decision.chosen == "fast"
    assert machine.raced == []


def recorded(op, folder, monkeypatch):
    """Return a session, the cells of a recorded call with a gradient, and the pairs that are raced."""
    fakes.identified(monkeypatch)
    trace = folder / "met.jsonl"
    registry = fakes.registry(fakes.backend("fast"))
    session = Session(Settings(cache=folder / "cache", policy="frozen"), registry, fakes.QUICK)
    with session.record(trace):
        x, w = torch.randn(1, 2, 6, 6, requires_grad=True), torch.randn(2, 1, 3, 3, requires_grad=True)
        out = session.op(op)(x, *((w,) if op == "depthwise_conv2d" else (2,)))
        out.sum().backward()

    def measure(pair, *_):
        seen.append((pair, session.chooser.pairs._effort))
        return Decision("torch", "reference", "")

    def won(_, problem, args, entries, before=None):
        once = fakes.timing([1.0] * 12)
        candidates = tuple(dataclasses.replace(e.candidate, timing=once) for e in entries)
        decision = Decision("fast", "measured", "", candidates)
        return SimpleNamespace(choice=dataclasses.replace(carry_out(decision, entries), again=once))

    session.chooser.pairs.measure = measure
    monkeypatch.setattr(pairs, "CERTAIN_US", {"cpu": -1e6})  # a call would race none
    monkeypatch.setattr(Tuner, "measured", won)
    seen = []
    return session, ahead.of_trace(session.registry, trace), seen


@pytest.mark.parametrize("op", ["depthwise_conv2d", "max_pool2d"])
def test_of_a_recording_forward_and_backward_are_measured_together(op, tmp_path, monkeypatch):
    session, cells, seen = recorded(op, tmp_path, monkeypatch)
    assert [cell.spec.name.endswith("_backward") for cell in cells] == [True, False]
    assert [row.status for row in ahead.tuned(session, cells)] == ["measured"] * 2
    ((pair, effort),) = seen
    assert effort is ahead.THOROUGH, "no call waits"
    assert pair.problem.op == op
    assert pair.label == "fast + fast"


@pytest.mark.parametrize("again", [True, False])
def test_a_pair_on_record_is_raced_again_if_asked(again, tmp_path, monkeypatch):
    session, cells, seen = recorded("max_pool2d", tmp_path, monkeypatch)
    decision = Decision("torch", "measured", "by an older race")
    page = SimpleNamespace(open=False, decision=decision, versions={pairs.PATH: pairs._path()})
    session.chooser.pairs._page = lambda *_: page
    list(ahead.tuned(session, cells, again=again))
    assert len(seen) == again


def test_a_pair_that_can_not_be_measured_is_told(machine, monkeypatch, caplog):
    session = machine.process()
    x = torch.ones(3, requires_grad=True)
    cell = ahead.Cell(session.registry.spec("add"), "line 1", lambda: (x, x, 1, None), needs_grad=True)
    monkeypatch.setattr(torch.autograd, "grad", lambda *_, **__: ahead.torch.empty(2).view(3))
    ahead._measure_pair(session, cell, ahead.THOROUGH)
    assert "add with gradient isn't measured, line 1: RuntimeError" in caplog.text


def test_what_is_known_is_not_measured_again_unless_asked(machine):
    machine.process()
    machine.tune(*SMALL)
    machine.process()
    assert {r["status"] for r in machine.rows(*SMALL)["rows"]} == {"known"}
    assert machine.raced == []
    machine.process(fast=200)
    found = machine.rows(*SMALL, "--again")["rows"]
    assert [(r["status"], r["chosen"], r["was"]) for r in found] == [("measured", "torch", "fast")] * 2


def test_what_is_stale_is_measured_again(machine, monkeypatch, torch_has):
    machine.process()
    machine.tune(*SMALL)
    torch_has(__version__="99.0")
    machine.process()
    assert {r["status"] for r in machine.rows(*SMALL)["rows"]} == {"measured"}
    machine.process()
    fakes.identified(monkeypatch, "2")
    assert {r["status"] for r in machine.rows(*SMALL)["rows"]} == {"measured"}


def test_the_reason_for_being_stale_names_what_changed(machine, torch_has):
    session = machine.process()
    machine.tune(*SMALL)
    problem = Problem.of(SPECS["add"], fakes.build("add", "prime"))
    page = session.wisdom.read(problem)
    recall = session.chooser.recall
    assert recall.stale(problem, page) == ""
    was = torch.__version__
    torch_has(__version__="99.0")
    assert recall.stale(problem, page) == f"torch was {was}, is 99.0"
    other = fakes.replace(page, makes={"fast": "0", "gone": "2"})
    assert "gone was removed; torch is new; fast has changed" in recall.stale(problem, other)


def test_a_spent_budget_leaves_the_rest_and_says_so(machine):
    machine.process()
    found = machine.rows(*SMALL, "--budget", "0")
    assert (found["rows"], found["left"], found["stopped"]) == ([], 2, "budget")
    assert "2 left (the budget is spent)" in machine.tune(*SMALL, "--budget", "0")


def test_who_is_interrupted_goes_on_where_it_ended(machine):
    machine.process()
    machine.interrupted = 1
    text = machine.tune(*SMALL, status=interruption.STATUS)
    assert "1 measured, 1 left (interrupted)" in text
    machine.interrupted = None
    machine.process()
    assert [r["status"] for r in machine.rows(*SMALL)["rows"]] == ["known", "measured"]


def test_an_interruption_has_the_status_of_one():
    assert interruption.STATUS == 128 + signal.SIGINT


def test_the_table_shows_problem_choice_ratio_and_what_was(machine):
    machine.process()
    text = machine.tune(*SMALL)
    assert all(word in text for word in ("float32[10007]", "fast", "2.00 [", "2 measured"))
    assert max(map(len, text.splitlines())) <= 100


def test_all_real_workloads_in_all_types_are_the_default():
    registry = fakes.registry(fakes.backend())
    cells = ahead.of_samples(registry, CPU)
    assert {c.spec.name for c in cells} == {n for n, s in SPECS.items() if _real(s)}
    assert len(cells) == sum(len(_real(s)) * len(s.dtypes) for s in SPECS.values())


def _real(spec):
    return [s for s in spec.tagged("bench") if "huge" not in s.tags]


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        (["ad"], UnknownOperatorError, "did you mean 'add'"),
        (["add", "--sample", "prim"], InvalidInputError, "did you mean 'prime'"),
        (["add", "--dtype", "float33"], InvalidInputError, "did you mean 'float32'"),
        (["--tiles", "fast"], InvalidInputError, "--tiles needs one operator, got 0"),
        (["--from-trace", "x", "--dtype", "float32"], InvalidInputError, "a trace defines both"),
        (["--from-trace", "nowhere"], InvalidInputError, "nowhere can't be read"),
    ],
)
def test_what_makes_no_sense_is_refused(machine, words, error, match):
    machine.process()
    with pytest.raises(error, match=match):
        machine.tune(*words, status=2)


def test_what_can_not_be_built_is_left_out_with_its_reason(machine):
    def build():
        raise RuntimeError("not enough memory")

    (row,) = ahead.tuned(machine.process(), [ahead.Cell(SPECS["add"], "huge", build)])
    assert (row.status, row.problem) == ("left out", {})
    assert "not enough memory" in row.reason


def test_where_nobody_else_has_a_kernel_there_is_no_race(machine):
    cell = ahead.Cell(SPECS["sum"], "some", lambda: fakes.build("sum", SPECS["sum"].samples[0].name))
    (row,) = ahead.tuned(machine.process(), [cell])
    assert (row.status, row.chosen) == ("no race", "torch")


def test_a_noisy_race_replaces_no_clear_verdict_and_is_held_again(machine):
    """A plain ``tune`` once put 758.8% of noise in place of a proven 9.40x."""
    words = ("add", "--sample", "prime", "--dtype", "float32")
    session, machine.noise = machine.process(), 7.5
    (row,) = machine.rows(*words)["rows"]
    assert (row["status"], row["chosen"]) == ("inconclusive", "torch")
    assert re.search(r"the A/A noise is \d+%, at most 20% is allowed", row["reason"])
    text = machine.tune(*words)
    assert "1 inconclusive" in text
    assert "the A/A noise is" in text
    machine.noise = 0.0
    (row,) = machine.rows(*words)["rows"]
    assert (row["status"], row["chosen"], row["was"]) == ("measured", "fast", "")
    machine.noise = 7.5
    (row,) = machine.rows(*words, "--again")["rows"]
    assert (row["status"], row["chosen"]) == ("inconclusive", "fast")
    (row,) = machine.rows(*words)["rows"]
    assert (row["status"], row["chosen"]) == ("known", "fast")
    assert (
        session.wisdom.read(Problem.of(SPECS["add"], fakes.build("add", "prime"))).decision.chosen == "fast"
    )
