"""A shape that is met rarely costs a look-up: torch serves it, and nothing is described, chosen or learnt."""

import json

import pytest
import torch

import nxcore
from nxcore.call import rare
from nxcore.call.rare import RARE
from nxcore.choose.contenders import AGAIN
from nxcore.choose.learn.exploration import MET, exploration
from nxcore.errors import InvalidInputError
from nxcore.interop.autograd import Differentiable
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec import problem as problems
from nxcore.store.lock import Lock
from tests.null import fakes
from tests.table import for_each

X = torch.arange(12.0).view(3, 4)


def online(**settings):
    return Session(Settings(**settings), fakes.registry(fakes.backend()), fakes.QUICK)


@pytest.fixture
def described(monkeypatch):
    """Count the problems that are described."""
    made = []
    init = problems.Problem.__init__

    def counted(self, *args, **kwargs):
        made.append(args)
        init(self, *args, **kwargs)

    monkeypatch.setattr(problems.Problem, "__init__", counted)
    return made


CALLS = {
    "add": (X, X),
    "add of a number": (X, 2.0),
    "sum": (X, (0,)),
    "sum over a list of axes": (X, [0]),
    "softmax_sum": ([X, X], torch.ones(2)),
    "entropy": (X,),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_shape_is_described_when_it_was_met_often_enough(described, what):
    session = online()
    op, args = session.op(what.partition(" ")[0]), CALLS[what]
    expected = op.spec.reference(*op.spec.bind(*args))
    for _ in range(RARE):
        torch.testing.assert_close(op(*args), expected, rtol=0, atol=0)
        assert (len(described), session.decided, len(op.plans), len(op.near)) == (0, 0, 0, 0)
    torch.testing.assert_close(op(*args), expected, rtol=0, atol=0)
    assert described
    assert (session.decided, len(op.plans)) == (1, 1)


def test_hundreds_of_other_shapes_in_between_change_nothing():
    session = online()
    op = session.op("add")
    for n in range(RARE):
        op(X, X)
        for rows in range(1, 150):
            x = torch.ones(rows, 5 + n)
            op(x, x)
    assert session.decided == 0
    op(X, X)
    assert session.decided == 1


@pytest.mark.parametrize("needs_grad", [False, True])
def test_its_calls_until_then_count_for_the_exploration(needs_grad):
    session = online()
    op, x = session.op("add"), X.clone().requires_grad_(needs_grad)
    for n in range(1, MET + 1 + needs_grad):
        op(x, x)
        choices = list(session.chooser.choices.values())
        found = exploration(choices[0].call) if choices else None
        assert (found is not None) == (n > RARE)
        assert bool(found and found.known) == (n >= MET and not needs_grad)


def test_with_gradients_torchs_own_autograd_serves_until_then(monkeypatch):
    seen = []
    init = Differentiable.__init__
    monkeypatch.setattr(Differentiable, "__init__", lambda *a, **k: (seen.append(1), init(*a, **k))[1])
    op, x = online().op("add"), X.clone().requires_grad_()
    for _ in range(RARE):
        out = op(x, 2.0)
        assert type(out.grad_fn).__name__ == "AddBackward0"
        out.sum().backward()
    assert not seen
    torch.testing.assert_close(x.grad, torch.full_like(X, RARE))


def test_a_backward_operator_met_once_is_described_for_its_forward_operator():
    session = online()
    op, x = session.op("entropy"), X.clone().requires_grad_()
    for _ in range(MET):
        op(x).sum().backward()
    assert sorted({key[0].op for key in session.chooser.choices}) == ["entropy", "entropy_backward"]
    assert all(exploration(c.call).known for c in session.chooser.choices.values())


def test_by_kernel_leaves_an_invalid_call_to_its_caller(described):
    op = online().op("sum")
    for _ in range(RARE + 2):
        assert op.by_kernel(X, 5, False) is None
    assert not described


@pytest.fixture
def checked():
    """Count the calls whose arguments are checked, of an operator without the extension."""
    seen = []
    add = fakes.SPECS["add"]
    spec = fakes.replace(add, check=lambda *args: seen.append(args) or add.check(*args), gradient=None)
    return Session(Settings(native=False), fakes.registry(specs=[spec])).op("add"), seen


def test_without_the_extension_a_call_is_checked_once(checked):
    op, seen = checked
    for rows in range(1, 9):
        x = torch.ones(rows, 4)
        for n in range(RARE):
            if n % 2:
                assert op.by_kernel(x, x, 1, None) is None
            else:
                assert torch.equal(op(x, x), 2 * x)
        assert len(seen) == rows
    assert not op.plans
    seen.clear()
    seen.append(1)
    others = [(X.double(), X.double()), (X, 2.0), (X[:2], 3.0), (X, X[0]), (X, X.clone().requires_grad_())]
    for n, args in enumerate(others):
        op(*args)
        assert len(seen) == 2 + n
    with torch.no_grad():
        op(*others[-1])
    assert len(seen) == 7
    with pytest.raises(InvalidInputError, match="broadcast"):
        op(torch.ones(2, 3), torch.ones(2, 4))
    op(torch.ones(2, 4), torch.ones(2, 4), out=torch.empty(2, 4))
    op(torch.ones(3, 4), torch.ones(3, 4), out=torch.empty(3, 4))
    assert len(seen) == 10, "out is checked each time"
    op.forget()
    op(X, X)
    assert len(seen) == 11


def test_what_by_kernel_met_is_checked_in_a_call():
    op = online().op("entropy")
    integers = torch.ones(3, 4, dtype=torch.int64)  # torch computes their entropy
    assert op.by_kernel(integers) is None
    for _ in range(RARE + 1):
        with pytest.raises(InvalidInputError, match="logits must have a floating dtype"):
            op(integers)


@for_each("name", fakes.SPECS)
def test_every_error_is_raised_at_the_first_call_and_later(name):
    spec = fakes.SPECS[name]
    for case in spec.errors:
        op = online().op(name)
        args = case.build(spec)
        for _ in range(RARE + 1):
            with pytest.raises(InvalidInputError, match=case.match):
                op.run(*args)


def test_a_number_is_checked_where_torch_refuses_it():
    op = online().op("add")
    op(X, 2)
    with pytest.raises(InvalidInputError, match="y must fit 64 bits"):
        op(X, 2**70)


def test_torchs_own_errors_are_its_own():
    spec = fakes.twice(reference=fakes.raising(RuntimeError("torch says no")))
    op = Session(Settings(), fakes.registry(specs=[spec])).op("twice")
    for _ in range(RARE + 1):
        with pytest.raises(RuntimeError, match="torch says no"):
            op(X)


def test_what_is_requested_applies_from_the_first_call_on():
    session = online()
    op = session.op("add")
    op(X, X)
    with session.use("fake"):
        op(X, X)
    assert [c.decision.rule for c in session.chooser.choices.values()] == ["preferred"]
    with session.policy("measure"):
        op(X[:2], X[:2])
    assert session.decided == 2


def test_a_backend_that_is_requested_serves_from_the_first_call_on():
    session = online()
    session.op("add", backend="fake")(X, X)
    assert [c.decision.rule for c in session.chooser.choices.values()] == ["pinned"]


@pytest.mark.parametrize("policy", ["measure", "frozen"])
def test_other_policies_decide_at_the_first_call(policy):
    session = online(policy=policy)
    session.op("add")(X, X)
    assert session.decided == 1


def test_a_recording_has_the_first_call(tmp_path):
    session = online()
    with session.record(tmp_path / "problems.jsonl"):
        session.op("add")(X, X)
    lines = (tmp_path / "problems.jsonl").read_text().splitlines()
    assert [json.loads(line)["count"] for line in lines] == [1]


def test_a_lock_applies_from_its_next_call_on():
    session = online()
    op = session.op("add")
    op(X, X)
    session.hold(Lock({"some": "fake"}), "auto")
    op(X, X)
    assert session.decided == 1


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_what_is_on_record_is_used_at_the_first_call(tmp_path, monkeypatch, where):
    """Whatever else is new: another shape of the operator stays rare."""
    fakes.raced(monkeypatch, _kernels_win)
    fakes.identified(monkeypatch)
    cache = tmp_path if where == "disk" else None
    before = online(cache=cache, policy="measure")
    before.op("add")(X, X)
    session = online(cache=cache)
    session.chooser.recall.wisdom.store._memory = before.chooser.recall.wisdom.store._memory
    op = session.op("add")
    op(X, X)
    assert [c.decision.chosen for c in session.chooser.choices.values()] == ["fake"]
    op(X[:2], X[:2])
    assert session.decided == 1


def _kernels_win(calls, device, **how):
    us = {label: 100.0 if label == "torch" else 50.0 for label in calls} | {AGAIN: 100.0}
    return {label: fakes.timing([time] * 12) for label, time in us.items()}


def test_what_was_decided_in_this_process_is_used_whatever_its_key_is():
    session = online()
    op = session.op("add")
    with session.policy("measure"):
        op(X, X)
    op(X, X)
    assert len(op.plans) == 2
    op(X[:2], X[:2])
    assert len(op.plans) == 2


def test_an_explanation_says_that_it_waits():
    session = online()
    op = session.op("add")
    for told in ("", "; calls so far: 1", "; calls so far: 2"):
        found = session.explain("add", X, X, decide=False)
        assert (found.decision.chosen, found.decision.rule) == ("torch", "prior")
        assert found.decision.reason.endswith(f"which explores it beside its calls, once it comes back{told}")
        op(X, X)
    op(X, X)
    assert session.explain("add", X, X, decide=False).decision.rule == "exploring"


def test_the_counts_are_bounded(monkeypatch):
    monkeypatch.setattr(rare, "COUNTED", 16)
    op = online().op("sum")
    for n in range(1, 200):
        op(torch.ones(n))
        op.by_kernel(torch.ones(n), None, False)
        assert len(op.rare) <= 16
    for n in range(200):
        op.families.add(n, ())
        assert sum(op.families.serve(family, {}) for family in range(200)) <= 16


def test_what_is_unusual_is_not_counted():
    session = online()
    op = session.op("sum")
    torch.func.vmap(op)(X)
    conv, args = session.op("depthwise_conv2d"), (torch.ones(1, 2, 4, 4), torch.ones(2, 1, 3, 3))
    with torch.autocast("cpu"):
        conv(*args, 1, 1)
    assert not op.waited(op.spec.bind(X))
    assert not conv.waited(conv.spec.bind(*args, 1, 1))
    assert conv.waited(conv.spec.bind(*[a.bfloat16() for a in args], 1, 1)) == 1, "with its arguments cast"


@pytest.fixture
def by_python(monkeypatch):
    """Count the calls of `add` that reach the Python path, where the extension finds the others."""
    op, seen = online().op("add"), []
    own = type(op).far
    monkeypatch.setattr(
        type(op), "far", lambda self, *args, **how: seen.append(args) or own(self, *args, **how)
    )
    return op, seen


def test_another_size_of_a_known_kind_of_call_runs_no_python(by_python):
    op, seen = by_python
    if not hasattr(op, "admitted"):
        pytest.skip("the Python path counts every key by itself")
    op(X, X)
    assert len(seen) == 1, "its arguments are checked once"
    for rows in (1, 2):
        for _ in range(RARE):
            assert torch.equal(op(X[:rows], X[:rows]), 2 * X[:rows])
    assert len(seen) == 1
    assert len(op.plans) == 0
    op(X[:1], X[:1])
    assert (len(seen), len(op.plans)) == (2, 1), "it came back"


@pytest.mark.parametrize(
    "args",
    [
        (X.double(), X.double()),
        (X, 2.0),
        (X, X[0]),
        (X.clone().requires_grad_(), X),
        (X, X.clone().requires_grad_()),
    ],
    ids=["dtype", "number", "dimensions", "gradient", "gradient of the second"],
)
def test_another_kind_of_call_is_looked_at(by_python, args):
    op, seen = by_python
    op(X, X)
    op(*args)
    assert len(seen) == 2


def test_a_number_is_looked_at_by_its_value(by_python):
    op, seen = by_python
    for alpha in (1, 2, 3):
        op(X, X, alpha=alpha)
    assert len(seen) == 3


def test_a_size_on_record_is_looked_at(by_python):
    op, seen = by_python
    op(X, X)
    with nxcore.policy("measure"):
        op(X[:2], X[:2])
    before = len(seen)
    op(X[:2], X[:2])
    assert len(seen) == before + 1
    assert op.plans


def test_rare_calls_go_on_being_rare_when_plans_are_dropped():
    session = online()
    op = session.op("sum")
    op(X)
    for _ in range(RARE + 1):
        op(X[:2])
    session._forget()
    op(X)
    assert not op.plans, "met twice"
    op(X[:2])
    assert len(op.plans) == 1
