"""Under autocast dtypes are torch's, and kernels serve wherever the operator says what autocast does."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from nxcore.errors import InvalidInputError, UnsupportedProblemError
from nxcore.interop import autocast, library
from tests.null import fakes
from tests.table import for_each

SPECS = fakes.SPECS
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def kernel_of(session, name):
    return next(k for k in session.registry.backend("fake").kernels if k.op == name).plan(None)


def outcome(function):
    """What came, or that torch refuses the dtypes."""
    try:
        return function()
    except RuntimeError:
        return None


@pytest.mark.parametrize("device", DEVICES)
@for_each("name", SPECS)
def test_results_are_torchs(name, device):
    spec, op = SPECS[name], fakes.session(fakes.backend()).op(name)
    for dtype in DTYPES:
        for sample in spec.tagged("smoke"):
            args = sample.build(spec, device, dtype)
            with torch.autocast(device, dtype=torch.bfloat16):
                want = outcome(lambda args=args: spec.reference(*args))
                if want is not None:
                    torch.testing.assert_close(op.run(*args), want, equal_nan=True, atol=1e-2, rtol=2e-2)


@for_each("name", [name for name, spec in SPECS.items() if spec.autocast])
def test_kernels_serve(name):
    spec, session = SPECS[name], fakes.session(fakes.backend())
    args, op = spec.tagged("smoke")[0].build(spec, "cpu", torch.float32), session.op(name, backend="fake")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        op.run(*args)
        before = kernel_of(session, name).count
        with fakes.counting_resolves(op) as seen:
            op.run(*args)
        assert kernel_of(session, name).count == before + 1
        assert seen == []
        bound = {p.name: a for p, a in zip(spec.params, args, strict=True)}
        found = session.explain(name, **bound, backend="fake")
    assert found.decision.chosen == "fake"
    lower = spec.autocast["cpu"] == "lower"
    assert found.problem.dtype is (torch.bfloat16 if lower else torch.float32)


def test_without_a_rule_torch_serves():
    spec = fakes.twice()
    session = fakes.session(fakes.backend("fake", fakes.kernel("add")), specs=[*SPECS.values(), spec])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = session.explain("twice", torch.ones(3))
        assert found.decision.reason == "autocast is on, and only torch applies its casts"
        with pytest.raises(UnsupportedProblemError, match="autocast is on"):
            session.op("twice", backend="fake")(torch.ones(3))


def test_the_dtype_and_the_device_of_autocast_are_in_the_key():
    op = fakes.session(fakes.backend()).op("depthwise_conv2d")
    x, w = torch.randn(1, 2, 5, 5), torch.randn(2, 1, 3, 3)
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype):
            assert op(x, w).dtype is dtype
    torch.set_autocast_enabled("cuda", True)
    try:
        assert op(x, w).dtype is torch.float32
    finally:
        torch.set_autocast_enabled("cuda", False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert op(x.double(), w.double()).dtype is torch.float64
        assert op(x, w.half()).dtype is torch.bfloat16


def test_gradients_come_back_in_the_dtypes_of_the_leaves():
    session = fakes.session(fakes.backend())
    x, w = (torch.randn(shape, requires_grad=True) for shape in ((1, 2, 5, 5), (2, 1, 3, 3)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = session.op("depthwise_conv2d", backend="fake")(x, w)
    assert out.dtype is torch.bfloat16
    before = kernel_of(session, "depthwise_conv2d_backward").count
    out.sum().backward()
    assert kernel_of(session, "depthwise_conv2d_backward").count > before
    assert (x.grad.dtype, w.grad.dtype) == (torch.float32, torch.float32)


def test_a_call_that_is_wrong_is_told_under_autocast_too():
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(InvalidInputError, match="y must broadc"):
        fakes.session(fakes.backend()).op("add")(torch.ones(3), torch.ones(4))


def missing(*_args, **_kwargs):
    raise AssertionError("the plan was not kept")


@pytest.mark.parametrize("backend", ["fake", None])
@for_each("name", [name for name, spec in SPECS.items() if spec.autocast])
def test_the_plan_of_a_call_is_kept(name, backend, monkeypatch):
    session = fakes.session(fakes.backend())
    spec, op = SPECS[name], session.op(name, backend=backend)
    args = spec.tagged("smoke")[0].build(spec, "cpu", torch.float32)
    own = fakes.first(spec.reference(*args)).dtype
    with session.policy("frozen"), torch.autocast("cpu", dtype=torch.bfloat16):
        want = op.run(*args)
        op.run(*args)
        with monkeypatch.context() as patched:
            patched.setattr(type(op), "miss", missing)
            patched.setattr(type(op), "far", missing)
            torch.testing.assert_close(op.run(*args), want, equal_nan=True)
            by_kernel = op.by_kernel(*args)
        assert (by_kernel is None) == (backend is None)  # torch serves what wasn't measured
        with torch.autocast("cpu", dtype=torch.float16), torch.no_grad():
            lower = spec.autocast["cpu"] == "lower"
            got = fakes.first(op.run(*args))
            assert got.dtype is (torch.float16 if lower else fakes.first(want).dtype)
        with torch.autocast("cpu", enabled=False):
            assert fakes.first(op.run(*args)).dtype is own
    assert not torch.is_autocast_enabled("cpu")
    assert fakes.first(op.run(*args)).dtype is own


def test_a_call_whose_casts_only_torch_applies_is_kept(monkeypatch):
    spec = fakes.twice()
    session = fakes.session(specs=[*SPECS.values(), spec])
    op, x = session.op("twice"), torch.ones(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        op(x)
        op(x)
        monkeypatch.setattr(type(op), "miss", missing)
        assert torch.equal(op(x), 2 * x)
        with pytest.raises(AssertionError, match="not kept"):
            op(torch.ones(4))


def test_autocast_is_as_it_was_after_a_call():
    moody = fakes.Moody()
    session = fakes.session(fakes.backend("moody", fakes.kernel("add", moody)))
    x, op = torch.ones(3), session.op("add", backend="moody")
    torch.set_autocast_enabled("cuda", True)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for error in (None, None, RuntimeError("no mood")):
                moody.error = error
                fails = pytest.raises(RuntimeError, match="no mood")
                with fails if error else contextlib.nullcontext():
                    op(x, x)
                assert torch.is_autocast_enabled("cpu")
                assert torch.is_autocast_enabled("cuda")
    finally:
        torch.set_autocast_enabled("cuda", False)


def test_a_kernel_runs_outside_autocast_in_every_thread():
    seen = []

    def spy(*args):
        seen.append(autocast.state())
        return SPECS["add"].reference(*args)

    op = fakes.session(fakes.backend("spy", fakes.kernel("add", spy))).op("add", backend="spy")
    x = torch.ones(3)
    op(x, x)
    seen.clear()

    def under(dtype):
        for _ in range(50):
            with torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext():
                op(x, x)
                assert autocast.state() == (dtype, None)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(under, (torch.bfloat16, torch.float16, None)))
    assert len(seen) >= 150
    assert set(seen) == {(None, None)}


def test_gradients_through_a_kept_plan_are_those_of_casts():
    op = fakes.session(fakes.backend()).op("depthwise_conv2d", backend="fake")
    x, w = (torch.randn(shape, requires_grad=True) for shape in ((1, 2, 5, 5), (2, 1, 3, 3)))

    def gradients(function):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = function(x, w)
        return torch.autograd.grad(out.float().square().sum(), (x, w))

    for _ in range(4):
        got, want = gradients(op), gradients(SPECS["depthwise_conv2d"].reference)
        assert [g.dtype for g in got] == [torch.float32, torch.float32]
        torch.testing.assert_close(got, want, atol=1e-2, rtol=2e-2)
    with torch.no_grad():
        assert not op(x, w).requires_grad


def test_a_kernel_that_fails_under_autocast_is_replaced_and_not_called_again():
    moody = fakes.Moody()
    session = fakes.session(fakes.backend("moody", fakes.kernel("add", moody)))
    x = torch.ones(3)
    with session.use("moody"), torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            session.op("add")(x, x)
        moody.error = RuntimeError("no mood")
        with pytest.warns(UserWarning, match="no mood"):
            assert torch.equal(session.op("add")(x, x), x + x)
        before = moody.calls
        for _ in range(3):
            assert torch.equal(session.op("add")(x, x), x + x)
        assert moody.calls == before


@pytest.mark.parametrize("name", ["depthwise_conv2d", "add", "softmax_sum"])
def test_a_compiled_graph_casts_as_autocast_does(as_default, name):
    session = fakes.session(fakes.backend())
    as_default(session)
    torch._dynamo.reset()
    spec = SPECS[name]
    args, op = spec.tagged("smoke")[0].build(spec, "cpu", torch.float32), session.op(name)

    def function(*args):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return op.run(*args)

    got = torch.compile(function, fullgraph=True, backend="aot_eager")(*args)
    assert got.dtype is function(*args).dtype
    torch.testing.assert_close(got, function(*args))
    shell = library.define(spec)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert shell(args).dtype is got.dtype
    torch._dynamo.reset()
