"""A call is one key and one look-up; whatever is unusual is torch's; a kernel that fails is replaced."""

import contextlib
import inspect
import weakref

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from nxcore.call import generated
from nxcore.call import operator as operators
from nxcore.call.operator import Operator
from nxcore.errors import InvalidInputError, UnsupportedProblemError
from tests.null import fakes
from tests.stand_ins import stand_in
from tests.table import for_each

operators_has = stand_in(operators)

X = torch.arange(12.0).view(3, 4)
W = torch.tensor([0.1, -0.2, 0.3])


@pytest.fixture
def session():
    return fakes.session(fakes.backend())


@pytest.fixture(params=["near", "far"])
def resolves(session, request, monkeypatch):
    """Return a function that counts the misses that made a plan while ``add`` was called."""
    if request.param == "far":
        monkeypatch.setattr(generated, "_of_torch", None)

    def count(*calls, op="add"):
        operator = session.op(op)
        with fakes.counting_resolves(operator) as seen:
            for call in calls:
                for _ in range(2):  # what was found far is near the next time
                    call(operator)
        return len(seen)

    return count


def test_the_signature_is_the_operators_own(session):
    assert str(inspect.signature(session.op("add"))) == "(x, y, *, alpha=1, out=None)"
    assert str(inspect.signature(session.op("sum"))) == "(x, dim=None, keepdim=False)"
    assert str(inspect.signature(session.op("softmax_sum"))) == "(xs, logits)"


@for_each("name", fakes.SPECS)
def test_an_operator_carries_its_name_and_documentation(session, name):
    op = session.op(name)
    assert (op.__name__, op.__doc__) == (name, fakes.SPECS[name].reference.__doc__)
    assert repr(op) == f"<nxcore operator {name!r}>"
    assert repr(session.op(name, backend="fake")) == f"<nxcore operator {name!r} on 'fake'>"


def test_the_generated_source_can_be_read(session):
    assert "self.near[" in inspect.getsource(type(session.op("add")).__call__)
    assert "plan = self.plans.get(_key)" in inspect.getsource(type(session.op("add")).far)


def test_keywords_are_keywords_only(session):
    with pytest.raises(TypeError, match="takes 3 positional arguments but 4 were given"):
        session.op("add")(X, X, 2)
    assert torch.equal(session.op("add")(y=X, x=X, alpha=2), 3 * X)


def test_a_missing_argument_is_a_type_error(session):
    with pytest.raises(TypeError, match=r"^add\(\) missing 1 required positional argument: 'y'"):
        session.op("add")(X)


def test_an_operator_is_made_by_a_session():
    with pytest.raises(NotImplementedError, match="was not made by make_operator"):
        Operator(fakes.SPECS["add"], lambda *args: None)()


def test_a_second_call_is_a_hit(resolves):
    assert resolves(lambda op: op(X, X), lambda op: op(X + 1, X.clone())) == 1


NEAR = {
    "add": (X, X),
    "add of a number": (X, 2.0),
    "softmax_sum": ([X, X, X + 1], W),
    "softmax_sum of a stack": (torch.stack([X] * 3), W),
    "sum": (X, (0,)),
}


@pytest.mark.parametrize("what", NEAR)
def test_a_third_call_is_near(session, monkeypatch, what):
    op = session.op(what.partition(" ")[0])
    for _ in range(2):
        op(*NEAR[what])
    monkeypatch.setattr(type(op), "far", fakes.raising(AssertionError("it went far")))
    torch.testing.assert_close(op(*NEAR[what]), op.spec.reference(*op.spec.bind(*NEAR[what])))


@pytest.mark.parametrize("path", ["python"], indirect=True)  # whose table is read
def test_calls_that_look_alike_are_told_by_their_guards(session, monkeypatch, operators_has):
    op = session.op("add")
    strided = X.t().contiguous().t()
    alike = [(X, X), (strided, X), (X, strided), (X.double(), X), (X, W[:1])]
    for args in alike * 2:
        op(*args)
    assert [len(found) for found in op.near.values()] == [len(alike)]
    far = []
    monkeypatch.setattr(type(op), "far", lambda self, *args: far.append(args))
    for args in alike:
        torch.testing.assert_close(op(*args), torch.add(*args))
    operators_has(ALIKE=2)
    op.approach(op.near, "key", op.spec.reference, X.half(), X, 1, None)
    op(*alike[0])
    assert len(far) == 1, "what was found longest ago is far again"


def test_a_size_is_part_of_what_a_plan_is_for(resolves):
    sizes = ((3, 4), (3, 1), (1, 4), [3, 4], [3, 1])
    assert resolves(*[lambda op, size=size: op(X, size) for size in sizes], op="sum_to_size") == 3


@pytest.mark.parametrize(
    "odd",
    [torch.eye(4).to_sparse_csr, lambda: torch.nested.nested_tensor([W[:2], W])],
    ids=["compressed", "nested"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:The PyTorch API of nested")
def test_a_tensor_without_strides_is_never_near(session, odd):
    """Torch's guards end the process in one."""
    op, x = session.op("add"), torch.ones(4, 4)
    for args in ((x, x), (odd(), x), (x, odd()), (odd(), odd())) * 3:
        with contextlib.suppress(InvalidInputError, RuntimeError):  # what is refused, by torch or before
            op(*args)
    many = session.op("softmax_sum")
    for xs in ([x, x], [x, odd()], [odd(), x]) * 3:
        with contextlib.suppress(InvalidInputError, RuntimeError):
            many(xs, W[:2])
    assert [len(found) for found in (*op.near.values(), *many.near.values())] == [1, 1]


def test_what_never_gets_near_does_not_pile_up(session):
    op = session.op("sum")
    for _ in range(3):
        op(X, (0,))
        op(X, [0])
        with torch.device("cpu"):  # a function mode
            op(X, 0)
    assert [len(found) for found in op.near.values()] == [1]


def test_what_is_forgotten_or_replaced_is_not_near(session):
    op = session.op("sum")
    op(X)
    (key,) = op.plans
    op.replan(key, lambda *args: "another")
    assert [op(X), op(X), op(X)] == ["another"] * 3
    near = op.near
    op.clear()
    op.approach(near, key, lambda *args: "late", X, None, False)
    assert op(X) == X.sum()


def test_a_guard_keeps_no_tensor_alive(session):
    x = torch.randn(3)
    for _ in range(2):
        session.op("sum")(x)
    alive = weakref.ref(x)
    del x
    assert alive() is None


SAME = {
    "the value of alpha": (lambda op: op(X, X, alpha=2), lambda op: op(X, X, alpha=5)),
    "the value of a number": (lambda op: op(X, 2.0), lambda op: op(X, 5.0)),
    "positional or by name": (lambda op: op(X, X), lambda op: op(y=X, x=X)),
    "the storage": (lambda op: op(X, X), lambda op: op(torch.ones(13)[1:].view(3, 4), X)),
}
DIFFERENT = {
    "shape": lambda op: op(X[:2], X[:2]),
    "stride": lambda op: op(X.t().contiguous().t(), X),
    "dtype": lambda op: op(X.double(), X),
    "class": lambda op: op(torch.nn.Parameter(X, requires_grad=False), X),
    "the type of alpha": lambda op: op(X, X, alpha=1.0),
    "a number": lambda op: op(X, 2),
    "out": lambda op: op(X, X, out=torch.empty_like(X)),
    "requires_grad": lambda op: op(X.clone().requires_grad_(), X),
}


@pytest.mark.parametrize("what", SAME)
def test_the_key_is_the_same_whatever_is(resolves, what):
    assert resolves(*SAME[what]) == 1


@pytest.mark.parametrize("what", DIFFERENT)
def test_the_key_changes_with(resolves, what):
    assert resolves(lambda op: op(X, X), DIFFERENT[what], DIFFERENT[what]) == 2


def test_the_key_changes_with_no_grad(resolves):
    leaf = X.clone().requires_grad_()

    def without(op):
        with torch.no_grad():
            assert op(leaf, X).grad_fn is None

    assert resolves(lambda op: op(leaf, X), without, without, lambda op: op(leaf, X)) == 2


def test_the_key_changes_with_preference(session, resolves):
    def preferring(op):
        with session.use("fake"):
            op(X, X)

    assert resolves(lambda op: op(X, X), preferring, preferring) == 2


def test_the_key_changes_with_deterministic_algorithms():
    session = fakes.session(fakes.backend())
    op = session.op("add")

    def labels():
        with fakes.counting_resolves(op) as seen, session.use("fake"):
            op(X, X)
        return seen

    assert labels() == ["fake"]
    torch.use_deterministic_algorithms(True)
    try:
        assert labels() == ["torch"]
    finally:
        torch.use_deterministic_algorithms(False)
    assert labels() == []


def test_a_list_and_a_tuple_share_a_plan_and_a_stack_does_not(resolves):
    calls = [lambda op: op([X, X, X], W), lambda op: op((X, X, X), W)]
    assert resolves(*calls, op="softmax_sum") == 1
    assert resolves(lambda op: op(torch.stack([X] * 3), W), op="softmax_sum") == 1
    assert resolves(lambda op: op([X, X], W[:2]), op="softmax_sum") == 1


def test_lists_of_axes_are_axes(session, resolves):
    assert resolves(lambda op: op(X, [0, 1]), lambda op: op(X, (0, 1)), op="sum") == 1


@pytest.mark.parametrize("bad", [1.0, True])
def test_an_equal_argument_of_another_type_is_not_served_unchecked(session, bad):
    op = session.op("sum")
    op(X, 1)
    with pytest.raises(InvalidInputError, match="dim must be an integer"):
        op(X, bad)


def test_the_table_is_bounded_and_keeps_what_is_used(operators_has, session):
    operators_has(CAPACITY=4)
    op = session.op("sum")
    with fakes.counting_resolves(op) as seen:
        for n in range(1, 30):
            op(torch.ones(n))
            op(torch.ones(1))
            assert len(op.plans) + len(op._older) <= 8
    assert len(seen) == 29
    op.clear()
    assert not op.plans
    assert not op._older


class Sub(torch.Tensor):
    pass


class Dispatch(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        Dispatch.seen += 1
        return func(*args, **(kwargs or {}))


class Function(TorchFunctionMode):
    seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        Function.seen += 1
        return func(*args, **(kwargs or {}))


def within(mode, call):
    def run(*args):
        with mode():
            return call(*args)

    return run


NEGATED = torch.complex(X, X).conj().imag
UNUSUAL = {
    "subclass": (lambda op: op(X.as_subclass(Sub)), "Sub is a subclass of Tensor"),
    "dispatch_mode": (within(Dispatch, lambda op: op(X)), "a __torch_dispatch__ mode is active"),
    "function_mode": (within(Function, lambda op: op(X)), "a __torch_function__ mode is active"),
    "vmap": (lambda op: torch.func.vmap(op)(X).sum(), "torch.func transforms the reference"),
    "grad": (lambda op: (torch.func.grad(op)(X) * X).sum(), "torch.func transforms the reference"),
    "negation": (lambda op: -op(NEGATED), "a lazy negation or conjugation is pending"),
    "row_major_negation": (
        lambda op: op(torch._neg_view(-X)),
        "a lazy negation or conjugation is pending",
    ),
    "conjugation": (
        lambda op: op(torch.complex(X, X).conj()).real,
        "a lazy negation or conjugation is pending",
    ),
    "sparse": (lambda op: op(X.to_sparse()), "its layout is torch.sparse_coo, not torch.strided"),
}


@for_each("warm", [0, 1, 2], ids=["cold", "far", "near"])
@for_each("what", UNUSUAL)
def test_what_is_unusual_is_torchs_and_right(what, warm):
    kernel = fakes.Counter(fakes.SPECS["sum"].reference)
    session = fakes.session(fakes.backend("fake", fakes.kernel("sum", kernel)))
    with session.use("fake"):
        op = session.op("sum")
        for _ in range(warm):
            op(X)
        before = kernel.count
        assert float(UNUSUAL[what][0](op)) == float(X.sum())
        assert kernel.count == before


@pytest.mark.parametrize("what", UNUSUAL)
def test_what_is_unusual_is_refused_where_one_backend_was_asked_for(session, what):
    call, reason = UNUSUAL[what]
    with pytest.raises(
        UnsupportedProblemError, match=f"backend 'fake' can't take this call of 'sum': {reason}"
    ):
        call(session.op("sum", backend="fake"))


def test_a_negated_view_is_right_after_one_like_it():
    def blind(x, *rest):  # reads memory, and knows nothing of the negation
        return torch.sum(torch._neg_view(x) if x.is_neg() else x, *rest)

    session = fakes.session(fakes.backend("fake", fakes.kernel("sum", blind)))
    with session.use("fake"):
        op = session.op("sum")
        for like, lazy in ((torch.complex(X, X).imag, NEGATED), (X.clone(), torch._neg_view(X))):
            op(like), op(like)
            with fakes.counting_resolves(op) as seen:
                assert float(op(lazy)) == float(op(lazy)) == -float(X.sum())
            assert seen == []


def test_a_default_device_is_no_mode(resolves):
    def with_default(op):
        torch.set_default_device("cpu")
        try:
            op(X, X)
        finally:
            torch.set_default_device(None)

    assert resolves(with_default, with_default) == 1


def test_a_mode_inside_a_default_device_is_seen(session):
    op = session.op("sum", backend="fake")
    torch.set_default_device("cpu")
    try:
        op(X)
        with Function(), pytest.raises(UnsupportedProblemError, match="a __torch_function__ mode is active"):
            op(X)
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("name", ["add", "sum", "softmax_sum"])
def test_a_compiled_function_gives_the_right_answer_in_one_graph(session, name):
    torch._dynamo.reset()
    op = session.op(name)
    args = {"add": (X, X), "sum": (X, 1), "softmax_sum": ([X, X + 1, X + 2], W)}[name]
    compiled = torch.compile(lambda *args: op(*args) * 2, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*args), fakes.SPECS[name].reference(*args) * 2)
    torch._dynamo.reset()
