"""To a compiler each operator is one node of torch.ops.nxcore; who runs it is decided when it runs."""

from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import nxcore
from nxcore.interop import library
from nxcore.plugin import Param
from tests.null import fakes
from tests.paths import PATHS
from tests.table import for_each

SPECS = fakes.SPECS
ONE_PATH = pytest.mark.parametrize("path", PATHS[-1:], indirect=True)
"""What a compiler sees is the same on both."""


def args_of(name: str) -> tuple[Any, ...]:
    """The arguments of the smallest finite smoke sample that writes into nothing."""
    spec = SPECS[name]
    built = [s.build(spec, "cpu", torch.float32) for s in spec.tagged("smoke")]
    outs = [i for i, p in enumerate(spec.params) if p.kind == "out"]
    fit = [
        args
        for args in built
        if all(bool(t.isfinite().all()) for t in fakes.leaves(args)) and all(args[i] is None for i in outs)
    ]
    return min(fit, key=lambda args: sum(t.numel() for t in fakes.leaves(args)))


def floats(args: Any) -> list[Tensor]:
    return [t for t in fakes.leaves(args) if t.is_floating_point()]


def compiled(function, **how):
    """Return the compiled function and the counter of its graphs."""
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, fullgraph=True, backend=counter, **how), counter


def nodes(counter) -> list[str]:
    """The operators of nxcore in the last graph."""
    return [str(n.target) for n in counter.graphs[-1].graph.nodes if str(n.target).startswith("nxcore.")]


@ONE_PATH
@pytest.mark.slow
@for_each("name", SPECS)
def test_torchs_own_checks_pass(session, name):
    shell, args = library.define(SPECS[name]), args_of(name)
    if SPECS[name].gradient:
        for t in floats(args):
            t.requires_grad_()
    torch.library.opcheck(shell.overload, (), shell.signature.given(args))


@pytest.mark.parametrize("name", SPECS)
def test_an_operator_is_one_node_and_its_kernel_runs(session, name):
    spec, args = SPECS[name], args_of(name)
    traced = spec.view(*args) or not library.define(spec).result.flat
    op = session.op(name, backend=None if traced else "fake")
    function, counter = compiled(lambda *args: op.run(*args))
    torch.testing.assert_close(function(*args), spec.reference(*args))
    assert nodes(counter) == ([] if traced else [f"nxcore.{name}.default"])
    if traced:
        return
    kernel = next(k for k in session.registry.backend("fake").kernels if k.op == name).plan(None)
    before = kernel.count
    function(*args)
    assert kernel.count == before + 1


def grown(spec):
    """Return ten sizes of a call: those of a smoke sample, whose first tensor grows."""
    sample = next(s for s in spec.tagged("smoke") if all(sketch.plain for sketch in s.sketches))
    first, *rest = sample.sketches[0].shape
    return lambda i: sample.shaped((first + i, *(n + 2 * i for n in rest))).build(spec, "cpu", torch.float32)


ROWS = torch.tensor([1, 3, 1])
SIZES = {name: grown(SPECS[name]) for name in fakes.DIFFERENTIABLE} | {
    "add": lambda i: (torch.randn(4 + i, 3 + 2 * i), torch.randn(3 + 2 * i)),
    "avg_pool2d": lambda i: (torch.randn(2 + i, 4, 6 + i, 7 + 2 * i), 3, 2, 1),
    "batch_norm": lambda i: (torch.randn(2 + i, 4, 6 + i, 7 + 2 * i), torch.randn(4), torch.randn(4)),
    "batch_norm_sum": lambda i: ([torch.randn(2 + i, 4, 6 + i) for _ in range(3)], torch.randn(3)),
    "conv2d": lambda i: (
        *(torch.randn(2 + i, 4, 6 + i, 7 + 2 * i), torch.randn(3, 4, 3, 3), torch.randn(3)),
        *(1, 1),
    ),
    "depthwise_conv2d": lambda i: (torch.randn(2 + i, 4, 6 + i, 7 + 2 * i), torch.randn(4, 1, 3, 3), 1, 1),
    "entropy": lambda i: (torch.randn(4 + i, 3 + 2 * i),),
    "gumbel_softmax": lambda i: (
        torch.rand(4 + i, 3 + 2 * i),
        torch.tensor(0.5),
        False,
        torch.rand(4 + i, 3 + 2 * i) + 0.1,
    ),
    "global_avg_pool2d": lambda i: (torch.randn(2 + i, 4, 6 + i, 7 + 2 * i),),
    "global_max_pool2d": lambda i: (torch.randn(2 + i, 4, 6 + i, 7 + 2 * i),),
    "matmul": lambda i: (torch.randn(4 + i, 3 + 2 * i), torch.randn(3 + 2 * i, 5)),
    "max_pool2d": lambda i: (torch.randn(2 + i, 4, 6 + i, 7 + 2 * i), 3, 2, 1),
    "pointwise_conv2d": lambda i: (
        *(torch.randn(2 + i, 4, 6 + 2 * i, 8 + 4 * i), torch.randn(3, 4, 1, 1), torch.randn(3, 4, 1, 1)),
        2,
    ),
    "sep_conv2d": lambda i: (
        *(torch.randn(2 + i, 4, 6 + i, 7 + 2 * i), torch.randn(4, 1, 3, 3), torch.randn(3, 4, 1, 1)),
        *(1, 1),
    ),
    "sep_conv2d_batch_norm": lambda i: (
        *(torch.randn(2 + i, 4, 6 + i, 7 + 2 * i), torch.randn(4, 1, 3, 3), torch.randn(3, 4, 1, 1)),
        *(1, 1, 1, True, torch.randn(3), torch.randn(3)),
    ),
    "softmax_sum": lambda i: ([torch.randn(4 + i, 5 + 2 * i) for _ in range(3)], torch.randn(3)),
    "index_add": lambda i: (torch.randn(4 + i, 5 + 2 * i), 0, ROWS, torch.randn(3, 5 + 2 * i)),
    # From what isn't worth asking whether its gradient is wanted to what is.
    "weighted_sum": lambda i: ([torch.randn(2 + i, 20_000 * (i + 1)) for _ in range(3)], torch.randn(3)),
    "cross_entropy": lambda i: (torch.randn(4 + i, 3 + 2 * i), torch.arange(4 + i) % 3),
    "rms_norm": lambda i: (torch.randn(4 + i, 3 + 2 * i), (3 + 2 * i,), torch.randn(3 + 2 * i)),
    "layer_norm": lambda i: (torch.randn(4 + i, 3 + 2 * i), (3 + 2 * i,), *torch.randn(2, 3 + 2 * i)),
    "group_norm": lambda i: (torch.randn(4 + i, 6, 3 + 2 * i), 3, *torch.randn(2, 6)),
    "embedding": lambda i: (torch.arange(4 + i) % 3, torch.randn(4 + i, 3 + 2 * i), None, None, 2),
    "rope": lambda i: (torch.randn(2, 4 + i, 6 + 2 * i), *torch.randn(2, 4 + i, 6 + 2 * i)),
    **dict.fromkeys(
        ("mean", "amax", "amin", "max", "min", "cumsum", "softmax", "log_softmax"),
        lambda i: (torch.randn(4 + i, 3 + 2 * i), 1),
    ),
    "sum": lambda i: (torch.randn(4 + i, 3 + 2 * i), 1),
    "sum_to_size": lambda i: (torch.randn(4 + i, 3 + 2 * i), (3 + 2 * i,)),
}


@ONE_PATH
@pytest.mark.slow
@for_each(("name", "dynamic"), [*((name, True) for name in SIZES), ("softmax_sum", None)])
def test_ten_sizes_are_one_graph(session, name, dynamic):
    torch._dynamo.reset()  # it counts the graphs of all rows, since their function has one code
    spec, op = SPECS[name], session.op(name)
    function, counter = compiled(lambda *args: fakes.first(op(*args)) * 2, dynamic=dynamic)
    for i in range(10):
        args = SIZES[name](i)
        tensors = [t.requires_grad_() for t in floats(args)]
        got, want = function(*args), fakes.first(spec.reference(*spec.bind(*args))) * 2
        torch.testing.assert_close(got, want)
        grad = torch.randn_like(want)
        for a, b in zip(
            torch.autograd.grad(got, tensors, grad), torch.autograd.grad(want, tensors, grad), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    # Left to itself, dynamo takes the first size for the only one, and once learns better. Told that all is
    # dynamic, it takes a float for a symbol, and once learns better too.
    given = dict(zip((p.name for p in spec.params), args, strict=False))
    learns = not dynamic or any(isinstance(given.get(p.name, p.default), float) for p in spec.params)
    assert counter.frame_count == (2 if learns else 1)


def test_forward_and_backward_are_opaque(session):
    seen = []

    def note(graph, example):
        seen.append([str(n.target) for n in graph.graph.nodes if str(n.target).startswith("nxcore.")])
        return make_boxed_func(graph.forward)

    backend = torch._dynamo.backends.common.aot_autograd(fw_compiler=note, bw_compiler=note)
    op = session.op("max_pool2d")
    x = torch.randn(2, 3, 8, 9, requires_grad=True)
    torch.compile(lambda x: op(x, 3, 1, 1), fullgraph=True, backend=backend)(x).sum().backward()
    assert seen == [["nxcore.max_pool2d_with_offsets.default"], ["nxcore.max_pool2d_backward.default"]]


def test_a_gradient_that_is_a_view_stays_one(session):
    seen = []

    def note(graph, example):
        seen.append([n.kwargs or n.args for n in graph.graph.nodes if str(n.target).startswith("nxcore.")])
        return make_boxed_func(graph.forward)

    backend = torch._dynamo.backends.common.aot_autograd(fw_compiler=note, bw_compiler=note)
    x, y = torch.randn(4, 5, requires_grad=True), torch.randn(5, requires_grad=True)
    torch.compile(session.op("add"), fullgraph=True, backend=backend)(x, y).sum().backward()
    (backward,) = seen[1]
    assert backward[4] == [False, True], "of two gradients one has something to add up"
    assert torch.equal(x.grad, torch.ones_like(x))
    assert torch.equal(y.grad, torch.full_like(y, 4))


def test_the_choice_is_made_when_it_runs(session):
    kernel = next(k for k in session.registry.backend("fake").kernels if k.op == "add").plan(None)
    function, counter = compiled(session.op("add"))
    x = torch.ones(5)
    with session.use("torch"):
        function(x, x)
    before = kernel.count
    with session.use("fake"):
        function(x, x)
    assert kernel.count > before
    assert counter.frame_count == 1


def test_a_stack_of_candidates_is_one_tensor(session):
    x, w = torch.randn(3, 5, requires_grad=True), torch.randn(3)
    function, counter = compiled(session.op("softmax_sum"))
    out = function(x, w)
    torch.testing.assert_close(out, SPECS["softmax_sum"].reference(x, w))
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.softmax(w, 0).view(3, 1).expand(3, 5))
    assert nodes(counter) == ["nxcore.softmax_sum.default"]


REFERENCE = {
    "out": lambda op: (lambda x: op(x, x, out=torch.empty_like(x)), "add"),
    "view": lambda op: (lambda x: op(x, (4, 5)), "sum_to_size"),
    "nested": lambda op: (lambda x: op(x[0], [x[0], x[1]], x[:2, 0])[0][1], "softmax_sum_backward"),
}


@pytest.mark.parametrize("what", REFERENCE)
def test_what_is_no_node_is_the_reference(session, what):
    name = REFERENCE[what](None)[1]
    call, x = REFERENCE[what](session.op(name))[0], torch.randn(4, 5)
    function, counter = compiled(call)
    torch.testing.assert_close(function(x), call(x))
    assert nodes(counter) == []


def test_what_the_gradient_does_not_cover_is_torchs_in_the_graph(session):
    x = torch.randn(2, 3, 8, 9, requires_grad=True)
    op = session.op("max_pool2d")
    function, _ = compiled(lambda x: op(x, 3, return_indices=True))
    out, indices = function(x)
    want, places = SPECS["max_pool2d"].reference(x, 3, return_indices=True)
    assert torch.equal(out, want)
    assert torch.equal(indices, places)
    out.sum().backward()
    assert torch.equal(x.grad, torch.autograd.grad(want.sum(), x)[0])


def test_a_call_that_is_wrong_is_told_in_the_same_words(session):
    op = session.op("add")
    with pytest.raises(RuntimeError, match="y must broadcast with x, got shapes"):
        compiled(lambda x, y: op(x, y))[0](torch.ones(3), torch.ones(4))


def test_a_session_of_ones_own_traces_the_reference(session):
    other = fakes.session(fakes.backend())
    function, counter = compiled(other.op("add"))
    assert torch.equal(function(torch.ones(3), torch.ones(3)), torch.full((3,), 2.0))
    assert nodes(counter) == []
    with pytest.raises(RuntimeError, match=r"can't take this call of 'add': torch\.compile traces the ref"):
        compiled(other.op("add", backend="fake"))[0](torch.ones(3), torch.ones(3))


def scaled(
    x: Tensor,
    by: float = 2.0,
    sizes: Sequence[int] = (),
    way: Literal["up", "down"] = "up",
    dtype: torch.dtype | None = None,
    flags: list[bool] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return ``by * x``, and nothing else."""
    return x * by if way == "up" else x / by, None


SCALED = fakes.twice(
    "scaled",
    params=(
        Param("x", "tensor"),
        Param("by", "static", 2.0),
        Param("sizes", "size", ()),
        Param("way", "static", "up"),
        Param("dtype", "static", None),
        Param("flags", "static", None, keyword=True),
    ),
    reference=scaled,
    check=lambda *args: None,
)


@pytest.fixture
def third_party(monkeypatch, as_default):
    """Return a function that makes the default session know a spec of somebody else's."""

    def made(spec):
        found = fakes.session(specs=[*SPECS.values(), spec])
        as_default(found)
        monkeypatch.setattr(library, "SHELLS", dict(library.SHELLS))
        torch._dynamo.reset()
        return found.op(spec.name)

    return made


@pytest.mark.parametrize("path", ["python"], indirect=True)  # a process defines an operator once
def test_an_operator_of_somebody_elses_is_made_of_its_annotations(third_party):
    op = third_party(SCALED)
    assert str(library.define(SCALED).signature) == (
        '(Tensor x, float by=2.0, SymInt[] sizes=[], str way="up", ScalarType? dtype=None, *, '
        "bool[]? flags=None, str? backend=None, str[]? prefer=None, str? policy=None) -> Tensor[]"
    )
    function, counter = compiled(lambda x: op(x, 4.0, (3, 3), "down", flags=[True]))
    out, nothing = function(torch.full((3,), 2.0))
    assert torch.equal(out, torch.full((3,), 0.5))
    assert nothing is None
    assert nodes(counter) == ["nxcore.scaled.default"]


def test_without_annotations_the_reference_is_traced(third_party):
    def reference(x, way="up"):
        """Return ``2 * x``."""
        return 2 * x

    spec = fakes.twice(
        "unfit",
        params=(Param("x", "tensor"), Param("way", "static", "up")),
        reference=reference,
        check=lambda x, way: None,
    )
    op = third_party(spec)
    assert library.define(spec) is None
    function, counter = compiled(op)
    assert torch.equal(function(torch.ones(3)), torch.full((3,), 2.0))
    assert nodes(counter) == []


def test_all_are_defined_at_once(session):
    assert set(library.define_all()) == set(SPECS)


FUNC = {
    "vmap": lambda op, x: torch.func.vmap(op)(x),
    "grad": lambda op, x: torch.func.grad(lambda x: op(x).sin().sum())(x),
    "jvp": lambda op, x: torch.func.jvp(op, (x,), (x,))[1],
    "jacrev": lambda op, x: torch.func.jacrev(op)(x),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # of torch.func.jvp
@for_each(
    ("what", "where"), [*((what, "traced") for what in FUNC), *((w, "direct") for w in FUNC if w != "jvp")]
)  # torch gives a node no forward mode
def test_a_transform_is_of_the_reference(session, what, where):
    x = torch.randn(3, 4, 6, 5)
    op, node = session.op("avg_pool2d"), library.define(SPECS["avg_pool2d"]).overload
    want = FUNC[what](lambda x: torch.nn.functional.avg_pool2d(x, 3, 1, 1), x)
    if where == "direct":
        got = FUNC[what](lambda x: node(x, [3], [1], [1]), x)
    else:
        got = compiled(lambda x: FUNC[what](lambda x: op(x, 3, 1, 1), x))[0](x)
    torch.testing.assert_close(got, want)


def test_the_result_of_a_node_is_no_view(session):
    x = torch.ones(4, 5)
    node = library.define(SPECS["sum_to_size"]).overload
    node(x, (4, 5)).zero_()
    assert torch.equal(x, torch.ones(4, 5))


def test_second_derivatives_of_a_node_are_the_references(session):
    w = torch.randn(3, dtype=torch.float64, requires_grad=True)
    xs = [torch.randn(2, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    node = library.define(SPECS["softmax_sum"]).overload
    assert torch.autograd.gradgradcheck(lambda *t: node(list(t[:3]), t[3]), (*xs, w))


def test_a_node_that_runs_while_another_thread_compiles_adds_none():
    x, compiler = torch.ones(2), vars(torch.compiler)
    before = compiler["_is_compiling_flag"]
    compiler["_is_compiling_flag"] = True  # as that thread has it
    try:
        assert nxcore.op("add")(x, x).tolist() == [2.0, 2.0]
    finally:
        compiler["_is_compiling_flag"] = before
