"""Rota: how long a fault lives and what audits cost, measured by a simulated clock; and turns of problems."""

import gc
import itertools
import math
from pathlib import Path

import pytest
import torch

from nxcore.choose.learn import rota, watch, watches
from nxcore.choose.learn.rota import Rota
from nxcore.context import KernelWarning
from nxcore.errors import VerificationError
from tests.null import fakes
from tests.null.choose.learn.test_watch import NOW
from tests.null.fakes import SPECS
from tests.table import for_each

LATER_S, LATER_CALLS = 5.0, 200
"""A kernel that is wrong in every call is convicted within the later of these."""


class Program:
    """A program that calls the problems of a kernel in turns, each so many seconds after the other.

    An audit costs ``audit_s``, the first one ``first_s``; a call takes ``call_s``.
    """

    def __init__(self, problems, every_s, audit_s=1e-3, call_s=1e-5, first_s=1.0):
        self.now, self.problems, self.every_s = 0.0, [Problem() for _ in range(problems)], every_s
        self.costs, self.call_s, self.spent = (first_s, audit_s), call_s, 0.0
        self.rota = Rota(lambda: self.now)
        self.audits = []  # the time, the number of the call, and the problem
        for one in self.problems:
            self.rota.enter(one)
            self.spent += first_s
            self.rota.audited(one, first_s, call_s, 0.0)

    def run(self, seconds, using=None):
        using = using or len(self.problems)
        ends, calls = self.now + seconds, 0
        while self.now < ends:
            if not any(
                one.armed for one in self.problems[:using]
            ):  # nothing but calls, until an audit is due
                skipped = max(0, int((self.rota.due_s - self.now) / self.every_s))
                self.now, calls = self.now + skipped * self.every_s, calls + skipped
            self.rota.arm()
            self.now, calls = self.now + self.every_s, calls + 1
            one = self.problems[calls % using]
            if not one.armed:
                continue
            if taken := self.rota.takes(one):
                self.spent += self.costs[1]
                self.rota.audited(one, self.costs[1], self.call_s, 0.0)
                self.audits.append((self.now, calls, one))
            one.armed = self.rota.due and not taken
        return self

    def gaps(self):
        pairs = itertools.pairwise([(0.0, 0, None), *self.audits])
        return [(b[0] - a[0], b[1] - a[1]) for a, b in pairs]


class Problem:
    armed = False

    def arm(self):
        self.armed = True


CASES = [
    (m, every, audit)
    for m in (1, 20, 200)
    for every in (1e-3, 7e-3, 0.024, 0.026, 0.1, 2.0)
    for audit in (1e-4, 1e-2, 1.0)
]


@pytest.mark.parametrize(("problems", "every_s", "audit_s"), CASES)
def test_from_one_audit_to_the_next_there_are_at_most_5_s_or_200_calls(problems, every_s, audit_s):
    """Whatever an audit costs, the first ones too; with a thread that looks every 0.1 s besides."""
    seconds = max(60.0, 900 * every_s)
    program = Program(problems, every_s, audit_s, call_s=0.9 * every_s, first_s=30.0).run(seconds)
    assert len(program.audits) > 3
    for took_s, calls in program.gaps():
        assert took_s <= LATER_S - 0.1 or calls <= LATER_CALLS - 1


def test_one_of_many_problems_that_are_no_longer_called_keeps_no_other_from_its_audits():
    program = Program(200, 1e-3).run(300, using=3)
    assert all(took_s <= LATER_S - 0.1 for took_s, _ in program.gaps())
    assert {id(one) for *_, one in program.audits} == {id(one) for one in program.problems[:3]}


@pytest.mark.parametrize(
    ("every_s", "call_s", "audit_s"),
    [(1e-3, 1e-5, 3e-3), (1e-3, 1e-5, 4e-4), (0.2, 0.15, 2e-3), (1, 1, 0.01)],
)
def test_in_the_long_run_audits_cost_a_thousandth(every_s, call_s, audit_s):
    """Of rows, an audit takes a hundredth of the call, or a millisecond or two."""
    program = Program(1, every_s, audit_s, call_s).run(2000)
    assert (program.spent - program.costs[0]) / program.now <= 1.01e-3


def test_kernels_share_the_time_of_audits_where_calls_are_long():
    one = Rota(lambda: 0.0)
    one.audited(Problem(), 0.01, 1.0, 0.03)
    assert one.due_s == pytest.approx(40.0)
    one.audited(Problem(), 1.0, 1.0, 3.0)
    assert one.due_s == rota.CALLS
    one.audited(Problem(), 1e-6, 1.0, 1e-6)
    assert one.due_s == rota.LEAST_S


def test_a_compilation_in_the_first_call_counts_for_nothing():
    one = Rota(lambda: 0.0)
    one.audited(Problem(), 0.1, 30.0, 0.0)
    one.audited(Problem(), 0.1, 1e-5, 0.0)
    one.audited(Problem(), 0.1, 30.0, 0.0)
    assert one.due_s == rota.GAP_S


def test_a_rota_keeps_no_problem():
    one, problem = Rota(lambda: 0.0), Problem()
    one.enter(problem)
    assert one.turns == [problem]
    del problem
    gc.collect()
    assert one.turns == []
    assert one.left() is None


@pytest.mark.parametrize("path", ["plain", "forced", "compiled"])
@for_each(("problems", "first"), [*itertools.product((1, 20), (1, 21, 200)), (1, 20), (200, 21)])
def test_what_is_wrong_from_some_call_on_is_convicted_in_time(problems, first, path, as_default):
    """Each problem's plan counts its own calls. The first audits cost more than any share of the time."""
    if path == "compiled" and problems > 1:
        return  # each is a graph of its own

    def plan(problem):
        calls = itertools.count()

        def call(*args):
            if wrong := args[0].shape in sizes and next(calls) >= first:  # 0 is the first run's
                began.append(len(told))
            return SPECS["add"].reference(*args).add_(wrong)

        return call

    told, began, sizes = [], [], [(5001 + n,) for n in range(problems)]
    session = fakes.session(fakes.backend("watched", fakes.kernel("add", planner=plan)))
    session.chooser.watches._clock = lambda: NOW[0]
    session.chooser.watches.wait = lambda seconds: False
    session.chooser.watches.charge = lambda watch, seconds: None
    as_default(session)
    op, xs = session.op("add", backend="watched" if path == "forced" else None), [*map(torch.ones, sizes)]
    if path == "compiled":
        op = torch.compile(op, backend="eager", fullgraph=True)

    def run():
        for x in itertools.chain.from_iterable(itertools.repeat(xs)):
            if (gap := session.chooser.watches.gap) is not None and gap <= watches.LEAST_S:
                session.chooser.watches.arm()
            NOW[0] += 0.01
            try:
                told.append(torch.equal(op(x, x), 2 * x))
            except VerificationError:
                return
            if list(session.gate.quarantine):
                return

    with session.use("watched"), pytest.warns(KernelWarning, match="is in quarantine"):
        run()
    assert all(told[: began[0]])
    assert began[0] == (first - 1) * problems, "it was right until then"
    assert len(told) - began[0] <= LATER_S / 0.01


def test_the_page_has_the_schedule_and_a_random_fault_lives_as_long_as_it_says():
    page = (Path(watch.__file__).parents[3] / "docs" / "trust.md").read_text(encoding="utf-8")
    schedule = f"g = max({rota.LEAST_S} s, min(c / {rota.SHARE}, max({rota.GAP_S} s, {rota.CALLS} d)))"
    assert schedule in page
    told = page.partition("| r | first 16 calls |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(told) == 4
    # Seconds, problems of the kernel, seconds of an audit: each problem is called 100 times a second.
    columns = [(0, 1, 1e-3), (60, 1, 1e-3), (3600, 1, 1e-3), (3600, 70, 1e-2), (86_400, 70, 1e-2)]
    audits = [watch.FIRST.bit_length() + _later(*column) for column in columns]
    for line in told:
        rate, *lives = [float(cell) for cell in line.strip("| ").split("|")]
        for lived, count in zip(lives, audits, strict=True):
            if 1e-3 < lived < 1:
                assert math.log(lived, 1 - rate) == pytest.approx(count, rel=0.2)
            else:
                assert lived == pytest.approx((1 - rate) ** count, abs=6e-3)


def _later(seconds, problems, audit_s):
    """Return how often a problem is audited after its first calls: counted for some minutes at most."""
    if not seconds:
        return 0.0
    counted = min(seconds, 600)
    return len(Program(problems, 0.01 / problems, audit_s).run(counted).audits) * seconds / counted / problems
