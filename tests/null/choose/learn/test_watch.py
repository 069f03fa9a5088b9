"""Watches: the schedule, what is no conviction, what is left alone, and what a resting watch costs."""

import gc
import os
import threading
import warnings
import weakref
from functools import partial

import pytest
import torch

from nxcore.choose.contenders import Choice
from nxcore.choose.learn import rota, watch, watches
from nxcore.choose.learn.budget import Pace
from nxcore.choose.learn.pending import Pending
from nxcore.context import KernelWarning
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import Problem
from nxcore.trust import suspicion
from nxcore.trust.distance import strays
from nxcore.trust.form import meet, spans, twin
from nxcore.trust.state import State, disturbance
from nxcore.trust.suspicion import confirmed
from nxcore.trust.truth import without_out
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.table import for_each

NOW = [0.0]
"""The time of the watches: tests set it forward."""

CPU = torch.device("cpu")
X = torch.arange(12.0)


def asleep(seconds):
    """Arm nothing: the test does."""
    return False


def watching(*ops, call=None, **how):
    """Return a session that watches with time to spare, and the kernel that it prefers, a counter."""
    kernel = fakes.Counter(call or SPECS[(ops or ("add",))[0]].reference)
    backend = fakes.backend("watched", *(fakes.kernel(op, kernel, **how) for op in ops or ("add",)))
    found = Session(Settings(policy="measure"), fakes.registry(backend), fakes.QUICK)
    found.chooser.watches.wait = asleep
    found.chooser.watches._clock = lambda: NOW[0]
    found.chooser.learner.keep_to(Pace(float("inf")))
    return found, kernel


def arm(session):
    """Let audits be due, and arm what is to take them."""
    NOW[0] += 100.0
    return session.chooser.watches.arm()


def only(session):
    (found,) = session.chooser.watches._known.values()
    return found


def test_the_first_calls_are_watched_and_some_audited_then_the_kernel_serves_directly():
    session, kernel = watching()
    op = session.op("add")
    with session.use("watched"):
        audits = []
        for _ in range(watch.FIRST):
            op(X, X)
            audits.append(only(session)._audits)
        assert [i + 1 for i, n in enumerate(audits) if n > (audits[i - 1] if i else 0)] == [1, 2, 4, 8, 16]
        (plan,) = op.plans.values()
        assert type(plan) is partial
        assert plan.func is kernel, "nothing but a partial is between a call and the kernel"
        session.chooser.watches.arm()
        assert plan.func is kernel, "no audit is due yet"
        arm(session)
        assert plan.func is not kernel
        for _ in range(watch.SAMPLE):
            op(X, X)
        assert (only(session)._audits, plan.func) == (watch.FIRST.bit_length() + 1, kernel)


@for_each(
    ("wrong", "then", "convicted"),
    [(0, None, False), (1, None, True), (0, torch.relu_, False), (1, torch.relu_, False)],
)
@for_each("inference", [False, True])
def test_a_result_that_was_written_since_is_no_evidence(wrong, then, convicted, inference):
    """CUDA's audits are judged later, and an activation in place may have come between."""
    session, _ = watching()
    with session.use("watched"), torch.inference_mode(inference):
        session.op("add")(-X, -X)
        result = SPECS["add"].reference(-X, -X, 1, None) + wrong
        versions = suspicion.versions(result)
        pending = Pending(only(session), twin((-X, -X, 1, None)), result, torch.ones(2), None, None, versions)
        if then:
            then(result)
        found = only(session).late(pending, changed=False)
    assert bool(found) is (convicted and not inference), "torch counts no writes in inference"


def test_a_kernel_that_is_wrong_again_is_convicted_whatever_became_of_the_result():
    session, _ = watching()
    with session.use("watched"):
        session.op("add")(X, X)
        found = only(session)
        found.planned = lambda a, b, alpha, out: a + b + 1
        result = X + X + 1
        pending = Pending(
            found, twin((X, X, 1, None)), result, torch.ones(2), None, None, suspicion.versions(result)
        )
        result.zero_()
        assert "wrong in a call" in found.late(pending, changed=False)


def test_audits_are_charged_to_learning():
    session, _ = watching()
    with session.use("watched"):
        session.op("add")(X, X)
    assert session.chooser.learner.pace.charged > 0


def test_problems_of_a_kernel_take_turns():
    session, _ = watching()
    with session.use("watched"):
        for n in (3, 4) * watch.FIRST:
            session.op("add")(X[:n], X[:n])
        known = [(one, one._audits) for one in session.chooser.watches._known.values()]
        for turn in range(2):
            arm(session)
            for n in (4, 3, 4, 4):
                session.op("add")(X[:n], X[:n])
            assert [one._audits - before for one, before in known] == [1, turn]


def test_the_thread_arms_what_rests_and_ends_where_nothing_does():
    session, _ = watching()
    waited = []

    def wait(seconds):
        NOW[0] += seconds
        return not waited.append(seconds)

    session.chooser.watches.wait = wait
    with session.use("watched"):
        for _ in range(watch.FIRST):
            session.op("add")(X, X)
    for thread in [t for t in threading.enumerate() if t.name == "nxcore watches"]:
        thread.join(10)
    assert only(session).armed
    assert [rota.LEAST_S <= seconds <= rota.GAP_S for seconds in waited] == [True]
    assert session.chooser.watches.thread is None


def test_the_thread_does_not_keep_what_it_arms():
    waits, held = threading.Event(), threading.Event()

    def wait(seconds):
        waits.set()
        return held.wait(10)

    found = watches.Watches(lambda *a: None, Pace, wait=wait)
    backend = fakes.backend("watched", kernel := fakes.kernel("add"))
    problem = Problem.of(SPECS["add"], (X, X, 1, None))
    one = watch.Watch(found, backend, kernel, SPECS["add"].reference, problem, strict=True)
    one.rest()
    thread, gone = found.thread, weakref.ref(found)
    assert waits.wait(10)
    del found, one
    gc.collect()
    assert gone() is None
    held.set()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_watches_again():
    session, _ = watching()
    with session.use("watched"):
        for _ in range(watch.FIRST):
            session.op("add")(X, X)
    assert not only(session).armed
    session.chooser.watches.after_fork()
    assert only(session).armed
    assert session.chooser.watches.thread is None


def test_watches_can_be_switched_off():
    kernel = fakes.Counter(SPECS["add"].reference)
    backend = fakes.backend("watched", fakes.kernel("add", kernel))
    settings = Settings.from_environment(
        {"NXCORE_AUDIT": "0", "NXCORE_CACHE": "", "NXCORE_POLICY": "measure"}
    )
    session = Session(settings, fakes.registry(backend), fakes.QUICK)
    with session.use("watched"):
        session.op("add")(X, X)
    assert list(session.op("add").plans.values()) == [kernel]
    assert Settings.from_environment({}).audit


def test_torchs_own_is_not_watched():
    session, _ = watching()
    backend, kernel = next((b, k) for b, k in session.registry.kernels("add") if b.name == "torch")
    choice = Choice(None, SPECS["add"].reference, kernel, backend)
    assert session.chooser.watches.over(choice, Problem.of(SPECS["add"], (X, X, 1, None))) is choice


def test_the_callers_result_is_in_memory_of_its_own_while_it_is_watched():
    kept = []

    def keeping(*args):
        kept.append(SPECS["add"].reference(*args))
        return kept[-1]

    session, _ = watching(call=keeping)
    with session.use("watched"):
        result = session.op("add")(X, X)
    assert torch.equal(result, 2 * X)
    assert not meet(spans([result]), spans(kept))


def test_an_out_is_audited_in_place():
    session, kernel = watching(in_place_safe=True)
    out, same = torch.empty(12), X.clone()
    with session.use("watched"):
        assert session.op("add")(X, X, out=out) is out
        assert session.op("add")(same, X, out=same) is same
    assert torch.equal(out, 2 * X)
    assert torch.equal(same, 2 * X)
    assert [w._audits for w in session.chooser.watches._known.values()] == [1, 1]
    kernel.call = lambda x, y, alpha, out: out.fill_(7)
    with session.use("watched"), pytest.warns(KernelWarning, match="'add', is in quarantine"):
        assert session.op("add")(X, X, out=out) is out
    assert torch.equal(out, 2 * X)


def test_drawn_noise_is_an_argument_like_any_other():
    """The kernel and the reference see the same noise, and no other random numbers are drawn."""
    session, _ = watching("gumbel_softmax")
    x = torch.randn(5, 7)
    with session.use("watched"):
        session.op("gumbel_softmax")(x)
        torch.manual_seed(3)
        mine, after = session.op("gumbel_softmax")(x), torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(mine, session.op("gumbel_softmax", backend="torch")(x))
    assert torch.equal(after, torch.rand(1))
    assert only(session)._audits == 2


# What is no conviction.


def acquitted(op, args, result=None, kernel=None, changed=False):
    spec = SPECS[op]
    result = spec.reference(*args) if result is None else result
    return confirmed(kernel or spec.reference, spec, args, result, changed=changed) == ""


@for_each("op", sorted(SPECS))
def test_the_reference_is_never_convicted(op):
    """On every small sample, those of NaN, infinities and denormals too; nor does it stray."""
    spec = SPECS[op]
    for sample in [s for s in spec.samples if not s.tags & {"bench", "huge"}]:
        args = without_out(spec, sample.build(spec, "cpu", torch.float32))
        native = spec.reference(*args)
        assert not strays(spec, args, native, spec.reference(*args)), sample.name
        assert acquitted(op, args), sample.name


def test_a_sum_that_overflows_in_another_order_is_no_fault():
    x = torch.tensor([3e38, 3e38, -3e38, -3e38])
    assert acquitted("sum", (x, None, False), torch.tensor(torch.inf), lambda *a: torch.tensor(torch.inf))


def test_what_nan_becomes_is_no_fault_of_a_watched_call():
    x = torch.tensor([torch.nan, 1.0, 2.0])
    for result, excused in ((torch.tensor([0.0, 2.0, 4.0]), True), (torch.zeros(3), False)):
        assert acquitted("add", (x, x, 1, None), result, lambda *a, r=result: r.clone()) is excused


def test_of_what_only_moves_values_an_infinity_excuses_nothing():
    for odd in (torch.inf, torch.nan):
        x = torch.tensor([odd, 1.0, 2.0])
        assert not acquitted("amax", (x, None, False), torch.tensor(2.0), lambda *a: torch.tensor(2.0))


def test_a_kernels_first_run_on_a_problem_leaves_the_callers_inputs_alone():
    def call(x, y, alpha, out):
        result = SPECS["add"].reference(x, y, alpha, out)
        if x.shape == X.shape:
            x.zero_()
        return result

    (session, _), x = watching(call=call), torch.ones(12)
    with session.use("watched"), pytest.warns(KernelWarning, match="inputs must be left unchanged"):
        assert torch.equal(session.op("add")(x, X), X + 1)
    assert torch.equal(x, torch.ones(12))


def test_a_suspect_runs_again_with_gradients_on_or_off_as_in_the_call():
    late = []

    def call(x, y, alpha, out):
        result = SPECS["add"].reference(x, y, alpha, out)
        if late and torch.is_grad_enabled():
            x.zero_()
        return result

    session, _ = watching(call=call)
    with session.use("watched"):
        session.op("add")(X.clone(), X)
        late.append(1)
        x = X.clone()
        with pytest.warns(KernelWarning, match="inputs must be left unchanged"):
            assert torch.equal(session.op("add")(x, X), X + X)
    assert torch.equal(x, X)
    assert list(session.gate.quarantine)


def test_inputs_that_another_thread_writes_into_convict_nobody():
    args = X, X, 1, None
    assert acquitted("add", args, X + 9, changed=True)
    assert not acquitted("add", args, X + 9)
    assert not acquitted("add", args, X + 9, lambda *a: X + 9, changed=True)


def test_a_result_that_is_a_little_off_once_is_acquitted():
    args = X, X, 1, None
    nearly = 2 * X + 2 * X * 2.0**-24 * 8
    assert strays(SPECS["add"], args, 2 * X, 2 * X + 2 * X * 2.0**-24 * 64)
    assert acquitted("add", args, nearly)


def test_a_setting_that_another_thread_changes_convicts_nobody():
    before = State.now(CPU)
    torch.set_default_dtype(torch.float64)
    try:
        assert disturbance(before, CPU, lambda: None, lambda: None) == ""
        assert torch.get_default_dtype() is torch.float64, "it is that thread's to set"
    finally:
        torch.set_default_dtype(torch.float32)


def test_random_numbers_that_another_thread_draws_convict_nobody():
    before = State.now(CPU)
    torch.rand(1)
    draw = partial(torch.rand, 1)
    assert disturbance(before, CPU, draw, draw) == ""
    assert "random number generator" in disturbance(before, CPU, draw, lambda: None)
    assert State.now(CPU).changed(before) == "", "and is put back"


def test_an_acquittal_draws_no_random_numbers():
    """A toolkit may draw some once, as it is imported."""
    before = State.now(CPU)
    torch.rand(1)
    after = State.now(CPU)
    assert disturbance(before, CPU, lambda: None, lambda: None) == ""
    assert State.now(CPU).changed(after) == ""


def test_beside_the_main_thread_nobody_draws_for_an_audit():
    found = []
    thread = threading.Thread(target=lambda: found.append(State.now(CPU)))
    thread.start()
    thread.join()
    assert found[0].generators == {}


def test_a_look_that_fails_fails_no_call(monkeypatch):
    session, _ = watching()
    monkeypatch.setattr(watch, "strays", fakes.raising(RuntimeError("no")))
    with session.use("watched"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(session.op("add")(X, X), 2 * X)


def test_what_would_take_too_much_memory_is_not_audited(monkeypatch):
    monkeypatch.setattr(watches, "MOST", 100)
    session, _ = watching()
    with session.use("watched"):
        assert torch.equal(session.op("add")(X, X), 2 * X)
    assert only(session)._audits == 0
