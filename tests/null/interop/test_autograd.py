"""Gradients through nxcore are torch's, whoever runs forward and backward."""

import gc
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.checkpoint import checkpoint

from nxcore.interop.autograd import Differentiable
from nxcore.spec.problem import Problem
from nxcore.trust.memory import each
from tests.null import fakes
from tests.table import for_each


def double(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


def above_0(shape: tuple[int, ...]) -> torch.Tensor:
    return double(*shape).detach().exp().requires_grad_()


def block(height: int, width: int) -> tuple[torch.Tensor | int, ...]:
    return double(2, 1, height, width), double(1, 1, 3, 3), double(2, 1, 1, 1), 1, 1


CASES = {
    "add_broadcast": ("add", lambda: (double(4, 5), double(5)), {"alpha": -2.5}),
    "add_equal_shapes": ("add", lambda: (double(4, 5), double(4, 5)), {}),
    "add_number": ("add", lambda: (double(4, 5), 1.5), {}),
    "add_first_only": ("add", lambda: (double(4, 5), double(5).detach()), {"alpha": 2}),
    "add_second_only": ("add", lambda: (double(4, 5).detach(), double(1, 5)), {"alpha": 2}),
    "sum_all": ("sum", lambda: (double(4, 5),), {}),
    "sum_some": ("sum", lambda: (double(4, 5, 3), (0, 2)), {"keepdim": True}),
    "sum_list": ("sum", lambda: (double(4, 5, 3), [-1]), {}),
    "mean_some": ("mean", lambda: (double(4, 5, 3), (0, 2)), {"keepdim": True}),
    "mean_all": ("mean", lambda: (double(4, 5),), {}),
    "amax": ("amax", lambda: (double(4, 5, 3), (0, 2)), {}),
    "amin": ("amin", lambda: (double(4, 5, 3), -1), {"keepdim": True}),
    "loss": ("cross_entropy", lambda: (double(4, 5), torch.arange(4)), {"label_smoothing": 0.2}),
    "losses": ("cross_entropy", lambda: (double(4, 5), torch.arange(4) % 2), {"reduction": "none"}),
    "rms_norm": ("rms_norm", lambda: (double(3, 4), (4,), double(4)), {}),
    "layer_norm": ("layer_norm", lambda: (double(3, 4), (4,), double(4), double(4)), {}),
    "group_norm": ("group_norm", lambda: (double(3, 4, 5), 2, double(4), double(4)), {}),
    "rope": ("rope", lambda: (double(3, 4, 6), double(4, 4), double(3, 1, 4), True, 4), {}),
    "min": ("min", lambda: (double(4, 5, 3), -1), {"keepdim": True}),
    "blend_list": ("softmax_sum", lambda: ([double(4, 5), double(5, 4).t()], double(2)), {}),
    "blend_stack": ("softmax_sum", lambda: (double(3, 4, 5), double(3)), {}),
    "blend_logits_only": ("softmax_sum", lambda: ([double(4, 5).detach()] * 2, double(2)), {}),
    "blend_one_candidate": ("softmax_sum", lambda: ([double(4).detach(), double(4)], double(2).detach()), {}),
    "blend_stack_only": ("softmax_sum", lambda: (double(3, 4), double(3).detach()), {}),
    "weighted_list": ("weighted_sum", lambda: ([double(4, 5), double(5, 4).t()], double(2)), {}),
    "sum_to_size": ("sum_to_size", lambda: (double(4, 5, 3), (5, 1)), {}),
    "matmul": ("matmul", lambda: (double(3, 4, 5), double(5, 2)), {}),
    "matmul_batches": ("matmul", lambda: (double(2, 1, 4, 5), double(3, 5, 2)), {}),
    "matmul_vectors": ("matmul", lambda: (double(5), double(3, 5, 2)), {}),
    "matmul_column": ("matmul", lambda: (double(3, 4, 5), double(5)), {}),
    "matmul_dot": ("matmul", lambda: (double(5), double(5)), {}),
    "matmul_second_only": ("matmul", lambda: (double(4, 5).detach(), double(3, 5, 2)), {}),
    "entropy": ("entropy", lambda: (double(2, 3, 5),), {}),
    "gumbel": ("gumbel_softmax", lambda: (double(3, 5), 0.5, False, double(3, 5).detach().exp()), {}),
    "gumbel_all": ("gumbel_softmax", lambda: (double(3, 5), above_0(()), False, above_0((3, 5))), {}),
    **{n: (n, lambda: (double(3, 4, 5), 1), {}) for n in ("cumsum", "max", "softmax", "log_softmax")},
    "rows": ("index_add", lambda: (double(4, 5), 0, torch.tensor([1, 3, 1]), double(3, 5)), {"alpha": 2.0}),
    "lookup": ("embedding", lambda: (torch.tensor([[1, 3], [1, 0]]), double(4, 5)), {}),
    "max_pool": ("max_pool2d", lambda: (double(2, 2, 5, 6), 3, 2, 1), {}),
    "max_pool_plane": ("max_pool2d", lambda: (double(2, 6, 7), (2, 3), None, 1, (1, 2)), {"ceil_mode": True}),
    "avg_pool": ("avg_pool2d", lambda: (double(2, 2, 4, 5), 3, 1, 1, False, False), {}),
    "avg_pool_divisor": ("avg_pool2d", lambda: (double(2, 6, 7), 3), {"divisor_override": 4}),
    **{n: (f"{n}_pool2d", lambda: (double(2, 3, 4, 5),), {}) for n in ("global_avg", "global_max")},
    **{f"{n}_plane": (f"{n}_pool2d", lambda: (double(3, 4, 5),), {}) for n in ("global_avg", "global_max")},
    "convolution": ("conv2d", lambda: (double(2, 2, 5, 6), double(4, 1, 3, 3), double(4), 2, 1, 1, 2), {}),
    "convolution_no_bias": ("conv2d", lambda: (double(3, 4, 6), double(2, 3, 2, 3), None, 1, 1), {}),
    "depthwise": ("depthwise_conv2d", lambda: (double(2, 2, 5, 6), double(2, 1, 3, 3), 2, 1), {}),
    "filters_only": ("depthwise_conv2d", lambda: (double(2, 4, 6).detach(), double(2, 1, 3, 5), 1, 2), {}),
    "points": ("pointwise_conv2d", lambda: (double(2, 3, 3, 4), double(2, 3, 1, 1), None, 2), {"relu": True}),
    "cut": ("pointwise_conv2d", lambda: (double(1, 2, 4, 6), double(3, 2, 1, 1), double(1, 2, 1, 1), 2), {}),
    "separable": ("sep_conv2d", lambda: (double(2, 5, 6), double(2, 1, 3, 3), double(3, 2, 1, 1), 2), {}),
    "block": ("sep_conv2d_batch_norm", lambda: block(3, 4), {"eps": 0.1}),
    "block_affine": ("sep_conv2d_batch_norm", lambda: (*block(3, 3), 1, True, double(2), double(2)), {}),
    "norm_affine": ("batch_norm", lambda: (double(4, 2, 3), double(2), double(2)), {}),
    "norms": ("batch_norm_sum", lambda: ([double(4, 2, 3), double(4, 2, 3)], double(2), (False, True)), {}),
    "blend_one_tensor_twice": ("softmax_sum", lambda: ([double(4, 5)] * 2, double(2)), {}),
}

CASES |= {
    name: (name, lambda name=name: tuple(double(3, 5) for _ in fakes.SPECS[name].params), {})
    for name in fakes.DIFFERENTIABLE
    if fakes.one_shape(fakes.SPECS[name]) and name not in {op for op, _, _ in CASES.values()}
}


def operator(name: str):
    op = fakes.session(fakes.backend()).op(name, backend="fake")
    return lambda *args, **kwargs: fakes.first(op(*args, **kwargs))


def torchs(name: str, args, kwargs):
    spec = fakes.SPECS[name]
    return fakes.first(spec.reference(*spec.bind(*args, **kwargs)))


def joined(result: torch.Tensor) -> bool:
    return result.grad_fn is not None and result.grad_fn.name() == "_JoinBackward"


@for_each("case", CASES)
def test_gradients_are_torchs(case):
    name, make, kwargs = CASES[case]
    args = make()
    inputs = [t for t in fakes.leaves(args) if t.requires_grad]
    mine, want = operator(name)(*args, **kwargs), torchs(name, args, kwargs)
    assert joined(mine)
    grad = torch.randn_like(want)
    got = torch.autograd.grad(mine, inputs, grad)
    for a, b in zip(got, torch.autograd.grad(want, inputs, grad), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        assert a.shape == b.shape


@pytest.mark.slow
@for_each("case", CASES)
def test_second_derivatives_are_right(case):
    name, make, kwargs = CASES[case]
    args, op = make(), operator(name)
    inputs = [t for t in fakes.leaves(args) if t.requires_grad]
    inputs = [t for i, t in enumerate(inputs) if all(t is not u for u in inputs[:i])]
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda *_: op(*args, **kwargs), inputs)


def test_every_differentiable_operator_has_a_case():
    assert {name for name, _, _ in CASES.values()} == set(fakes.DIFFERENTIABLE)


def test_the_backward_problem_is_foretold_with_the_types_of_its_numbers():
    session = fakes.session(fakes.backend())
    op, backward = session.op("gumbel_softmax"), fakes.SPECS["gumbel_softmax_backward"]
    logits = torch.zeros(3, 4, requires_grad=True)
    args = (logits, 0.5, False, torch.ones(3, 4))
    problem = Problem.of(op.spec, args, needs_grad=True)
    met = Problem.of(backward, (torch.ones(3, 4), logits, 0.5, torch.ones(3, 4), (True, False)))
    assert session.joiner._described(problem, args) == met


def leaves_of(case: str):
    """Return a case's arguments, each tensor a leaf of its own that needs a gradient if the case's does."""
    return each(CASES[case][1](), lambda t: t.detach().clone().requires_grad_(t.requires_grad))


@for_each("case", CASES)
def test_gradients_survive_hooks_and_checkpoints(case):
    name, _, kwargs = CASES[case]
    args, op, gradient = leaves_of(case), operator(name), fakes.SPECS[name].gradient
    inputs = [t for t in fakes.leaves(args) if t.requires_grad]
    want = torch.autograd.grad(torchs(name, args, kwargs).sum(), inputs)
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor.detach().clone()

    def function(*_):  # a reentrant checkpoint must be given what needs a gradient
        return op(*args, **kwargs)

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hooked = function()
    assert bool(packed) == bool(gradient.saves or gradient.result or gradient.forward or gradient.keeps)
    for result in (
        hooked,
        checkpoint(function, *inputs, use_reentrant=False),
        checkpoint(function, *inputs, use_reentrant=True),
    ):
        for t in inputs:
            t.grad = None
        result.sum().backward()
        torch.testing.assert_close([t.grad for t in inputs], list(want))


FUNC = {
    "grad": lambda op, x: torch.func.grad(lambda x: op(x).sin().sum())(x),
    "jvp": lambda op, x: torch.func.jvp(op, (x,), (torch.ones_like(x),))[1],
    "vmap": lambda op, x: torch.func.vmap(op)(torch.stack([x, 2 * x])),
    "vmap of grad": lambda op, x: torch.func.vmap(torch.func.grad(lambda x: op(x).sum()))(
        torch.stack([x, 2 * x])
    ),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # of torch.func.jvp
@for_each("what", FUNC)
@for_each("case", CASES)
def test_transforms_are_torchs(case, what):
    name, make, kwargs = CASES[case]
    args, spec = tuple(make()), fakes.SPECS[name]
    op = fakes.session(fakes.backend()).op(name)
    at = int(args[0].__class__ is torch.Tensor and not args[0].is_floating_point())  # an index comes first
    first = fakes.leaves(args)[at].detach()

    def among(call):
        def function(x):
            head = [x, *args[at][1:]] if isinstance(args[at], list) else x
            return fakes.first(call(*args[:at], head, *args[at + 1 :], **kwargs))

        return function

    def reference(*given, **named):
        return spec.reference(*spec.bind(*given, **named))

    torch.testing.assert_close(FUNC[what](among(op), first), FUNC[what](among(reference), first))


@for_each("name", fakes.SPECS)
@for_each("where", ["meta", "fake"])
def test_without_data_shapes_are_right(name, where):
    spec, op = fakes.SPECS[name], fakes.session(fakes.backend()).op(name)
    for sample in spec.tagged("smoke"):
        args = sample.build(spec, "cpu", torch.float32)
        want = [(t.shape, t.dtype) for t in fakes.leaves(spec.reference(*args))]
        if where == "meta":
            got = op.run(*each(args, lambda t: t.to("meta")))
        else:
            with FakeTensorMode() as mode:
                got = op.run(*each(args, mode.from_tensor))
        assert [(t.shape, t.dtype) for t in fakes.leaves(got)] == want
        assert all(t.is_meta or isinstance(t, FakeTensor) for t in fakes.leaves(got))


def test_a_gradient_of_stride_zero_is_served():
    x, w = double(3, 4, 5), double(3)
    operator("softmax_sum")(x, w).sum().backward()
    got = x.grad, w.grad
    x.grad = w.grad = None
    torchs("softmax_sum", (x, w), {}).sum().backward()
    for a, b in zip(got, (x.grad, w.grad), strict=True):
        torch.testing.assert_close(a, b)


@for_each("case", CASES)
def test_an_undefined_gradient_stays_undefined(case):
    name, make, kwargs = CASES[case]
    args = make()

    class Undefined(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    Undefined.apply(operator(name)(*args, **kwargs)).sum().backward()
    assert all(t.grad is None for t in fakes.leaves(args) if t.is_leaf)


def test_gradients_of_two_leaves_share_no_memory():
    x, y, grad = double(5), double(5), torch.ones(5, dtype=torch.float64)
    operator("add")(x, y).backward(grad)
    x.grad.zero_()
    assert torch.equal(y.grad, torch.ones_like(y))
    assert torch.equal(grad, torch.ones_like(y))


def test_gradients_add_up_over_calls():
    x, op = double(5), operator("add")
    for _ in range(2):
        op(x, 1.0).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2))


def test_a_gradient_has_the_dtype_of_its_leaf():
    x, y = torch.ones(3, requires_grad=True), double(3)
    operator("add")(x, y).sum().backward()
    assert (x.grad.dtype, y.grad.dtype) == (torch.float32, torch.float64)


@for_each("case", CASES)
def test_nothing_is_kept_after_backward(case):
    gc.freeze()  # what other tests left is millions of objects
    name, make, kwargs = CASES[case]
    args = make()
    result = operator(name)(*args, **kwargs)
    refs = [weakref.ref(t) for t in fakes.leaves(args)]
    result.sum().backward()
    del args, result
    gc.collect()
    assert all(r() is None for r in refs)


def test_only_what_the_gradient_needs_is_saved():
    assert fakes.saved_by(operator("sum"), double(5))[1] == []
    xs, w = [double(4), double(4)], double(2)
    refs = [weakref.ref(t) for t in xs]
    blend = operator("softmax_sum")
    assert [t.shape for t in fakes.saved_by(blend, xs, w)[1]] == [(4,), (4,), (2,)]
    result = blend(xs, w)
    del xs
    gc.collect()
    assert all(r() is not None for r in refs)
    del result


def test_an_input_changed_before_backward_is_noticed():
    xs, w = [double(4), double(4)], double(2)
    result = operator("softmax_sum")(xs, w)
    with torch.no_grad():
        xs[0].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_second_backward_is_refused_as_torch_does():
    result = operator("softmax_sum")([double(4), double(4)], double(2)).sum()
    result.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        result.backward()


def test_no_grad_means_no_graph():
    x = double(5)
    with torch.no_grad():
        assert operator("sum")(x).grad_fn is None
    assert operator("sum")(x.detach()).grad_fn is None


def test_torch_alone_is_left_to_torchs_own_autograd():
    result = fakes.session().op("add")(double(5), double(5))
    assert type(result.grad_fn).__name__ == "AddBackward0"


def test_a_backward_kernel_joins_even_torchs_own_forward():
    backend = fakes.backend("fake", fakes.kernel("softmax_sum_backward"))
    assert joined(fakes.session(backend).op("softmax_sum")([double(4)] * 2, double(2)))


def test_a_backward_that_is_a_view_joins_nothing():
    backend = fakes.backend("fake", fakes.kernel("sum_backward"))
    assert not joined(fakes.session(backend).op("sum")(double(4)))


def test_a_joined_call_may_be_made_by_hand():
    spec, back = fakes.SPECS["sum"], fakes.SPECS["sum_backward"]
    forward, backward = fakes.Counter(spec.reference), fakes.Counter(back.reference)
    described = Problem.of(spec, (double(3, 4), 0, False)).args
    call = Differentiable(spec, described, spec.gradient, forward, backward, back.reference)
    x = double(3, 4)
    call(x, 0, False).sum().backward()
    assert (forward.count, backward.count) == (1, 1)
    assert torch.equal(x.grad, torch.ones_like(x))


def pooling(*kernels):
    """Return a pool on a backend of these kernels, and an image that needs a gradient."""
    found = fakes.session(fakes.backend("fake", *kernels))
    return found.op("max_pool2d", backend="fake"), double(2, 3, 8, 9)


def test_an_operator_that_keeps_more_for_the_gradient_runs_in_its_place():
    forward, plain, backward = (
        fakes.kernel(op) for op in ("max_pool2d_with_offsets", "max_pool2d", "max_pool2d_backward")
    )
    pool, x = pooling(forward, plain, backward)
    pool(x.detach(), 3, 1, 1)
    runs = [k.plan(None) for k in (forward, plain, backward)]
    before = [r.count for r in runs]
    out, (kept,) = fakes.saved_by(pool, x, 3, 1, 1)
    assert kept.dtype is torch.uint8
    assert kept.shape == out.shape
    out.sum().backward()
    after = [r.count for r in runs]
    assert after[0] > before[0]
    assert after[1] == before[1]
    assert after[2] > before[2]


def test_where_torch_wins_its_own_autograd_keeps_what_it_needs():
    out = fakes.session().op("max_pool2d")(double(2, 3, 8, 9), 3, 1, 1)
    assert "MaxPool2D" in type(out.grad_fn).__name__


def test_what_the_gradient_does_not_cover_is_torchs():
    x, session = double(2, 3, 8, 9), fakes.session(fakes.backend())
    out, indices = session.op("max_pool2d")(x, 3, 1, 1, return_indices=True)
    assert "MaxPool2D" in type(out.grad_fn).__name__
    assert indices.dtype is torch.int64
    found = session.explain("max_pool2d", x, 3, 1, 1, return_indices=True)
    assert found.decision.reason == "a gradient is needed, and only torch's autograd computes it"


def test_an_explanation_names_the_operator_that_runs():
    found = fakes.session(fakes.backend()).explain("max_pool2d", double(2, 3, 8, 9), 3, 1, 1, backend="fake")
    assert found.problem.op == "max_pool2d_with_offsets"
    assert found.decision.chosen == "fake"
