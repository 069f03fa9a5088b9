"""The printers of expressions: every backend that runs here, against float64."""

import pytest
import torch

import nxcore
from nxcore import session
from nxcore.spec.problem import Problem
from nxcore.trust.truth import Truth, agreement
from tests.table import for_each

TEXTS = (
    "relu(x) * y + where((z > 0) & (x < z), z, 0.1 * z)",
    "exp(x) / y + log(x) * sqrt(y) - rsqrt(x)",
    "tanh(x) * sigmoid(y) + mish(x) - softplus(y)",
    "elu(x) + log1p(y * y) + sin(x) * cos(y) + erf(x)",
    "minimum(x, y) * maximum(x, 3) - abs(y) * sign(x) + hardswish(x) + hardsigmoid(y)",
    "gelu(x) * y + gelu_tanh(y) + silu(x) + leaky_relu(y) + where(~(x >= y), 1.0, 2.0)",
)
QUICK = frozenset({"row_broadcast", "nan", "out_ignored"})
BACKENDS = ("numba", "triton", "cuda", "jax")
ON_CPU = frozenset({"numba", "jax"})


def kernel(backend, spec):
    registry = session.default().registry
    for owner, found in registry.kernels(spec.name):
        if owner.label(found) == backend:
            verdict = registry.probe(owner, found)
            if not verdict:
                pytest.skip(f"{backend} doesn't run here: {verdict.reason}")
            return found
    pytest.skip(f"{backend} is not installed")


def specs_of(operator):
    registry = session.default().registry
    return [operator.spec, registry.spec(f"{operator.spec.name}_backward")]


def held(backend, spec, names, device, dtype=torch.float32):
    found, checked = kernel(backend, spec), 0
    if dtype not in found.dtypes:
        pytest.skip(f"{backend} has no {dtype}")
    device = torch.device("cpu") if backend in ON_CPU else device
    for sample in spec.samples:
        if names is not None and sample.name not in names:
            continue
        if sample.tags & {"bench", "huge"}:
            continue
        args = sample.build(spec, device, dtype)
        problem = Problem.of(spec, args)
        if problem.writes and problem["out"].dtype != problem.outputs.dtype:
            continue  # refused before a kernel is asked
        if not found.takes(problem):
            continue
        result = agreement(found.plan(problem), spec, args, Truth.of(spec, args))
        assert result.ok, f"{spec.name}, {sample.name}: {result.reason}"
        checked += 1
    return checked


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("text", TEXTS[:1])
def test_a_printer_agrees_with_float64(backend, text, device):
    for spec in specs_of(nxcore.pointwise(text)):
        assert held(backend, spec, {"row_broadcast"}, device)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_condition_may_be_a_tensor_of_bool(backend, device):
    """It may precede the tensors of numbers, which determine the dtype."""
    for spec in specs_of(nxcore.pointwise("where(m & (x > 0), x, y) * where(~m, 2.0, y)")):
        assert held(backend, spec, {"row_broadcast", "out_ignored"}, device)


@pytest.mark.parametrize("backend", BACKENDS)
@for_each("text", ["1 / (-0.0 * x)", "1 / (x * -0.0)", "1 / (-x)"])
def test_the_sign_of_0_is_kept(backend, text, device):
    spec = nxcore.pointwise(text).spec
    args = (torch.tensor([1.0, 0.0, -0.0, -3.0], device="cpu" if backend in ON_CPU else device), None)
    found = kernel(backend, spec).plan(Problem.of(spec, args))(*args)
    torch.testing.assert_close(found, spec.reference(*args))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@for_each("layout", ["odd_storage_offset", "one_transposed", "channel_broadcast"])
@for_each("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_condition_has_any_layout(backend, layout, dtype, device):
    for spec in specs_of(nxcore.pointwise("where(m, x, y) + y")):
        assert held(backend, spec, {layout}, device, dtype) or "one_transposed" in layout


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@for_each("text", TEXTS)
def test_every_function(backend, text, device):
    for spec in specs_of(nxcore.pointwise(text)):
        assert held(backend, spec, {"nan"}, device)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@for_each("dtype", [torch.float16, torch.bfloat16], ids=str)
@for_each("text", [TEXTS[0], TEXTS[-1]])  # the latter's result is float32
def test_every_dtype(backend, text, dtype, device):
    for spec in specs_of(nxcore.pointwise(text)):
        assert held(backend, spec, QUICK, device, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_layout(backend, device):
    for spec in specs_of(nxcore.pointwise("relu(x) * y + slope * z", slope=0.5)):
        assert held(backend, spec, None, device) > 8


@pytest.mark.parametrize("backend", ["torch", "numba", "triton", "cuda", "cupy", "jax"])
def test_the_source_is_shown(backend):
    operator = nxcore.pointwise("tanh(x) * y + z")
    if backend == "cupy":
        kernel(backend, operator.spec)
    assert "tanh" in operator.source(backend)


@pytest.mark.parametrize("backend", ["torch", *BACKENDS])
def test_an_identity_covers_the_tree(backend):
    gate, registry = session.default().gate, session.default().registry
    found = []
    for text in ("relu(x) * y", "relu(x) * y * 2"):
        spec = nxcore.pointwise(text).spec
        pairs = [(b, k) for b, k in registry.kernels(spec.name) if b.label(k) == backend]
        if not pairs:
            pytest.skip(f"{backend} is not installed")
        found.append(gate.identity(*pairs[0]))
    first, second = found
    assert first.kernel
    assert first.verified
    assert first.kernel != second.kernel


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda", "cupy"])
def test_a_graph_replays_an_expression(backend, device):
    made_here = nxcore.pointwise("relu(x) * y + slope * z", slope=0.5)
    kernel(backend, made_here.spec)  # skips where it isn't here
    operator = nxcore.op(made_here.__name__, backend=backend)
    run = nxcore.graphed(lambda x, y, z: operator(x, y, z, slope=0.25), backward=True)
    for _ in range(3):
        x, y = (torch.randn(64, 33, device=device, requires_grad=True) for _ in range(2))
        z = torch.randn(33, device=device)
        found, wanted = run(x, y, z), torch.relu(x) * y + 0.25 * z
        torch.testing.assert_close(found, wanted)
        grad = torch.randn_like(wanted)
        for a, b in zip(
            torch.autograd.grad(found, (x, y), grad), torch.autograd.grad(wanted, (x, y), grad), strict=True
        ):
            torch.testing.assert_close(a, b)
    assert len(run) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda", "cupy"])
def test_an_expression_is_compiled_and_cast_on_a_gpu(backend, device):
    made_here = nxcore.pointwise("gelu(x) * y")
    kernel(backend, made_here.spec)
    operator = nxcore.op(made_here.__name__, backend=backend)
    x, y = torch.randn(64, 33, device=device, requires_grad=True), torch.randn(33, device=device).half()
    out = torch.empty(64, 33, device=device)
    wanted = torch.nn.functional.gelu(x.detach()) * y
    assert operator(x.detach(), y, out=out) is out
    torch.testing.assert_close(out, wanted)
    found = torch.compile(lambda x, y: operator(x, y) + 1, fullgraph=True)(x, y)
    torch.testing.assert_close(found, wanted + 1)
    found.sum().backward()
    assert x.grad is not None
    with torch.autocast("cuda", torch.bfloat16):
        assert operator(x, y).dtype is torch.float32


@pytest.mark.gpu
def test_softplus_is_float32_under_autocast_as_torchs(device):
    x = torch.randn(64, device=device, dtype=torch.float16, requires_grad=True)
    with torch.autocast("cuda", torch.float16):
        found, wanted = nxcore.ops.softplus(x), torch.nn.functional.softplus(x)
    assert found.dtype is wanted.dtype is torch.float32
    torch.testing.assert_close(found, wanted)
    assert torch.autograd.grad(found.sum(), x)[0].dtype is torch.float16
