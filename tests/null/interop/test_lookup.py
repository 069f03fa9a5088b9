"""Inside a compiled function operators are looked up, and preferences put in force, as everywhere."""

import pytest
import torch

import nxcore
from nxcore.context import PREFERENCE, TRACED, Preference
from tests.null import fakes
from tests.null.interop.test_library import compiled, nodes


def test_an_operator_found_inside_the_function_is_the_same(monkeypatch, as_default):
    torch._dynamo.reset()
    as_default(None)  # the first call of a process
    monkeypatch.setenv("NXCORE_BACKENDS", "")
    x = torch.ones(5)
    for found in (lambda x: nxcore.op("add")(x, 2.5, alpha=2), lambda x: nxcore.ops.add(x, 2.5, alpha=2)):
        function, counter = compiled(found)
        for _ in range(2):
            assert torch.equal(function(x), torch.full((5,), 6.0))
        assert counter.frame_count == 1
        assert nodes(counter) == ["nxcore.add.default"]
    function, counter = compiled(lambda x: nxcore.ops.add(x, 2.5, alpha=2))  # which is kept by now
    assert torch.equal(function(x), torch.full((5,), 6.0))
    assert nodes(counter) == ["nxcore.add.default"]


FORMS = {
    "op": lambda x: nxcore.op("add")(x, x),
    "op with a backend": lambda x: nxcore.op("add", backend="fake")(x, x),
    "ops": lambda x: nxcore.ops.add(x, x),
    "use": lambda x: preferring(nxcore.use("fake"), lambda: nxcore.op("add")(x, x)),
    "use by ops": lambda x: preferring(nxcore.use("fake"), lambda: nxcore.ops.add(x, x)),
    "policy": lambda x: preferring(nxcore.policy("frozen"), lambda: nxcore.op("add")(x, x)),
}


def preferring(block, call):
    with block:
        return call()


@pytest.mark.parametrize("form", FORMS)
def test_an_operator_is_looked_up_in_every_form(session, monkeypatch, form):
    monkeypatch.delitem(vars(nxcore.ops), "add", raising=False)
    x = torch.ones(5)
    function, counter = compiled(FORMS[form])
    for _ in range(2):
        assert torch.equal(function(x), torch.full((5,), 2.0))
    assert counter.frame_count == 1
    assert nodes(counter) == ["nxcore.add.default"]


def test_several_operators_are_looked_up_in_one_function(session):
    def function(x):
        sums = nxcore.op("sum")(x, 0), nxcore.op("sum", backend="fake")(x, 0), nxcore.op("sum")(x, 0)
        return nxcore.op("add")(sums[0], sums[1]) + nxcore.op("add", backend="fake")(sums[1], sums[2])

    (run, counter), x = compiled(function), torch.randn(4, 5)
    torch.testing.assert_close(run(x), 4 * x.sum(0))
    assert nodes(counter) == ["nxcore.sum.default"] * 3 + ["nxcore.add.default"] * 2


def test_a_session_of_ones_own_is_asked_inside_the_function(session):
    other = fakes.session(fakes.backend())
    function, _ = compiled(lambda x: other.op("add")(x, other.op("sum")(x)))
    torch.testing.assert_close(function(torch.ones(3)), torch.full((3,), 4.0))


def test_what_no_session_has_is_refused_while_it_is_traced(session):
    for call in (lambda x: nxcore.op("ad")(x, x), lambda x: preferring(nxcore.use("fak"), lambda: x)):
        with pytest.raises(Exception, match="did you mean"):
            compiled(call)[0](torch.ones(3))


def kernel_runs(session, name, call) -> int:
    """How often ``call`` runs the kernel of an operator, once it is verified: that takes calls too."""
    kernel = next(k for k in session.registry.backend("fake").kernels if k.op == name).plan(None)
    call()
    before = kernel.count
    call()
    return kernel.count - before


def test_a_preference_inside_the_function_is_the_nodes_own(session):
    def mixed(x):
        with nxcore.use("torch"):
            a = nxcore.ops.add(x, x)
            with nxcore.use("fake"):
                b = nxcore.ops.add(a, x)
            c = nxcore.ops.add(b, x)
        return nxcore.ops.add(c, x)

    (function, counter), x = compiled(mixed), torch.ones(5)
    for outer, served in (("fake", 2), ("torch", 1)):
        with nxcore.use(outer):
            assert torch.equal(function(x), torch.full((5,), 5.0))
            assert kernel_runs(session, "add", lambda: function(x)) == served
    assert counter.frame_count == 1
    assert (TRACED.prefer, TRACED.policy, PREFERENCE.get()) == (None, None, Preference())


@pytest.mark.parametrize(("name", "served"), [("torch", 0), ("fake", 1)])
def test_a_preference_inside_the_function_is_the_gradients_too(session, name, served):
    def blend(xs, w):
        with nxcore.use(name):
            return nxcore.op("softmax_sum")(xs, w)

    function, _ = compiled(blend)
    xs, w = [torch.randn(4, requires_grad=True) for _ in range(3)], torch.randn(3, requires_grad=True)
    assert kernel_runs(session, "softmax_sum_backward", lambda: function(xs, w).sum().backward()) == served


def test_a_preference_outlives_a_graph_break(session):
    x, seen = torch.ones(5), []

    def broken(x):
        with nxcore.use("fake"):
            y = nxcore.ops.add(x, x)
            torch._dynamo.graph_break()
            seen.append(float(y[0]))
            return nxcore.ops.add(y, x)

    function = torch.compile(broken, backend="eager")
    assert torch.equal(function(x), torch.full((5,), 3.0))
    assert kernel_runs(session, "add", lambda: function(x)) == 2
    assert (TRACED.prefer, TRACED.policy, PREFERENCE.get()) == (None, None, Preference())
    assert seen == [2.0, 2.0, 2.0]


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side:UserWarning")  # undone by the end
@pytest.mark.parametrize("strict", [True, False])
def test_a_preference_is_exported(session, strict):
    class Adds(torch.nn.Module):
        def forward(self, x):
            with nxcore.use("fake"):
                return nxcore.op("add")(x, x)

    program = torch.export.export(Adds(), (torch.ones(5),), strict=strict)
    with nxcore.use("torch"):
        assert kernel_runs(session, "add", lambda: program.module()(torch.ones(5))) == 1
