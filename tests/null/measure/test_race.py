"""A race is interleaved, paired, and stops when told; on a clock that the test moves."""

import contextlib
import gc
import threading
from dataclasses import replace

import pytest
import torch

from nxcore.choose.learn.confirmation import BRIEF
from nxcore.errors import MeasurementError
from nxcore.measure import ceilings
from nxcore.measure import race as module
from nxcore.measure.decision import Candidate, settled
from nxcore.measure.lane import Lane, cuda_block, host_calls, warm_up
from nxcore.measure.race import IN_CALL, SPIN_S, Effort, left, race
from nxcore.measure.timing import Timing
from nxcore.spec.device import describe
from nxcore.spec.spec import Cost
from tests.null import fakes
from tests.null.fakes import Clock
from tests.stand_ins import stand_in

race_has = stand_in(module)

CPU = torch.device("cpu")
WARM = 1e-3


def lanes(clock: Clock, log: list[str] | None = None, **us: float):
    def note(label):
        return clock.costing(us[label], lambda *args: log.append(label) if log is not None else None)

    return {label: note(label) for label in us}


def run(clock: Clock, calls, looks=(12,), budget_s=100.0, **how):
    return race(calls, CPU, effort=Effort(looks, WARM, budget_s), clock=clock, **how)


def test_times_are_what_the_clock_says():
    clock = Clock()
    found = run(clock, lanes(clock, torch=100, a=250.5))
    assert found["torch"].median_us == pytest.approx(100, abs=0.1)
    assert found["a"].device_us == pytest.approx([250.5] * 3, abs=0.1)
    assert found["torch"].host_us == found["torch"].device_us


def test_each_block_holds_every_candidate_once():
    clock, log = Clock(), []
    found = run(clock, lanes(clock, log, torch=100, a=100, b=100), looks=(5,))
    assert all(len(t.call_us) == 5 for t in found.values())
    each = 5  # samples of one call of 100 us
    raced = log[-5 * 3 * each :]
    rounds = [raced[i : i + 3 * each] for i in range(0, len(raced), 3 * each)]
    assert all(sorted(r) == sorted(["torch", "a", "b"] * each) for r in rounds)
    assert len({tuple(dict.fromkeys(r)) for r in rounds}) > 1  # in changing order


def test_the_order_follows_the_seed():
    def order(seed):
        clock, log = Clock(), []
        run(clock, lanes(clock, log, torch=100, a=100), seed=seed)
        return log

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_drift_hits_all_alike_so_that_pairs_cancel_it():
    clock = Clock()
    start = clock.now

    def drifting(us):
        def call():
            clock.now += round(us * 1e3 * (1 + (clock.now - start) / 5e7))

        return call

    found = run(clock, {"torch": drifting(100), "a": drifting(50)})
    alone, pairs = found["torch"].call_us, zip(found["torch"].call_us, found["a"].call_us, strict=True)
    assert max(alone) / min(alone) > 1.15
    assert all(1.9 < t / a < 2.1 for t, a in pairs)


def test_a_slow_candidate_is_dropped_after_three_blocks():
    clock = Clock()
    found = run(clock, lanes(clock, torch=100, slow=201, near=199))
    assert {k: len(t.call_us) for k, t in found.items()} == {"torch": 12, "slow": 3, "near": 12}


def test_an_effort_says_when_and_how_slow_candidates_leave():
    clock = Clock()
    effort = Effort((12,), WARM, 100.0, drops=((3, 2.0), (6, 1.3)))
    found = race(lanes(clock, torch=100, slow=201, near=131, close=129), CPU, effort=effort, clock=clock)
    counts = {k: len(t.call_us) for k, t in found.items()}
    assert counts == {"torch": 12, "slow": 3, "near": 6, "close": 12}
    assert left(found) == {"slow", "near"}


@pytest.mark.parametrize(
    ("each_s", "repeats", "calls"),
    [(1e-6, 50, 200), (5e-6, 10, 50), (40e-6, 2, 18), (160e-6, 1, 10), (500e-6, 1, 3), (50e-3, 1, 3)],
)
def test_slow_calls_are_timed_on_the_host_in_fewer_calls(each_s, repeats, calls):
    """A call of 50 ms was made 14 times in each block, of which there are 12 to 40."""
    assert host_calls(Lane(print, each_s=each_s, repeats=repeats)) == calls


def test_the_baseline_is_never_dropped():
    clock = Clock()
    found = run(clock, lanes(clock, torch=900, fast=100))
    assert len(found["torch"].call_us) == 12


def test_rivals_are_dropped_only_among_themselves():
    clock = Clock()
    calls = lanes(clock, torch=100, idiom=90, hopeless=181, fast=30, slow=61)
    found = run(clock, calls, rivals=frozenset({"torch", "idiom", "hopeless"}))
    counts = {k: len(t.call_us) for k, t in found.items()}
    assert counts == {"torch": 12, "idiom": 12, "hopeless": 3, "fast": 12, "slow": 3}


def test_a_race_stops_at_the_look_where_all_is_settled():
    clock, asked = Clock(), []

    def settled(timings):
        asked.append(len(timings["torch"].call_us))
        return len(asked) == 2

    found = run(clock, lanes(clock, torch=100), looks=(4, 8, 16), settled=settled)
    assert asked == [4, 8]
    assert len(found["torch"].call_us) == 8


def test_an_early_look_ends_a_race_but_no_budget_does():
    clock, asked = Clock(), []
    effort = Effort((12, 20), WARM, 0.0, early=(7, 9))

    def settled(timings):
        asked.append(effort.ahead(timings))
        return False

    found = race(lanes(clock, torch=100), CPU, effort=effort, clock=clock, settled=settled)
    assert asked == [True, True, False]
    assert len(found["torch"].call_us) == 12
    found = race(lanes(clock, torch=100), CPU, effort=effort, clock=clock, settled=lambda _: True)
    assert len(found["torch"].call_us) == 7


@pytest.mark.parametrize(("us", "blocks"), [(40, 7), (80, 12), (130, 7), (97, 12)])
def test_in_a_call_a_race_is_short_where_a_kernel_wins_by_far_or_loses(us, blocks):
    clock, steady = Clock(), iter(range(10**6))

    def seen(timings):
        raced = [Candidate(n, n, timing=t) for n, t in timings.items() if n != "again"]
        return settled(raced, timings["again"], by_far=IN_CALL.ahead(timings))

    def call(label, us):
        return clock.costing(us, lambda: setattr(clock, "now", clock.now + next(steady) % 97))

    calls = {"torch": call("torch", 100), "kernel": call("kernel", us)}
    found = race(calls, CPU, effort=IN_CALL, clock=clock, again="again", settled=seen)
    assert len(found["kernel"].call_us) == blocks


class Gpu:
    """Stands in for a device whose calls take no time there."""

    def __init__(self):
        self.slept, self.suspected, self.over = [], [], False

    def record(self):
        pass

    def query(self):
        return self.over

    def elapsed_time(self, _):
        return 0.5


@pytest.fixture
def gpu(cuda_answers, race_has, monkeypatch):
    """A device for races; of each lane that may use another stream, its call is noted."""
    found = Gpu()
    cuda_answers(synchronize=lambda _: None, _sleep=found.slept.append, Event=lambda **_: found)
    race_has(
        current=lambda _: contextlib.nullcontext(),
        require_current_stream=lambda lane, *_: found.suspected.append(lane.call),
    )
    monkeypatch.setattr(module.clock, "READ", ())
    return found


@pytest.mark.parametrize(("samples", "calls"), [(5, 3 + 5), (3, 3 + 3), (1, 1)])
def test_a_long_call_is_issued_once_a_block_on_a_gpu(gpu, samples, calls):
    """A call of 4 ms was issued six times a block, four of them behind a spinning kernel of 8 ms."""
    clock, log = Clock(), []
    lane = Lane(clock.costing(4000, lambda: log.append(1)), each_s=5e-3, samples=samples)
    cuda_block(torch.device("cuda"), lane, Lane(int), clock)
    assert len(log) == calls
    assert lane.host_us == pytest.approx([4000], rel=1e-3)
    assert lane.device_us == [500]
    cuda_block(torch.device("cuda"), lane, Lane(int), clock)
    assert gpu.slept[-1] == pytest.approx(1.25 * 4000 * 2000, rel=1e-3), "it covers the time to enqueue"


def test_events_that_say_less_than_the_host_waited_are_no_times(gpu, cuda_answers):
    clock = Clock()
    cuda_answers(synchronize=lambda _: setattr(clock, "now", clock.now + 10_000_000))
    lane, first = Lane(clock.costing(1), each_s=1e-4), Lane(int)
    for _ in range(4):
        cuda_block(torch.device("cuda"), lane, first, clock)
    with pytest.raises(MeasurementError, match="by the device's events much less"):
        cuda_block(torch.device("cuda"), lane, first, clock)
    first.apart = 1
    cuda_block(torch.device("cuda"), lane, first, clock)  # other programs keep the device busy


def test_a_spin_that_was_too_short_is_repeated_and_longer_from_then_on(gpu):
    clock, log = Clock(), []
    lane = Lane(clock.costing(4000, lambda: log.append(1)), each_s=5e-3, samples=1)
    gpu.over = True  # the device had begun before all was enqueued
    cuda_block(torch.device("cuda"), lane, Lane(int), clock)
    assert len(log) == 2
    assert gpu.slept[1] / gpu.slept[0] == pytest.approx(2 / 1.25)
    cuda_block(torch.device("cuda"), lane, Lane(int), clock)
    assert len(log) == 3, "a call that waits for the device isn't repeated forever"
    assert lane.device_us == [500, 500]


def test_beside_the_program_the_device_spins_shortly(gpu, race_has):
    """A call that waits for the program's work seems long: its spin held up a training for a second."""
    clock = Clock()
    for us, spin_us in ((40_000, 1000), (100, 125)):
        lane = Lane(clock.costing(us, lambda: None), each_s=us * 1e-6, samples=1)
        cuda_block(torch.device("cuda"), lane, Lane(int), clock, spin_s=SPIN_S)
        assert gpu.slept[-1] == pytest.approx(spin_us * 2000, rel=1e-3)
    efforts = []
    race_has(
        cuda_block=lambda *_, host_s, spin_s: efforts.append(spin_s),
        in_the_race=lambda lanes, order, *_: order,
    )
    race(lanes(clock, torch=100), torch.device("cuda"), effort=BRIEF, clock=clock)
    assert {*efforts} == {SPIN_S}


@pytest.mark.parametrize(
    ("us", "warm", "calls"), [(60, 16, 5 + 3), (150, 7, 3 + 2), (300, 4, 1), (4000, 3, 1)]
)
def test_a_race_in_a_call_makes_few_calls(gpu, us, warm, calls):
    """Half of a search network's first minute on an unknown device went to such races."""
    clock, log = Clock(), []
    lane = Lane(clock.costing(us, lambda: log.append(1)))
    list(warm_up(lane, torch.device("cuda"), 0.9e-3, clock, IN_CALL.gpu_samples))
    assert len(log) == warm
    cuda_block(torch.device("cuda"), lane, Lane(int), clock, IN_CALL.host_s)
    assert len(log) - warm == calls


def test_torchs_own_calls_are_not_suspected_of_another_stream(gpu):
    clock = Clock()
    calls = lanes(clock, torch=100, idiom=90, kernel=40)
    effort = Effort((3,), WARM, 100.0)
    rivals = frozenset({"torch", "idiom"})
    found = race(calls, torch.device("cuda"), effort=effort, clock=clock, rivals=rivals, again="again")
    assert gpu.suspected == [calls["kernel"]]
    assert found["kernel"].device_median_us == 500 / 2, "of a sample of two calls"


def test_a_race_goes_on_to_the_last_look_where_nothing_settles():
    clock = Clock()
    assert len(run(clock, lanes(clock, torch=100), looks=(4, 8, 16))["torch"].call_us) == 16


def test_the_budget_ends_a_race_but_not_before_the_first_look():
    clock = Clock()
    found = run(clock, lanes(clock, torch=10_000), looks=(4, 8, 16), budget_s=0.01)
    assert len(found["torch"].call_us) == 4


def test_a_short_call_is_repeated_and_a_long_one_sampled_less():
    def calls_in_a_block(us):
        clock, log = Clock(), []
        calls = lanes(clock, log, torch=us)
        run(clock, calls, looks=(4,))
        long = len(log)
        log.clear()
        run(clock, calls, looks=(5,))
        return len(log) - long

    assert calls_in_a_block(4) == pytest.approx(50, abs=5)  # 5 samples of 40 us
    assert calls_in_a_block(100) == 5
    assert calls_in_a_block(2_000) == 3
    assert calls_in_a_block(6_000) == 1


def test_warming_up_lasts_as_long_as_asked():
    clock, log = Clock(), []
    race(lanes(clock, log, torch=100), CPU, effort=Effort((1,), 0.05, 9), clock=clock)
    assert 500 <= len(log) <= 510


def test_a_block_is_the_median_of_its_samples():
    clock, calls = Clock(), iter(range(10**6))

    def stutter():
        clock.now += 900_000 if next(calls) % 5 == 4 else 100_000

    found = race({"torch": stutter}, CPU, effort=Effort((3,), 0.0, 9), clock=clock)
    assert found["torch"].call_us == pytest.approx([100] * 3, rel=0.01)


def test_no_garbage_is_collected_meanwhile():
    clock, seen = Clock(), []
    run(clock, {"torch": clock.costing(100, lambda: seen.append(gc.isenabled()))})
    assert not any(seen)
    assert gc.isenabled()


def test_real_time_is_measured_by_default():
    event = threading.Event()
    found = race({"torch": lambda: event.wait(0.002)}, CPU, effort=Effort((1,), 0.0, 1.0))
    assert 2000 <= found["torch"].median_us < 100_000


def test_call_us_is_the_slower_of_host_and_device():
    timing = Timing(device_us=(1.0, 5.0, 3.0), host_us=(2.0, 4.0, 9.0))
    assert timing.call_us == (2.0, 5.0, 9.0)
    assert (timing.median_us, timing.device_median_us) == (5.0, 3.0)
    assert timing.to_dict() == {
        "median_us": 5.0,
        "device_median_us": 3.0,
        "host_median_us": 4.0,
        "device_us": [1.0, 5.0, 3.0],
        "host_us": [2.0, 4.0, 9.0],
    }


CEILINGS = ceilings.Ceilings(t0_us=2.0, bandwidths=((1000, 4e9), (4000, 2e9), (16000, 1e9)), flops=1e9)


@pytest.mark.parametrize(
    ("size", "bandwidth"), [(10, 4e9), (1000, 4e9), (2000, 4e9), (4000, 2e9), (5000, 2e9), (10**6, 1e9)]
)
def test_the_bandwidth_is_the_best_of_the_neighbouring_sizes(size, bandwidth):
    assert CEILINGS.bandwidth(size) == bandwidth


def test_the_floor_is_the_slower_of_bytes_and_operations():
    assert CEILINGS.floor_us(Cost(bytes=16000, flops=1)) == pytest.approx(2 + 16)
    assert CEILINGS.floor_us(Cost(bytes=1, flops=50_000)) == pytest.approx(2 + 50)
    assert CEILINGS.floor_us(Cost(bytes=0, flops=0)) == pytest.approx(2)


def test_what_was_reached_once_is_a_ceiling():
    other = ceilings.Ceilings(t0_us=1.0, bandwidths=((1000, 3e9), (4000, 5e9), (16000, 1e9)), flops=1.0)
    assert CEILINGS.raised(other) == other.raised(CEILINGS)
    assert CEILINGS.raised(other).bandwidths == ((1000, 4e9), (4000, 5e9), (16000, 1e9))
    assert CEILINGS.raised(other).t0_us == 1.0
    assert CEILINGS.raised(other).flops == CEILINGS.flops


def test_ceilings_measured_beside_other_work_are_measured_again(monkeypatch):
    found = [replace(CEILINGS, noise=0.6), replace(CEILINGS, noise=0.3, flops=2 * CEILINGS.flops)]
    quiet, asked = replace(CEILINGS, noise=0.01, t0_us=0.5), []
    monkeypatch.setattr(
        ceilings, "ceilings_now", lambda device: asked.append(device) or [*found, quiet][len(asked) - 1]
    )
    best = ceilings.ceilings.__wrapped__(CPU)
    assert len(asked) == 1 + ceilings.TRIES
    assert (best.flops, best.t0_us, best.noise, best.unsure) == (2 * CEILINGS.flops, 0.5, 0.01, False)
    asked.clear()
    found.insert(0, quiet)
    assert ceilings.ceilings.__wrapped__(CPU) == quiet
    assert len(asked) == 1
    monkeypatch.setattr(ceilings, "ceilings_now", lambda device: replace(CEILINGS, noise=0.6))
    assert ceilings.ceilings.__wrapped__(CPU).unsure
    assert ceilings.ceilings.__wrapped__(CPU).to_dict()["noise"] == 0.6


def test_the_noise_of_a_ceiling_is_what_its_median_block_takes_more(monkeypatch):
    times = {"a": fakes.timing([10.0, 12.0, 13.0]), "b": fakes.timing([11.0, 11.0, 11.0])}
    monkeypatch.setattr(ceilings, "race", lambda *a, **how: times)
    assert ceilings._best_us({}, CPU, Effort()) == (10.0, pytest.approx(0.2))


def test_ceilings_are_plain_data():
    assert CEILINGS.to_dict()["bandwidths"] == [[1000, 4e9], [4000, 2e9], [16000, 1e9]]


def test_the_cpu_is_described_by_what_torch_uses():
    found = describe("cpu")
    assert found.type == "cpu"
    assert found.units == torch.get_num_threads()
    assert found.capability == torch.backends.cpu.get_cpu_capability()
    assert found.name
    assert found.memory > 1 << 28
