"""Nothing serves a call before it agreed with the truth, and what is known of it is asked once."""

import sys
import textwrap
from dataclasses import replace

import pytest
import torch

from nxcore.errors import DeviceLostError, UnsupportedProblemError
from nxcore.plugin import TensorMeta
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.composed import proofs_for
from nxcore.spec.kernel import no
from nxcore.spec.layout import layout_class
from nxcore.spec.problem import Problem
from nxcore.store.files import Store
from nxcore.trust import fingerprint, gate, identity
from nxcore.trust.gate import Gate
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.waits import waits

ADD = SPECS["add"].reference
X = torch.arange(12.0).view(3, 4)
PROBLEM = Problem.of(SPECS["add"], (X, X, 1, None))


def gated(call=ADD, folder=None, op="add", **how):
    """Return a gate, and the backend and the kernel in front of it."""
    kernel = fakes.kernel(op, fakes.Counter(call), **how)
    backend = fakes.backend("fake", kernel)
    return Gate(fakes.registry(backend), Store(folder)), backend, kernel


def calls(kernel):
    return kernel.plan(None).count


def wrong_beyond(numbers):
    """Return an addition that is right up to so many elements: another code path, say."""

    def add(x, y, alpha=1, out=None):
        found = ADD(x, y, alpha, out)
        return found if found.numel() <= numbers else found + 1

    return add


def test_a_kernel_is_verified_on_the_samples_that_it_names_before_its_first_call():
    smoke = max(s.build(SPECS["add"], "cpu", torch.float32)[0].numel() for s in SPECS["add"].tagged("smoke"))
    others = [s for s in SPECS["add"].samples if "smoke" not in s.tags and not s.tags & {"bench", "huge"}]
    large = next(s for s in others if ADD(*s.build(SPECS["add"], "cpu", torch.float32)).numel() > smoke)
    asked, backend, kernel = gated(wrong_beyond(smoke))
    assert not asked.verify(backend, kernel, PROBLEM).refusal, "no smoke sample reaches what is wrong"
    asked, backend, kernel = gated(wrong_beyond(smoke), verified_on=(large.name,))
    refusal = asked.verify(backend, kernel, PROBLEM).refusal
    assert refusal
    assert f"wrong on sample '{large.name}'" in refusal.reason
    assert large.name in gated(verified_on=(large.name,))[0].samples(backend, kernel, PROBLEM)


def large_alone(problem):
    """Name a sample that only calls of many elements need."""
    return ("transposed",) if problem.outputs.numel() > X.numel() else ()


def test_a_sample_of_few_calls_is_asked_for_by_those_alone():
    of_few = {"verified_for": f"{__name__}:large_alone"}
    large = Problem.of(SPECS["add"], (X.repeat(2, 1), X.repeat(2, 1), 1, None))
    asked, backend, kernel = gated(**of_few)
    assert not asked.verify(backend, kernel, PROBLEM).refusal
    assert asked.knows(backend, kernel, PROBLEM)
    assert not asked.knows(backend, kernel, large)
    assert "transposed" in asked.samples(backend, kernel, large)
    before = calls(kernel)
    assert not asked.verify(backend, kernel, large).refusal
    assert calls(kernel) == before + 1
    assert asked.knows(backend, kernel, large)

    def wrong(x, y, alpha=1, out=None):
        found = ADD(x, y, alpha, out)
        return found if x.is_contiguous() or y.is_contiguous() else found + 1

    asked, backend, kernel = gated(wrong, **of_few)
    assert "wrong on sample 'transposed'" in asked.verify(backend, kernel, large).refusal.reason


def test_a_part_of_a_kernel_is_asked_for_its_own_samples():
    half = fakes.kernel("add", fakes.Counter(ADD), verified_for=f"{__name__}:large_alone")
    large = Problem.of(SPECS["add"], (X.repeat(2, 1), X.repeat(2, 1), 1, None))
    assert [what for _, _, what in proofs_for(half, large)] == ["own, transposed"]
    assert list(proofs_for(half, PROBLEM)) == []


def test_a_verdict_on_fewer_samples_is_none_on_all(tmp_path):
    asked, backend, kernel = gated(folder=tmp_path)
    asked.verify(backend, kernel, PROBLEM)
    again, backend, kernel = gated(folder=tmp_path, verified_on=("transposed",))
    assert not again.knows(backend, kernel, PROBLEM)


# ---- the verdict


def test_a_kernel_that_agrees_is_asked_once():
    found, backend, kernel = gated()
    held = found.verify(backend, kernel, PROBLEM)
    assert (held.refusal, held.layouts) == (None, ("contiguous",))
    assert held.error < 1e-6
    before = calls(kernel)
    assert found.verify(backend, kernel, PROBLEM) is held
    assert calls(kernel) == before == fakes.verified_runs("add")


@pytest.mark.parametrize(("op", "most"), [("foreach_sep_conv2d_batch_norm_backward", 36), ("sep_conv2d", 64)])
def test_a_sample_waits_for_the_device_a_few_times_whatever_its_tensors(op, most, monkeypatch):
    asked, backend, kernel = gated(SPECS[op].reference, op=op)
    first = SPECS[op].tagged("smoke")[0].build(SPECS[op], "cpu", torch.float32)
    problem = Problem.of(SPECS[op], first)
    assert waits(monkeypatch, lambda: asked.verify(backend, kernel, problem)) <= most, "540 and 87 before"


def wrong_on_gaps(x, y, alpha, out):
    result = torch.add(x, y, alpha=alpha, out=out)
    return result + 1 if layout_class([TensorMeta.of(x)]) == "gaps" else result


def test_a_kernel_that_is_wrong_on_one_layout_is_found_out_by_a_call_of_it():
    found, backend, kernel = gated(wrong_on_gaps)
    assert found.verify(backend, kernel, PROBLEM).refusal is None
    gaps = X[:, ::2]
    held = found.verify(backend, kernel, Problem.of(SPECS["add"], (gaps, gaps, 1, None)))
    assert held.refusal.reason.startswith("wrong on sample 'gaps_in_memory': elementwise error")
    assert "wrong on sample 'gaps_in_memory'" in found.refusal(backend, kernel, PROBLEM).reason, (
        "for the whole dtype"
    )


def test_a_kernel_that_takes_no_sample_of_a_layout_serves_none():
    def picky(problem):
        smooth = all(t.is_dense() for t in problem.tensors)
        return fakes.YES if smooth or problem.tensors[0].shape == (3, 2) else no("gaps")

    session = fakes.session(fakes.backend("fake", fakes.kernel("add", accepts=picky)))
    with pytest.raises(UnsupportedProblemError, match="accepts no sample with layout gaps in float32"):
        session.op("add", backend="fake")(X[:, ::2], X[:, ::2])


def test_torchs_own_idiom_is_refused_without_a_quarantine():
    """What lays out its result otherwise is no wrong kernel."""
    transposed = X.t()
    session = fakes.session()
    xs, logits = [transposed.clone(memory_format=torch.preserve_format) for _ in range(3)], torch.zeros(3)
    decision = session.explain("softmax_sum", xs, logits).decision
    assert any("strides must be torch's" in str(c.refusal) for c in decision.candidates if c.native)
    assert list(session.gate.quarantine) == []


def test_a_kernel_that_claims_full_precision_and_rounds_to_ten_bits_is_wrong():
    kernel = fakes.kernel("add")
    errors = [2e-4, 3e-4, 0.0, 4e-4]
    assert gate._overclaims(kernel, errors) == (
        "wrong about its precision: claims ieee32, reaches tf32 (error 3.0e-04)"
    )
    assert gate._overclaims(replace(kernel, precision="tf32"), errors) == ""
    assert "claims tf32, reaches half" in gate._overclaims(replace(kernel, precision="tf32"), [1e-2])
    assert gate._overclaims(kernel, [1e-7, 1e-7, 1e-3]) == "", "one sum may cancel"
    assert gate._overclaims(kernel, [0.0]) == ""


def test_a_wrong_answer_is_quarantined_for_the_dtype_and_not_run_again():
    found, backend, kernel = gated(lambda x, y, alpha, out: torch.zeros_like(x + y))
    assert "wrong on sample" in found.verify(backend, kernel, PROBLEM).refusal.reason
    (entry,) = found.quarantine
    assert (entry.kind, entry.op, entry.kernel, entry.dtype) == ("wrong", "add", "fake", "float32")
    assert found.refusal(backend, kernel, PROBLEM)
    half = Problem.of(SPECS["add"], (X.half(), X.half(), 1, None))
    assert found.refusal(backend, kernel, half) is None, "another dtype has its own verdict"


def test_what_raised_in_verification_is_asked_again():
    found, backend, kernel = gated(fakes.raising(OSError("busy")))
    for _ in range(2):
        assert "OSError: busy" in found.verify(backend, kernel, PROBLEM).refusal.reason
    assert list(found.quarantine) == []


# ---- across processes


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A kernel in a module of its own, so that its source can be told."""
    folder = tmp_path / "src"
    folder.mkdir()
    source = """
    import torch
    ran = []
    def plan(problem):
        def call(x, y, alpha, out):
            ran.append(1)
            return torch.add(x, y, alpha=alpha, out=out)
        return call
    """
    (folder / "kernels_of_mine.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "kernels_of_mine", raising=False)
    identity.installed.cache_clear()
    yield folder / "kernels_of_mine.py"
    identity.installed.cache_clear()
    sys.modules.pop("kernels_of_mine", None)


def process(folder, **how):
    """Return what a new process would: a gate on the same folder, a kernel not yet imported."""
    identity.installed.cache_clear()
    sys.modules.pop("kernels_of_mine", None)
    kernel = fakes.Kernel("add", "kernels_of_mine:plan", dtypes=fakes.DTYPES)
    backend = replace(fakes.backend("fake", kernel), **how)
    found = Gate(fakes.registry(backend), Store(folder))
    held = found.verify(backend, kernel, PROBLEM)
    imported = sys.modules.get("kernels_of_mine")
    return held, len(imported.ran) if imported else 0


def test_a_changed_source_is_asked_again(tmp_path, module):
    process(tmp_path / "cache")
    module.write_text(module.read_text().replace("alpha=alpha", "alpha=alpha * 1"))
    assert process(tmp_path / "cache")[1] > 0


def test_a_yes_is_kept_and_another_version_of_a_toolkit_is_asked_again(tmp_path, module):
    first, _ = process(tmp_path / "cache", toolkit=lambda: {"compiler": "1"})
    assert process(tmp_path / "cache", toolkit=lambda: {"compiler": "1"}) == (first, 0)
    assert process(tmp_path / "cache", toolkit=lambda: {"compiler": "2"})[1] > 0


def test_another_version_of_torch_is_asked_again(tmp_path, module, monkeypatch):
    process(tmp_path / "cache")
    monkeypatch.setattr(torch, "__version__", "99.0")
    fingerprint.versions.cache_clear()
    try:
        assert process(tmp_path / "cache")[1] > 0
    finally:
        fingerprint.versions.cache_clear()


def test_an_entry_of_a_kernel_that_was_mended_is_lifted(tmp_path, module):
    good = module.read_text()
    module.write_text(good.replace("torch.add(x, y, alpha=alpha, out=out)", "torch.zeros_like(x + y)"))
    held, _ = process(tmp_path / "cache")
    assert "wrong on sample" in held.refusal.reason
    kernel = fakes.Kernel("add", "kernels_of_mine:plan", dtypes=fakes.DTYPES)
    registry = fakes.registry(fakes.backend("fake", kernel))

    def listed():
        identity.installed.cache_clear()
        return [e.kernel for e in Gate(registry, Store(tmp_path / "cache")).quarantined()]

    assert listed() == ["fake"]
    module.write_text(good)
    assert listed() == []
    assert list(Store(tmp_path / "cache").items("quarantine")) == []


def test_a_verdict_that_makes_no_sense_is_asked_again(tmp_path, module):
    process(tmp_path / "cache")
    store = Store(tmp_path / "cache")
    ((key, document),) = store.items("verdicts")
    store.write("verdicts", key, document | {"error": "small"})
    assert process(tmp_path / "cache")[1] > 0


def test_a_kernel_without_a_source_is_asked_by_every_process(tmp_path):
    for _ in range(2):
        found, backend, kernel = gated(folder=tmp_path)
        found.verify(backend, kernel, PROBLEM)
        assert calls(kernel) > 0
    assert list(found.store.items("verdicts")) == []


def test_a_device_is_known_by_its_model_and_capability():
    found = fingerprint.device("cpu", None)
    assert found["type"] == "cpu"
    assert found["name"]
    assert found["capability"]


@pytest.mark.gpu
def test_a_cuda_device_is_known_by_its_driver_too():
    found = fingerprint.device("cuda", 0)
    assert found["name"] == torch.cuda.get_device_name(0)
    assert found["driver"] >= 12000
    assert found["cuda"] == torch.version.cuda


def test_a_session_keeps_its_verdicts_where_the_settings_say(tmp_path, module):
    kernel = fakes.Kernel("add", "kernels_of_mine:plan", dtypes=fakes.DTYPES)
    session = Session(
        Settings(cache=tmp_path / "cache", policy="measure"),
        fakes.registry(fakes.backend("fake", kernel)),
        fakes.QUICK,
    )
    session.op("add", backend="fake")(X, X)
    assert [key["kernel"] for key, _ in Store(tmp_path / "cache").items("verdicts")] == ["fake"]


# ---- a device that is gone


def test_a_kernel_that_ends_the_context_is_quarantined_and_named(monkeypatch):
    gone = []
    monkeypatch.setattr(gate, "lost", lambda device: "an illegal memory access" if gone else "")

    def ending(*args):
        gone.append(1)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    session = fakes.session(fakes.backend("fake", fakes.kernel("add", ending)))
    with pytest.raises(
        DeviceLostError, match="the cause is 'fake' of 'add', at its first launch; it is quarantined"
    ) as caught:
        session.op("add")(X, X)
    assert (caught.value.op, caught.value.kernel, caught.value.sure) == ("add", "fake", True)
    assert [(e.kind, e.kernel) for e in session.gate.quarantine] == [("crashed", "fake")]
