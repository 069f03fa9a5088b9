"""A session interns operators, measures a new problem once, and can say why."""

import functools
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nxcore.errors import (
    BackendUnavailableError,
    MeasurementError,
    UnknownBackendError,
    UnknownOperatorError,
    UnsupportedProblemError,
)
from nxcore.measure import race as racing
from nxcore.plugin import Sample, rand
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.kernel import no, simulated
from tests.null import fakes
from tests.table import for_each

X = torch.arange(12.0).view(3, 4)


def one(op: str = "add", call=None, probe=None, **how) -> Session:
    """A session with one fake kernel."""
    kernel = fakes.kernel(op, call, **how)
    return fakes.session(fakes.backend("fake", kernel, **({"probe": probe} if probe else {})))


def why(session: Session, label: str = "fake", x: torch.Tensor = X) -> str:
    """Return why ``label`` isn't eligible for adding ``x`` to itself; torch must serve it, right."""
    with session.use("fake"):
        found = session.explain("add", x, x).decision
        assert torch.equal(session.op("add")(x, x), 2 * x)
    assert found.chosen == "torch"
    return found[label].refusal.reason


def test_an_operator_is_the_same_object_at_every_call():
    session = fakes.session(fakes.backend())
    assert session.op("add") is session.op("add")
    assert session.op("add", backend="fake") is session.op("add", backend="fake")
    assert session.op("add") is not session.op("add", backend="fake")


def test_unknown_names_offer_the_nearest():
    session = fakes.session(fakes.backend())
    with pytest.raises(
        UnknownOperatorError, match=r"no operator is named 'softmaxsum'; did you mean 'softmax_sum'\?"
    ):
        session.op("softmaxsum")
    with pytest.raises(UnknownBackendError, match=r"no backend is named 'fak'; did you mean 'fake'\?"):
        session.op("add", backend="fak")
    with pytest.raises(UnknownBackendError, match=r"did you mean 'fake'\?"), session.use("fak"):
        pass
    with pytest.raises(UnknownOperatorError, match=r"did you mean 'add'\?"):
        session.explain("ad", X, X)


def test_a_machine_that_says_no_is_refused_with_reason_and_hint():
    session = one(probe=lambda: no("no GPU", hint="buy one"))
    with pytest.raises(
        BackendUnavailableError, match=r"^backend 'fake' can't run here: no GPU \(buy one\)$"
    ) as caught:
        session.op("add", backend="fake")(X, X)
    assert (caught.value.backend, caught.value.reason) == ("fake", "no GPU")
    assert why(session) == "no GPU"


def test_a_call_that_is_declined_is_refused_with_reason():
    session = one(accepts=lambda p: no("needs 5 dimensions, got 2"))
    with pytest.raises(
        UnsupportedProblemError, match="can't take this call of 'add': fake: needs 5 dimensions, got 2"
    ):
        session.op("add", backend="fake")(X, X)
    assert why(session) == "needs 5 dimensions, got 2"


def test_a_backend_without_a_kernel_says_so():
    with pytest.raises(UnsupportedProblemError, match="it has no kernel for this operator"):
        one("sum").op("add", backend="fake")(X, X)


def test_a_dtype_that_is_not_claimed_is_not_served():
    assert why(one(dtypes=(torch.float16, torch.bfloat16))) == "needs float16 or bfloat16, got float32"


def test_accepts_that_raises_is_a_no():
    assert why(one(accepts=fakes.raising(IndexError("oops")))) == "accepts raised IndexError: oops"


def test_a_lower_precision_class_does_not_serve_float32():
    assert why(one(precision="tf32")).startswith("its precision class is tf32")


def test_one_kernels_verdict_is_not_anothers_of_the_same_target():
    wrong = fakes.kernel("add", lambda x, *rest: x.clone(), variant="a", target="same:plan")
    right = fakes.kernel("add", variant="b", target="same:plan")
    session = fakes.session(fakes.backend("fake", wrong, right))
    found = session.explain("add", X, X, backend="fake").decision
    assert found.chosen == "fake-b"
    assert "wrong on sample" in found["fake-a"].refusal.reason


def test_a_gradient_that_only_torch_knows_is_left_to_torch():
    session = one("sum_backward")
    leaf = torch.ones(3, requires_grad=True)
    with session.use("fake"):
        result = session.op("sum_backward")(leaf, (3, 4), 1)
        assert session.explain("sum_backward", leaf, (3, 4), 1).decision.chosen == "torch"
    result.sum().backward()
    assert torch.equal(leaf.grad, torch.full((3,), 4.0))


def test_a_no_without_a_reason_is_told_as_such():
    assert why(one(accepts=lambda p: no(""))) == "declined without a reason"


def test_a_wrong_kernel_serves_nothing_and_says_where_it_is_wrong():
    session = one(call=lambda x, y, alpha, out: x + y)
    found = "wrong on sample 'last_block_partly_filled': with large numbers: elementwise error is"
    assert why(session).startswith(found), "alpha is one in the sample itself"
    with pytest.raises(UnsupportedProblemError, match=rf"fake: quarantined .*{found}"):
        session.op("add", backend="fake")(X, X)


def test_a_kernel_that_raises_serves_nothing():
    reason = why(one(call=fakes.raising(RuntimeError("no compiler"))))
    assert reason.startswith("raised on sample 'last_block_partly_filled': RuntimeError: no compiler")


def test_a_planner_that_raises_serves_nothing():
    assert "OSError: no nvcc" in why(one(planner=fakes.raising(OSError("no nvcc"))))


def test_a_kernel_that_changes_its_input_serves_nothing():
    def mutating(x, y, alpha, out):
        result = torch.add(x, y, alpha=alpha)
        x.zero_()
        return result

    assert "inputs must be left unchanged" in why(one(call=mutating))


def test_a_kernel_that_lays_out_its_result_otherwise_serves_nothing():
    laid_out = torch.ones(4, 3).t()

    def plain(x, y, alpha, out):
        result = torch.add(x, y, alpha=alpha, out=out)
        return result.contiguous() if x.numel() == 12 else result  # right on every sample

    reason = why(one(call=plain), x=laid_out)
    assert "its result must be float32[3, 4] strides (1, 3) as torch's, got float32[3, 4]" in reason


def test_a_kernel_that_takes_no_smoke_sample_can_not_be_verified():
    session = one(accepts=lambda p: no("large only") if p.tensors[0].numel() != 12 else fakes.YES)
    assert why(session) == "can't be verified: it accepts none of the smoke samples in float32"


def test_a_blind_smoke_sample_costs_the_kernel_and_not_the_caller():
    spec = fakes.twice(samples=(Sample("blind", (rand(9, values="zeros"),), tags=frozenset({"smoke"})),))
    kernel = fakes.kernel("twice", spec.reference)
    session = fakes.session(fakes.backend("fake", kernel), specs=[spec])
    assert torch.equal(session.op("twice")(X), 2 * X)
    assert (
        "sample 'blind' can't distinguish zeros from the right result"
        in session.explain("twice", X).decision["fake"].refusal.reason
    )


def test_a_simulated_kernel_is_verified_and_never_raced(raced_by):
    raced = []
    raced_by(lambda calls, *args, **how: raced.append(calls))
    session = one(probe=lambda: simulated("interpreter"))
    found = session.explain("add", X, X)
    assert (found.decision.chosen, found.decision["fake"].simulated) == ("torch", True)
    assert "fake: verified by simulation, never timed" in str(found)
    assert raced == []
    assert session.explain("add", X, X, backend="fake").decision.chosen == "fake"


def test_a_time_that_can_not_be_trusted_changes_nothing(raced_by):
    raced_by(fakes.raising(MeasurementError("another stream")))
    found = one().explain("add", X, X).decision
    assert (found.chosen, found.rule, found.reason) == ("torch", "reference", "not measured: another stream")


def test_running_out_of_memory_while_measuring_changes_nothing(raced_by):
    raced_by(fakes.raising(torch.OutOfMemoryError("full")))
    found = one().explain("add", X, X).decision
    assert (found.chosen, found.reason) == ("torch", "not measured: out of memory")


def test_a_kernel_that_fails_while_it_is_measured_changes_nothing():
    calls = iter(range(10**9))

    def flaky(*args):
        if args[0].shape == X.shape and next(calls) > 2:  # past verification and planning
            raise RuntimeError("too hot")
        return fakes.SPECS["add"].reference(*args)

    session = one(call=flaky)
    assert torch.equal(session.op("add")(X, X), 2 * X)
    found = session.explain("add", X, X).decision
    assert found.chosen == "torch"
    assert found.reason.startswith("fake: raised RuntimeError: too hot")


@pytest.mark.parametrize(
    ("op", "args"),
    [("add", (torch.zeros(0), torch.zeros(0))), ("sum_backward", (torch.ones(3), (3, 4), 1))],
    ids=["nothing_to_compute", "a_view"],
)
def test_nothing_is_measured_where_there_is_no_work(raced_by, op, args):
    raced_by(fakes.raising(AssertionError("measured")))
    assert fakes.session(fakes.backend()).explain(op, *args).decision.chosen == "torch"


def test_an_explanation_is_text_and_plain_data(monkeypatch):
    session = fakes.scripted(fakes.Clock(), monkeypatch, "add", {"torch": 100, "fast": 50, "slow": 300})
    session.registry.add_backend(
        fakes.backend("sad", fakes.kernel("add", accepts=lambda p: no("too sad"))),
        fakes.Source("sad", "nxcore-sad 1.0"),
    )
    found = session.explain("add", X, X)
    text = str(found).splitlines()
    assert text[0] == "add(x=float32[3, 4], y=float32[3, 4], alpha=int, out=None) on cpu"
    assert text[1].startswith(
        "fast runs it (measured): 50.0 us against torch's 100.0 us: 2.00x [2.00, 2.00], p = "
    )
    assert text[2:] == [
        "  torch: 100.0 us, 1.00x [1.00, 1.00]",
        "  fast: 50.0 us, 2.00x [2.00, 2.00]",
        "  slow: 300.0 us, 0.33x [0.33, 0.33]; would have to be 6.0 times as fast",
        "  sad: not eligible: too sad",
        "  rung: measured in a call",
    ]
    data = found.to_dict()
    assert data["problem"]["op"] == "add"
    assert data["decision"]["chosen"] == "fast"
    assert [c["label"] for c in data["decision"]["candidates"]] == ["torch", "fast", "slow", "sad"]


def test_an_explanation_of_an_unusual_call_says_why():
    session = one("sum")
    found = session.explain("sum", X.to_sparse()).decision
    assert (found.chosen, found.reason) == ("torch", "its layout is torch.sparse_coo, not torch.strided")
    with pytest.raises(UnsupportedProblemError, match=r"its layout is torch\.sparse_coo"):
        session.explain("sum", X.to_sparse(), backend="fake")


def test_explaining_and_calling_share_one_decision(raced_by):
    races = []
    race = racing.race
    raced_by(lambda *args, **how: races.append(1) or race(*args, **how))
    session = one()
    session.explain("add", X, X)
    session.op("add")(X, X)
    session.explain("add", X, X, alpha=5)
    assert len(races) == 1


def test_threads_that_meet_the_same_problem_measure_it_once(raced_by):
    races, gate = [], threading.Barrier(8)
    race = racing.race
    raced_by(lambda *args, **how: races.append(1) or race(*args, **how))
    session = one()

    def call():
        gate.wait(timeout=20)
        return session.op("add")(X, X)

    with ThreadPoolExecutor(8) as pool:
        results = [f.result() for f in [pool.submit(call) for _ in range(8)]]
    assert all(torch.equal(r, 2 * X) for r in results)
    assert len(races) == 1


def test_statuses_are_the_registrys():
    session = fakes.session(fakes.backend("good"), fakes.backend("bad", probe=lambda: no("no GPU")))
    assert {n: s.status for n, s in session.backends().items()} == {
        "torch": "ready",
        "good": "ready",
        "bad": "unavailable",
    }


@for_each("text", ["", "0", "false", "False", " no ", "OFF"])
def test_these_mean_not_strict(text):
    assert not Settings.from_environment({"NXCORE_STRICT": text}).strict


@pytest.mark.parametrize("text", ["1", "true", "yes"])
def test_these_mean_strict(text):
    assert Settings.from_environment({"NXCORE_STRICT": text}).strict


def test_names_are_separated_by_commas():
    found = Settings.from_environment({"NXCORE_BACKENDS": " triton, numba,", "NXCORE_DISABLE": "cupy"})
    assert (found.backends, found.disable) == (frozenset({"triton", "numba"}), frozenset({"cupy"}))


def test_an_empty_environment_is_the_default():
    found = Settings.from_environment({})
    assert found == Settings(cache=found.cache)
    assert found.cache is not None
    assert found.cache.name == "nxcore"


@for_each("text", ["", "0", "off", "No"])
def test_the_cache_can_be_left_out(text):
    assert Settings.from_environment({"NXCORE_CACHE": text}).cache is None


def test_the_cache_has_a_folder_of_the_users_choice():
    assert Settings.from_environment({"NXCORE_CACHE": "~/there"}).cache == Path.home() / "there"
    assert Settings.from_environment({"NXCORE_BACKENDS": ""}).backends == frozenset()


def test_an_unknown_setting_warns_with_the_known_ones():
    with pytest.warns(
        UserWarning, match="NXCORE_STRIKT is not a setting of nxcore; known: NXCORE_AUDIT, NXCORE_BACKENDS"
    ):
        Settings.from_environment({"NXCORE_STRIKT": "1"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Settings.from_environment({"PATH": "", "NXCORE_STRICT": "1"})


def test_a_session_reads_the_environment_once(monkeypatch):
    monkeypatch.setenv("NXCORE_BACKENDS", "")
    session = Session()
    monkeypatch.setenv("NXCORE_BACKENDS", "anything")
    assert session.settings.backends == frozenset()
    assert {s.status for n, s in session.backends().items() if n not in ("torch", "inductor")} <= {"disabled"}


def test_a_yardstick_is_timed_and_never_serves(raced_by):
    """Where torch has another operator for the same purpose, it is the one to beat."""
    clock = fakes.Clock()
    raced_by(functools.partial(racing.race, clock=clock))
    spec = fakes.SPECS["max_pool2d_with_offsets"]
    slow = replace(
        spec,
        reference=clock.costing(900, spec.reference),
        yardsticks={"with_indices": clock.costing(100, spec.yardsticks["with_indices"])},
    )
    mine = fakes.backend("mine", fakes.kernel(spec.name, clock.costing(200, spec.reference)))
    session = fakes.session(mine, specs=[slow])
    args = (torch.randn(1, 2, 6, 6), 3, 1, 1)
    decision = session.explain(spec.name, *args).decision
    assert decision.chosen == "torch"  # 200 us beat its 900, and lose against the yardstick's 100
    assert "torch-with_indices is faster but returns another result, so torch runs" in decision.reason
    _, offsets = session.op(spec.name)(*args)
    assert offsets.dtype is torch.uint8


@pytest.mark.slow
def test_a_verified_idiom_serves_and_one_that_is_wrong_does_not(monkeypatch, raced_by):
    """The gate holds torch's other ways to the reference as it holds kernels."""
    times = {"torch": 100, "torch-other": 98.5, "slow": 300}
    session = fakes.scripted(fakes.Clock(), monkeypatch, "add", times)
    kernel = next(k for _, k in session.registry.kernels("add") if k.variant == "other")
    found = session.explain("add", X, X)
    assert (found.decision.chosen, found.decision.rule) == ("torch-other", "measured")
    assert session.chooser.known(found.problem).call is kernel.call
    clock = fakes.Clock()

    def zeros(x, y, alpha, out):
        return torch.zeros_like(x + y)

    spec = fakes.replace(
        fakes.SPECS["add"],
        reference=clock.costing(100, fakes.SPECS["add"].reference),
        idioms={"other": clock.costing(50, zeros)},
    )
    raced_by(functools.partial(racing.race, clock=clock))
    # A call that costs nothing would be repeated 40,000 times a sample.
    timed = fakes.kernel("add", clock.costing(300, fakes.SPECS["add"].reference))
    decision = (
        fakes.session(fakes.backend("fake", timed), specs=fakes.specs_with(spec))
        .explain("add", X, X)
        .decision
    )
    assert decision.chosen != "torch-other"
    assert decision["torch-other"].refusal.code == "wrong"
