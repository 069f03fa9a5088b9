"""A call that needs a gradient is torch's own while torch serves both ways, and is learnt from."""

import functools
import threading
from dataclasses import replace

import pytest
import torch

from nxcore.call import gradient_route
from nxcore.call.gradient_route import SCOUTS
from nxcore.choose.contenders import AGAIN, Choice
from nxcore.choose.learn.budget import Pace
from nxcore.choose.learn.exploration import MET, Exploration
from nxcore.choose.learn.learner import Learner
from nxcore.choose.recall import Recall
from nxcore.measure import race
from nxcore.measure.decision import Candidate, Decision
from nxcore.measure.timing import Timing
from nxcore.offline import shipped
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.store import transfer
from nxcore.store.wisdom import is_pair
from tests.null import fakes
from tests.null.call.crossing import BACKWARD, FORWARD, XS, learning, races, step
from tests.null.choose.learn.test_exploration import LONG
from tests.null.fakes import SPECS
from tests.stand_ins import stand_in
from tests.table import for_each

recall_has = stand_in(Recall)


def test_while_the_kernels_are_made_ready_torchs_autograd_records_the_calls():
    session, _ = learning(0.5, 0.5)
    held = threading.Event()
    entered = session.tuner.entered
    session.tuner.entered = lambda *of: held.wait(20) and entered(*of)
    crossed = [step(session, settle=False) for _ in range(40)]
    held.set()
    session.chooser.learner.settle(30)
    assert sum(crossed) == 1, "the one that tells the backward operator's problem"
    assert crossed.index(True) == MET - 1


@for_each(
    ("forward", "backward", "crosses"),
    [(0.5, 0.5, True), (0.5, 1.5, True), (1.5, 0.5, True), (1.5, 1.5, False), (0.5, 0, True), (0, 0.5, True)],
)
def test_both_ways_are_learnt_from_calls_and_the_bridge_stays_where_a_kernel_won(forward, backward, crosses):
    session, runs = learning(forward, backward)
    for _ in range(12 * MET):
        step(session)
    chosen = {c.decision.chosen for p, *_ in session.chooser.choices for c in [session.chooser.known(p)] if c}
    rules = {c.decision.rule for c in session.chooser.choices.values()}
    assert "exploring" not in rules
    assert ("fast" in chosen) == crosses
    runs.clear()
    assert [step(session) for _ in range(3)][1:] == [crosses] * 2
    assert set(runs) == {n for n, share in (("forward", forward), ("backward", backward)) if 0 < share < 1}


@pytest.mark.parametrize("policy", ["measure", "frozen"])
def test_where_torch_serves_both_ways_its_own_autograd_does(policy, raced_by):
    session, _ = learning(1.5, 1.5, policy)
    clock = session.chooser.learner.clock
    raced_by(functools.partial(race.race, clock=clock))
    crossed = [step(session, dense=True) for _ in range(6)]
    # By `measure` nobody knows yet who has the backward operator's problem.
    assert crossed[0] == (policy == "measure")
    assert not any(crossed[1:])
    session._forget()
    assert not step(session, dense=True), "a new plan knows"


@for_each(
    ("forward", "backward", "crosses"),
    [
        (0.95, 1.5, False),
        (1.5, 0.95, False),
        (0.95, 0.95, False),
        (0.9, 0.9, True),
        (0.8, 1.5, True),
        (1.5, 0.8, True),
        (0.95, 0, False),
        (0.8, 0, True),
        (0, 0.95, False),
        (0, 0.8, True),
    ],
)
def test_kernels_that_save_less_than_the_bridge_costs_leave_it_to_torch(forward, backward, crosses, joining):
    """Of 100 us each way, the function that joins them takes 13; both ways count together."""
    session, runs = learning(forward, backward, "measure")
    joining(13, session.chooser.learner.clock)
    for _ in range(2):
        step(session, dense=True)
    for again in (False, True):
        if again:
            session._forget()  # new plans know from the start
        runs.clear()
        assert step(session, dense=True) is crosses
        assert ("forward" in runs) == (crosses and 0 < forward < 1)
        assert ("backward" in runs) == (crosses and 0 < backward < 1)
    with torch.no_grad():
        for _ in range(2):
            runs.clear()
            session.op(FORWARD)(XS, torch.ones(2))
    assert runs == ["forward"] * (0 < forward < 1), "without a gradient there is no bridge"


def test_both_ways_are_measured_together_and_that_decides(joining, monkeypatch, recall_has, tmp_path):
    """Each half wins by 30 us, and the function that joins them takes 70: the halves' sum said otherwise."""
    recall_has(make=lambda *_: "1")  # a fake has no source
    session, runs = learning(0.7, 0.7, "measure", tmp_path)
    joining(70, session.chooser.learner.clock)
    seen = races(monkeypatch)
    step(session, dense=True)
    assert [step(session, dense=True) for _ in range(3)] == [False] * 3
    assert seen.count(["torch", "fast + fast"]) == 1
    xs = [x.clone().requires_grad_() for x in XS]
    found = session.explain(FORWARD, xs, torch.ones(2, requires_grad=True))
    assert found.decision.chosen == "fast", "of the forward pass alone"
    assert found.pair.chosen == "torch"
    assert "forward and backward together: torch: no kernel is measurably faster" in str(found)
    assert found.to_dict()["pair"]["chosen"] == "torch"
    again, runs = learning(0.7, 0.7, "measure", tmp_path)
    joining(70, again.chooser.learner.clock)
    seen = races(monkeypatch)
    step(again, dense=True)
    runs.clear()
    assert not step(again, dense=True)
    assert seen == [], "all is recorded"
    assert runs == []


def test_a_pair_whose_race_noise_spoils_is_raced_by_the_next_process(joining, recall_has, raced_by, tmp_path):
    recall_has(make=lambda *_: "1")
    pairs = []

    def noisy(run, calls, *args, **how):
        found = run(calls, *args, **how)
        if "fast + fast" in calls:
            pairs.append(calls)
            if len(pairs) == 1:
                us = [t * 3.0 ** (n % 3 - 1) for n, t in enumerate(found[AGAIN].device_us)]
                found[AGAIN] = replace(found[AGAIN], device_us=tuple(us), host_us=tuple(us))
        return found

    crossed = []
    for _ in range(3):
        session, _ = learning(0.7, 0.7, "measure", tmp_path)
        joining(13, session.chooser.learner.clock)
        raced_by(functools.partial(noisy, race.race))
        for _ in range(2):
            step(session, dense=True)
        crossed.append(step(session, dense=True))
    assert len(pairs) == 2
    assert crossed[-1]


def test_a_pair_whose_race_others_disturb_is_not_kept_and_its_halves_decide(
    joining, recall_has, raced_by, tmp_path
):
    recall_has(make=lambda *_: "1")
    session, _ = learning(0.7, 0.7, "measure", tmp_path)
    joining(13, session.chooser.learner.clock)
    pairs, run = [], race.race

    def busy(calls, *args, **how):
        found = run(calls, *args, **how)
        if "fast + fast" not in calls:
            return found
        pairs.append(calls)
        return {label: replace(t, lost=0.9, fault="others had the processors") for label, t in found.items()}

    raced_by(busy)
    for _ in range(4):
        step(session, dense=True)
    assert len(pairs) == 1
    (document,) = [transfer.exported(session.wisdom.store)]
    keys = [e["key"]["op"] for part in document["environments"] for e in part["entries"]]
    assert f"{FORWARD} with gradient" not in keys
    assert session.chooser.retries._timer is not None, "it is repeated"
    session.chooser.retries._timer.cancel()
    session.chooser.retries._due()
    step(session, dense=True)
    step(session, dense=True)
    assert len(pairs) == 2


@pytest.mark.parametrize("changed", ["", FORWARD, BACKWARD])
def test_a_shipped_pair_is_stale_once_one_of_its_kernels_has_changed(changed):
    session, _ = learning(0.7, 0.7)
    now = {
        op: session.gate.identity(*owned).kernel
        for op in (FORWARD, BACKWARD)
        for owned in [kernel(session, op)]
    }
    makes = {f"{op}: fast": "old" if op == changed else made for op, made in now.items()}
    why = shipped.compared(session)
    found = {label: why(f"{FORWARD} with gradient", label, made) for label, made in makes.items()}
    assert [label for label, reason in found.items() if reason] == [f"{changed}: fast"] * bool(changed)
    decision = {"chosen": "torch", "candidates": []}
    entry = {
        "key": {"op": f"{FORWARD} with gradient"},
        "page": {"makes": makes, "late": [], "decision": decision},
    }
    part = {"facts": {}, "entries": [entry]}
    kept = shipped.pruned({"environments": [part]}, why)["environments"][0]["entries"]
    assert kept == ([] if changed else [entry])


def kernel(session, op):
    return next((b, k) for b, k in session.registry.kernels(op) if b.name == "fast")


def test_a_pair_that_torch_was_predicted_to_win_is_measured_too(joining):
    """The halves save 12 us together, less than the function was said to cost; it costs nothing here."""
    session, _ = learning(0.9, 0.98, "measure")
    joining(0, session.chooser.learner.clock)
    for _ in range(2):
        step(session, dense=True)
    assert step(session, dense=True)


def test_a_capture_knows_that_a_pair_waits_for_the_next_call(joining):
    session, _ = learning(0.7, 0.7, "measure")
    joining(70, session.chooser.learner.clock)
    waiting = []
    for _ in range(3):
        step(session, dense=True)
        waiting.append(session.chooser.pairs.waiting)
    assert waiting == [1, 0, 0], "the first backward pass names the pair, and the next call measures it"


def test_a_doubtful_pair_is_measured_in_the_background(joining, monkeypatch, recall_has, tmp_path):
    recall_has(make=lambda *_: "1")
    session, _ = learning(0.8, 0.98, cache=tmp_path)
    joining(70, session.chooser.learner.clock)
    seen = races(monkeypatch)
    for _ in range(12 * MET):
        step(session, dense=True)
    assert seen == [["torch", "fast + fast"]]
    (entry,) = [e for of, e in session.wisdom.pages(torch.device("cpu")) if is_pair(of)]
    assert entry.policy == "auto"
    assert not step(session, dense=True)


def test_a_race_does_not_call_hooks_on_saved_tensors(joining):
    session, _ = learning(0.5, 0.5, "measure")
    joining(13, session.chooser.learner.clock)
    step(session, dense=True)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        step(session, dense=True)
    assert len(packed) < 10
    assert session.chooser.pairs._found == {}
    step(session, dense=True)
    assert len(session.chooser.pairs._found) == 1


@pytest.mark.parametrize("policy", ["frozen"])
def test_where_nothing_is_learnt_the_first_call_is_torchs_as_all_are(policy):
    """The bridge has other last bits: a search that goes on in a new process would differ."""
    session, runs = learning(0.5, 0.5, policy)
    assert [step(session, settle=False) for _ in range(3)] == [False] * 3
    assert runs == []


def test_on_a_device_that_the_call_waits_for_the_bridge_costs_nothing():
    def choice(torchs, mine):
        seen = {"torch": torchs, "fast": mine}
        candidates = tuple(
            Candidate(n, "torch" if n == "torch" else "fast", timing=Timing((d,) * 3, (h,) * 3))
            for n, (d, h) in seen.items()
        )
        return Choice(Decision("fast", "measured", "", candidates), lambda: None, None, None)

    assert gradient_route.gain_us(choice((100, 10), (90, 10)), 6.5) == 10
    assert gradient_route.gain_us(choice((10, 20), (9, 18)), 6.5) == 2 - 6.5
    assert not gradient_route.pays(choice((10, 20), (9, 18)), 6.5)
    assert gradient_route.pays(choice((100, 10), (90, 10)), 6.5)
    assert not gradient_route.pays(choice((100, 10), (90, 10)), 16)


def test_calls_that_nobody_differentiates_stop_crossing(raced_by):
    session, _ = learning(1.5, 1.5, "measure")
    clock = session.chooser.learner.clock
    raced_by(functools.partial(race.race, clock=clock))
    assert [step(session, back=False) for _ in range(SCOUTS + 4)] == [True] * SCOUTS + [False] * 4


def test_while_kernels_are_raced_torch_serves_both_ways_and_captured_calls_race_nothing(monkeypatch):
    session, runs = learning(0.5, 0.5, us=LONG)
    for _ in range(MET + 2):
        step(session)
    pace = session.chooser.learner.pace
    runs.clear()
    before = pace.spent
    assert not any(step(session) for _ in range(12))
    assert runs
    assert pace.spent > before
    monkeypatch.setattr(Exploration, "_capturing", lambda self: True)
    runs.clear()
    assert not any(step(session) for _ in range(8))
    assert runs == []


@pytest.mark.parametrize(("us", "crosses"), [(30, True), (300, False)])
def test_a_pools_kernels_are_raced_in_its_calls_and_serve_none(us, crosses, joining):
    """Torch's fastest way returns another result than nxcore's gradient needs."""
    clock, runs = fakes.Clock(), []
    names = "max_pool2d", "max_pool2d_with_offsets", "max_pool2d_backward"
    torchs = dict.fromkeys(names, 200)

    def kernel(op):
        timed = clock.costing(us, SPECS[op].reference)
        return fakes.kernel(op, lambda *args: runs.append(op) or timed(*args), target=f"{op}:plan")

    specs = [
        fakes.replace(spec, reference=clock.costing(torchs[name], spec.reference), idioms={}, yardsticks={
            way: clock.costing(100, call) for way, call in spec.yardsticks.items()
        }) if name in names else spec
        for name, spec in SPECS.items()
    ]  # fmt: skip
    session = Session(
        Settings(audit=False, cache=None, policy="auto"),
        fakes.registry(fakes.backend("fast", *map(kernel, names[1:])), specs=specs),
        fakes.QUICK,
    )
    learner = session.chooser.learner = Learner(
        session.chooser.recall, session._forget, clock, Pace(float("inf"))
    )
    joining(0, clock)
    x = torch.randn(1, 2, 6, 6, requires_grad=True)
    crossed = []
    for _ in range(12 * MET):
        out = session.op("max_pool2d")(x, 3, 1, 1)
        out.sum().backward()
        learner.settle(30)
        crossed.append("Join" in type(out.grad_fn).__name__)
    assert not any(crossed[: MET - 1])
    assert crossed[-1] == crosses
    choices = {
        p.op: c.decision.chosen for p, *_ in session.chooser.choices for c in [session.chooser.known(p)]
    }
    assert choices["max_pool2d_with_offsets"] == ("fast" if crosses else "torch")
