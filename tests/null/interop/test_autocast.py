"""Under autocast dtypes are torch's, and kernels serve wherever the operator says what autocast does."""

from __future__ import annotations

import pytest
import torch

from nxcore import session as sessions
from nxcore.errors import InvalidInputError, UnsupportedProblemError
from nxcore.interop import library
from tests.null import fakes

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
@pytest.mark.parametrize("name", SPECS)
def test_results_are_torchs(name, device):
    spec, op = SPECS[name], fakes.session(fakes.backend()).op(name)
    for dtype in DTYPES:
        for sample in spec.tagged("smoke"):
            args = sample.build(spec, device, dtype)
            with torch.autocast(device, dtype=torch.bfloat16):
                want = outcome(lambda args=args: spec.reference(*args))
                if want is not None:
                    torch.testing.assert_close(op.run(*args), want, equal_nan=True, atol=1e-2, rtol=2e-2)


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.autocast])
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


def test_a_kernel_that_fails_under_autocast_is_replaced():
    moody = fakes.Moody()
    session = fakes.session(fakes.backend("moody", fakes.kernel("add", moody)))
    x = torch.ones(3)
    with session.use("moody"), torch.autocast("cpu", dtype=torch.bfloat16):
        session.op("add")(x, x)
        moody.error = RuntimeError("no mood")
        with pytest.warns(UserWarning, match="no mood"):
            assert torch.equal(session.op("add")(x, x), x + x)


@pytest.mark.parametrize("name", ["depthwise_conv2d", "add", "softmax_sum"])
def test_a_compiled_graph_casts_as_autocast_does(monkeypatch, name):
    session = fakes.session(fakes.backend())
    monkeypatch.setattr(sessions, "_default", session)
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
