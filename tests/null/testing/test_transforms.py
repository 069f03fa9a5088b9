"""The kit holds operators to torch's transforms; what becomes of autograd's batches and of a trace."""

from dataclasses import replace

import pytest
import torch

from nxcore.call.operator import Operator
from nxcore.interop import native
from nxcore.settings import Settings
from nxcore.spec.kernel import Verdict
from nxcore.spec.window import dense
from nxcore.testing import transforms
from nxcore.testing.cell import Broken, Cell, Inapplicable, cells
from tests.null import fakes
from tests.table import for_each

REGISTRY = fakes.registry(fakes.backend())


def cell(op: str, backend: str = "fake", registry=REGISTRY) -> Cell:
    found = next(c for c in cells(registry, backends=[backend], ops=[op]) if c.leads)
    return replace(found, fixed=torch.device("cpu"))


BY_NAME = {t.__name__: t for t in transforms.TRANSFORMS}
TORCHS = [("depthwise_conv2d", "traced_gradient"), ("softmax_sum", "traced_gradient")]
"""What torch's tracer can't do, and says why; older releases can less."""

NEWEST = torch.__version__ >= torch.torch_version.TorchVersion("2.13")


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize(
    "op", [pytest.param("depthwise_conv2d", marks=pytest.mark.slow), "softmax_sum", "add"]
)
def test_each_transform_agrees(op, name):
    reason = ""
    try:
        transforms.under(BY_NAME[name], cell(op))
    except Inapplicable as error:
        reason = error.reason
    if (op, name) in TORCHS:
        assert reason.startswith("torch can't apply traced_gradient to the reference: ")
    elif reason and not NEWEST:
        pytest.skip(reason)
    else:
        assert not reason


def of_the_kit(name: str) -> Operator:
    return transforms._session(REGISTRY, Settings.from_environment()).op(name)


def raising(self, *args):
    raise RuntimeError("no such thing")


def too_large(self, *args):
    return 1.1 * fakes.SPECS["add"].reference(*args)


@for_each("name", BY_NAME)
def test_each_transform_refuses_what_is_wrong(monkeypatch, name):
    if name == "traced_gradient" and not NEWEST:
        pytest.skip("an older torch can't trace this gradient of the reference either")
    monkeypatch.setattr(Operator, "__reduce__", lambda self: (of_the_kit, (self.spec.name,)))
    for call, match in ((too_large, "differs from the reference"), (raising, "raised RuntimeError: no such")):
        monkeypatch.setattr(transforms._Called, "__call__", call)
        with pytest.raises(Broken, match=match) as error:
            transforms.under(BY_NAME[name], cell("add"))
        assert error.value.rule == name


def test_what_is_not_compiled_here_is_not_asked():
    simulated = fakes.backend(probe=lambda: Verdict(True, "in a simulator", simulated=True))
    with pytest.raises(Inapplicable, match="simulated"):
        transforms.under(transforms.vmap, cell("add", registry=fakes.registry(simulated)))


@pytest.mark.parametrize("op", ["max_pool2d", "depthwise_conv2d", "sep_conv2d", "batch_norm", "softmax_sum"])
def test_a_batch_of_gradients_goes_to_the_kernel_by_rows(op):
    session = fakes.session(fakes.backend())
    name = fakes.SPECS[op].gradient.op
    kernel = next(k for k in session.registry.backend("fake").kernels if k.op == name).plan(None)
    one = cell(op).smallest()
    call, xs = transforms._differentiated(session.op(op, backend="fake").run, one.build())
    y = call(*xs)
    torch.autograd.grad(y, xs, torch.ones_like(y), retain_graph=True)  # verified before
    grads, before = torch.randn(4, *y.shape), kernel.count
    got = torch.autograd.grad(y, xs, grads, is_grads_batched=True, retain_graph=True)
    assert kernel.count >= before + 4
    for i, grad in enumerate(grads):
        want = torch.autograd.grad(y, xs, grad, retain_graph=True)
        torch.testing.assert_close([g[i] for g in got], list(want))


@pytest.mark.parametrize("op", ["conv2d", "conv2d_backward", "matmul"])
def test_the_smallest_sample_has_ordinary_numbers(op):
    one = cell(op).smallest()
    found = one.spec.reference(*one.build())
    assert all(float(t.abs().max()) < 1e6 for t in (found if isinstance(found, tuple) else (found,)))


def test_a_trace_checks_sizes_that_are_numbers():
    op = fakes.session(fakes.backend()).op("depthwise_conv2d")
    x, weight = torch.randn(2, 3, 8, 9), torch.randn(3, 1, 3, 3)
    with pytest.warns(DeprecationWarning, match="trace"):
        traced = torch.jit.trace(lambda x, weight: op(x, weight, 1, 1), (x, weight))
    torch.testing.assert_close(traced(2 * x, weight), op(2 * x, weight, 1, 1))
    assert torch._C._get_tracing_state() is None


def test_a_reference_maps_over_a_batch_of_channels_last():
    x, dw, pw = torch.randn(3, 2, 4, 5, 6), torch.randn(4, 1, 3, 3), torch.randn(2, 4, 1, 1)
    last = x[0].contiguous(memory_format=torch.channels_last)
    reference = fakes.SPECS["sep_conv2d"].reference
    got = torch.func.vmap(lambda w: reference(last, dw, w))(torch.stack([pw, 2 * pw]))
    torch.testing.assert_close(got[1], reference(last, dw, 2 * pw))
    assert dense(x[0], torch.channels_last).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("wanted", ["0", "1"])
def test_an_operator_is_called_on_the_path_of_the_environment(monkeypatch, wanted):
    monkeypatch.setenv("NXCORE_NATIVE", wanted)
    assert (native.of(of_the_kit("add")) is not None) is (
        wanted == "1" and native.found().extension is not None
    )
