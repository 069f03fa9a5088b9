"""The node of autograd of the compiled path: hooks, versions, streams, threads and memory as torch's own."""

import gc
import resource
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._guards import CompileContext

from nxcore.interop import native
from nxcore.interop.autograd import Differentiable
from nxcore.spec.problem import Problem
from tests.null import fakes

EXTENSION = native.found().extension

if EXTENSION is None:
    pytest.skip(f"nxcore-native: {native.found().detail}", allow_module_level=True)

COMPILED = pytest.mark.parametrize("path", ["compiled"], indirect=True)
X = torch.arange(12.0).view(3, 4)


def joined():
    """Return an addition whose both ways are fakes, on leaves, and its result."""
    kernels = fakes.kernel("softmax_sum"), fakes.kernel("softmax_sum_backward")
    op = fakes.session(fakes.backend("fake", *kernels)).op("softmax_sum", backend="fake")
    xs = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    w = torch.randn(2, requires_grad=True)
    for _ in range(2):
        op(xs, w).sum().backward()
    return op, xs, w


@COMPILED
def test_a_graph_keeps_no_tensor_once_it_is_freed(path):
    op, xs, w = joined()
    gc.disable()
    try:
        y = torch.randn(3, 4, requires_grad=True) * 1
        gone = weakref.ref(y)
        loss = op([y, xs[0]], w).sum()
        del y
        assert gone() is None or gone().grad_fn is not None
        loss.backward()
        del loss
        assert gone() is None, "no cycle keeps it"
    finally:
        gc.enable()


@COMPILED
def test_a_graph_is_walked_once(path):
    op, xs, w = joined()
    loss = op(xs, w).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@COMPILED
def test_a_tensor_that_was_changed_since_is_refused(path):
    op, xs, w = joined()
    y = xs[0] * 1
    loss = op([y, xs[1]], w).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@COMPILED
def test_hooks_on_nodes_and_on_saved_tensors_run(path):
    op, xs, w = joined()
    packed, ran = [], []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        result = op(xs, w)
    assert len(packed) == 3
    node = result.grad_fn
    assert (node.name(), len(node.next_functions)) == ("_JoinBackward", 3)
    assert "_JoinBackward" in repr(result)
    node.register_hook(lambda grads, outs: ran.append(grads))
    result.sum().backward()
    assert len(ran) == 1


@COMPILED
def test_a_backward_operator_that_raises_raises_its_own_error(path):
    spec, back = fakes.SPECS["sum"], fakes.SPECS["sum_backward"]
    x = torch.ones(3, 4, requires_grad=True)
    described = Problem.of(spec, (x, 0, False)).args
    raising = fakes.raising(ValueError("out of patience"))
    call = Differentiable(spec, described, spec.gradient, spec.reference, raising, back.reference)
    result = call.compiled(EXTENSION)(x, 0, False)
    with pytest.raises(ValueError, match="out of patience"):
        result.sum().backward()


@COMPILED
def test_an_undefined_gradient_gives_undefined_ones(path):
    op, xs, w = joined()
    result = op(xs, w)
    result.grad_fn.register_prehook(lambda grads: (None,))
    found = torch.autograd.grad(result.sum(), [*xs, w], allow_unused=True)
    assert found == (None, None, None)


@COMPILED
def test_threads_share_a_plan(path):
    op, xs, w = joined()
    want = torch.autograd.grad(op(xs, w).sum(), [*xs, w])

    def work(_):
        for _ in range(200):
            got = torch.autograd.grad(op(xs, w).sum(), [*xs, w])
            assert all(map(torch.equal, got, want))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@COMPILED
@pytest.mark.gpu
def test_a_gradient_runs_on_the_stream_of_its_forward_call(path):
    op = fakes.session(fakes.backend()).op("softmax_sum", backend="fake")
    xs = [torch.randn(64, 512, device="cuda", requires_grad=True) for _ in range(2)]
    w = torch.randn(2, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    for _ in range(3):
        want = torch.autograd.grad(op.spec.reference(xs, w).sum(), [*xs, w])
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            got = torch.autograd.grad(op(xs, w).sum(), [*xs, w])
        torch.cuda.current_stream().wait_stream(side)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


@COMPILED
@pytest.mark.gpu
def test_a_hit_can_be_captured(path):
    op = fakes.session(fakes.backend("fake", fakes.kernel("add", graph_safe=True))).op("add", backend="fake")
    x, graph = torch.randn(64, device="cuda"), torch.cuda.CUDAGraph()
    for _ in range(3):
        op(x, x)
    with torch.cuda.graph(graph):
        out = op(x, x)
    x.fill_(3)
    graph.replay()
    assert torch.equal(out, torch.full_like(x, 6))


@COMPILED
@pytest.mark.slow
def test_memory_is_flat(path):
    """Of 250,000 calls, and of 50,000 gradients: the smallest object each would be more than the limit."""
    op, xs, w = joined()
    plain = fakes.session(fakes.backend()).op("add")

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def some(calls, gradients):
        for _ in range(calls):
            plain(X, X)
        for _ in range(gradients):
            torch.autograd.grad(op(xs, w).sum(), [*xs, w])

    some(20_000, 2_000)
    before = peak()
    some(250_000, 50_000)
    assert peak() - before <= 1024, "kilobytes"


# Torch's compiler looks at the gradient of each saved tensor, such as the copy of a leaf.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
class TestCompiledAutograd:
    """``torch._dynamo.compiled_autograd`` makes a graph of a backward pass, in which our node is a call."""

    @staticmethod
    def backward(loss, compiler):
        from torch._dynamo import compiled_autograd

        with compiled_autograd._enable(compiler):
            loss.backward()

    @COMPILED
    def test_a_graph_calls_the_backward_operator(self, path):
        op, xs, w = joined()
        leaves, made = [*xs, w], []
        want = torch.autograd.grad((op(xs, w) * X).sum(), leaves)
        for leaf in leaves:
            leaf.grad = torch.zeros_like(leaf)
        for _ in range(3):
            self.backward((op(xs, w) * X).sum(), lambda graph: made.append(graph) or graph)
        for leaf, one in zip(leaves, want, strict=True):
            torch.testing.assert_close(leaf.grad, 3 * one)
        assert len(made) == 1, "the next passes have the same graph"

    @COMPILED
    def test_a_graph_is_for_the_numbers_and_the_gradients_of_a_pass(self, path):
        kernels = fakes.kernel("add"), fakes.kernel("add_backward")
        op = fakes.session(fakes.backend("fake", *kernels)).op("add", backend="fake")
        x, y = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
        for alpha in (0.5, 2.0, 2, 0.5):
            x.grad = y.grad = None
            self.backward(op(x, y, alpha=alpha).sum(), lambda graph: graph)
            torch.testing.assert_close(y.grad, torch.full_like(y, alpha))
        x.grad = y.grad = None
        self.backward(op(x, y.detach(), alpha=3).sum(), lambda graph: graph)
        assert torch.equal(x.grad, torch.ones_like(x))
        assert y.grad is None

    @COMPILED
    def test_a_failure_leaves_an_error_and_no_compiler_behind(self, path, monkeypatch):
        op, xs, w = joined()
        loss = op(xs, w).sum()
        with monkeypatch.context() as patch:
            patch.setattr(Differentiable, "gradients", fakes.raising(ValueError("out of patience")))
            with pytest.raises(ValueError, match="out of patience"):
                self.backward(loss, lambda graph: graph)
        # Torch leaves the context of a capture that failed to the collector of cycles, which would end that
        # of a later test in the middle of its capture.
        gc.collect()
        assert CompileContext.try_get() is None
        self.backward(op(xs, w).sum(), lambda graph: graph)

    @COMPILED
    @pytest.mark.slow
    def test_dynamo_breaks_the_graph_around_the_kernel(self, path):
        op, xs, w = joined()
        leaves = [*xs, w]
        want = torch.autograd.grad((op(xs, w) * X).sum(), leaves)
        for leaf in leaves:
            leaf.grad = None
        self.backward(
            (op(xs, w) * X).sum(), lambda graph: torch.compile(graph, backend="eager", fullgraph=False)
        )
        for leaf, one in zip(leaves, want, strict=True):
            torch.testing.assert_close(leaf.grad, one)
