"""A race that others disturb: only undisturbed samples count, and too few of them give no decision."""

import itertools
import os
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nxcore.choose.contenders import AGAIN, timed
from nxcore.measure import busy, load
from nxcore.measure.decision import Candidate, Decision, decide
from nxcore.measure.load import Load, Reading, Unread, at_start, limits_us, load_of
from nxcore.measure.race import Effort, race
from nxcore.spec.spec import Cost
from tests.null.fakes import Clock

CPU = torch.device("cpu")
EFFORT = Effort((12, 20), 1e-3, 10.0)


class Neighbours(Load):
    """A load on a test's clock: of each sample others had a processor for the next share of ``waits``."""

    def __init__(self, clock, waits):
        super().__init__()
        self.clock, self.waits, self.waited, self.last = clock, waits, 0, 0

    def read(self):
        took, self.last = self.clock.now - self.last, self.clock.now
        self.waited += round(next(self.waits) * took)
        return Reading(self.clock.now, self.waited)


def run(waits, effort=EFFORT, cost=None, **us):
    clock = Clock()
    calls = {label: clock.costing(t) for label, t in us.items()}
    found = race(
        calls, CPU, again=AGAIN, effort=effort, clock=clock, load=Neighbours(clock, waits), cost=cost
    )
    rows = [Candidate(label, "torch" if label == "torch" else "other") for label in us]
    return found, busy.judged(decide(timed(rows, found), found[AGAIN]))


def test_a_quiet_race_decides_as_ever():
    found, decision = run(itertools.repeat(0.0), torch=100, fast=50)
    assert (decision.chosen, decision.rule) == ("fast", "measured")
    assert {(t.lost, t.fault) for t in found.values()} == {(0.0, "")}


def test_a_sample_that_waited_does_not_count():
    """Every third sample took forty times as long, as its threads waited for a processor."""
    clock, slow = Clock(), itertools.cycle([False, False, True])
    now = [False]

    def call():
        now[0] = next(slow)
        clock.now += 100_000 * (40 if now[0] else 1)

    class Told(Load):
        waited = 0

        def read(self):
            Told.waited += 3_900_000 * now[0]
            now[0] = False
            return Reading(clock.now, Told.waited)

    found = race({"torch": call}, CPU, effort=EFFORT, clock=clock, load=Told())
    assert found["torch"].call_us == pytest.approx([100] * len(found["torch"].call_us), rel=1e-3)
    assert found["torch"].lost > 0.5
    assert not found["torch"].fault


def test_a_block_is_run_again_until_a_sample_counts():
    """Nineteen of twenty samples are disturbed, and yet there is a verdict."""
    waits = itertools.cycle([0.5] * 19 + [0.0])
    found, decision = run(waits, torch=100, fast=50)
    assert (decision.chosen, decision.rule) == ("fast", "measured")
    assert found["torch"].lost > 0.3


def test_a_race_without_undisturbed_samples_ends_with_its_time_and_gives_no_verdict():
    found, decision = run(itertools.repeat(0.5), torch=100, fast=50)
    assert (decision.chosen, decision.rule) == ("torch", "inconclusive")
    assert decision.reason.startswith("no decision, the machine was busy: for 50% of its time others had")
    assert decision.reason.endswith("; torch serves until the race is repeated")
    assert len(found["torch"].call_us) < 12, "no further block is run once the time is up"


@pytest.mark.parametrize("slow_calls", [6, 40])
def test_a_race_ends_with_its_time_wherever_others_make_calls_slow(slow_calls):
    """Calls of a second each, in the warm-up or later: the one in which the time is up is the last."""
    clock, calls = Clock(), []

    def call(*, first=False):
        calls.append(clock.now)
        slow = (len(calls) <= slow_calls) if first else len(calls) > 20
        clock.now += 1_000_000_000 if slow else 100_000

    def raced(first, wait, kernels=("fast", "other")):
        calls.clear()
        began, rows = clock.now, {name: lambda: call(first=first) for name in ("torch", *kernels)}
        found = race(rows, CPU, again=AGAIN, effort=replace(EFFORT, budget_s=2.5), clock=clock, load=wait)
        known = [Candidate(name, "torch" if name == "torch" else "other") for name in rows]
        return (clock.now - began) / 1e9, busy.judged(decide(timed(known, found), found.get(AGAIN)))

    for first in (True, False):
        seconds, decision = raced(first, Neighbours(clock, itertools.repeat(0.9)))
        assert seconds <= 2.5 + 1.0
        assert (decision.chosen, decision.rule) == ("torch", "inconclusive")
        assert "for 90% of its time" in decision.reason
    seconds, decision = raced(first=True, wait=Neighbours(clock, itertools.repeat(0.0)))
    assert seconds > 6, "calls that are slow by themselves are timed"
    assert decision.rule == "reference"


def test_beside_others_torch_wins_only_where_no_candidate_can_be_faster():
    """The A/A noise is the others' work, and would be a margin in favour of torch."""

    def judged(ratio, lost, spread=0.3):
        found, _ = run(itertools.repeat(0.0), torch=100, near=100)
        wide = tuple(100 / ratio * (1 + spread * (i % 3 - 1)) for i in range(12))
        torchs = replace(found["torch"], lost=lost)
        near = replace(torchs, device_us=wide, host_us=wide)
        rows = [Candidate("torch", "torch", timing=torchs), Candidate("near", "other", timing=near)]
        return busy.judged(decide(rows, replace(found[AGAIN], lost=lost)))

    assert judged(1.1, lost=0.0).rule == "reference", "on a quiet machine it isn't significantly faster"
    assert judged(1.1, lost=0.2).rule == "inconclusive"
    assert judged(1.1, lost=0.01).rule == "reference", "that little disturbs none"
    assert judged(0.4, lost=0.2).rule == "reference", "it is slower whatever others did"
    assert judged(3.0, lost=0.2).rule == "measured"


def test_a_clear_winner_leaves_no_question_among_torchs_own_ways():
    found, _ = run(itertools.repeat(0.0), torch=100, fast=20)
    wide = tuple(100 * (1 + 0.3 * (i % 3 - 1)) for i in range(12))
    torchs = replace(found["torch"], lost=0.2)
    rows = [
        Candidate("torch", "torch", timing=torchs),
        Candidate("torch-other", "torch", timing=replace(torchs, device_us=wide, host_us=wide)),
        Candidate("fast", "other", timing=replace(found["fast"], lost=0.2)),
    ]
    assert busy.judged(decide(rows, found[AGAIN])).chosen == "fast"
    assert busy.judged(decide(rows[:2], found[AGAIN])).rule == "inconclusive"


def test_times_that_the_bytes_do_not_allow_give_no_verdict(monkeypatch):
    monkeypatch.setattr(load, "_copy_s", lambda: 2e-6)  # of 64 KiB, so that the floor of them is 2 us
    cost = Cost(2 * load.COPIED, 0)
    assert limits_us(cost)[1] == pytest.approx(load.MOST * 4)

    class Held(Unread):
        fault = Load.fault

    def judged(us, cost=cost):
        clock = Clock()
        found = race(
            {"torch": clock.costing(us)}, CPU, again=AGAIN, effort=EFFORT, clock=clock, load=Held(), cost=cost
        )
        return busy.judged(decide([Candidate("torch", "torch", timing=found["torch"])], found[AGAIN]))

    assert judged(100.0).rule == "reference"
    assert "took 2,500.00 us, and its bytes and operations take at most 2,000" in judged(2500.0).reason
    assert judged(2500.0, cost=None).rule == "reference"
    assert "take at least" in judged(100.0, Cost(2 * load.COPIED * 10_000 * os.cpu_count(), 0)).reason


def test_times_that_a_device_can_not_reach_give_no_verdict(cuda_answers):
    """An H200 reads 4.9 TB/s: 4.9 GB take a tenth of a millisecond at least, from its caches too."""
    facts = {"memory_clock_rate": 3_201_000, "memory_bus_width": 6144, "clock_rate": 1_980_000}
    of_device = load_of("cuda", time.perf_counter_ns)
    for known in (facts, {}):
        cuda_answers(get_device_properties=lambda f=known: SimpleNamespace(multi_processor_count=132, **f))
        assert bool(of_device.fault(99.0, Cost(4_916_736_000, 0))) is bool(known)
        assert bool(of_device.fault(1.0, Cost(0, 10**14))) is bool(known)
        assert of_device.fault(101.0, Cost(4_916_736_000, 10**9)) == ""


def test_a_race_on_a_clock_of_its_own_or_of_a_device_reads_no_load():
    assert isinstance(load_of("cpu", Clock()), Unread)
    real = load_of("cpu", time.perf_counter_ns)
    assert not isinstance(real, Unread)
    assert at_start().startswith("the load was ")
    assert real.at_start == f"; {at_start()}"


def test_what_threads_wait_is_read_from_the_system(tmp_path):
    for thread, waited in ("1", 500), ("2", 700):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(f"9000 {waited} 3\n")
    read = Load(lambda: 40, tmp_path)
    with read.opened():
        before = read.read()
        assert before == Reading(40, 1200)
        (tmp_path / "2" / "schedstat").write_text("9000 1700 3\n")
        after = read.read()
        assert read.lost(10_000, before, after._replace(ran=10_040)) == 1000
        assert len(read._files) == 2
    assert not read._files


def test_where_the_system_counts_no_waits_the_processors_time_tells(tmp_path):
    read = Load(lambda: 0, tmp_path / "absent")
    assert read.lost(1000, Reading(0, 0), Reading(700, 0)) == 300
    assert read.lost(1000, Reading(0, 0), Reading(1900, 0)) == 0, "two threads ran"


def test_a_process_that_sleeps_is_seen_to_have_lost_the_time():
    read = Load()
    with read.opened():
        before, began = read.read(), time.perf_counter_ns()
        time.sleep(0.02)
        took = time.perf_counter_ns() - began
        assert read.lost(took, before, read.read()) > 0.5 * took


@pytest.mark.slow
def test_beside_four_busy_processes_no_verdict_is_wrong():
    """What is true is known: a call against itself, and against two of them."""
    x = torch.randn(64, 16, 32, 32)

    def once():
        return x.sum((0, 2, 3))

    def twice():
        once()
        return once()

    effort = Effort((12, 20), 0.01, 1.0)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:2])
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        found: list[tuple[str, Decision]] = []
        for torchs, other, right in (
            (once, once, "torch"),
            (twice, once, "other"),
            (once, twice, "torch"),
        ) * 3:
            times = race({"torch": torchs, "other": other}, CPU, again=AGAIN, effort=effort, load=Load())
            rows = [Candidate("torch", "torch"), Candidate("other", "other")]
            found.append((right, busy.judged(decide(timed(rows, times), times[AGAIN]))))
    finally:
        os.sched_setaffinity(0, allowed)
        for process in running:
            process.kill()
            process.wait()
    assert all(d.rule == "inconclusive" or d.chosen == right for right, d in found), found
    assert all(t.timing.lost > 0 for _, d in found for t in d.candidates), "others' work was seen"
