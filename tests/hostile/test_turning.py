"""What turns bad after its gate is convicted, with the right reason; the caller gets the right answer."""

from __future__ import annotations

import pytest
import torch

import nxcore.choose.learn.watch
from nxcore.context import KernelWarning
from nxcore.errors import UnsupportedProblemError, VerificationError
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import Problem
from nxcore.trust.truth import Truth
from tests.hostile.turning import TURNING
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.table import for_each


def arguments(op, seed=0):
    """More elements than one of them gets right, the first of them in one tensor of the result's shape."""
    x, y = torch.randn(2, 3, 4_001, generator=torch.Generator().manual_seed(seed))
    if op == "add":
        return x, y, 2.0, None
    return (x, y), torch.tensor([0.3, -0.2])


def asleep(seconds):
    """Arm nothing: the test does."""
    return False


NOW = [0.0]
"""The time of the watches."""


def arm(session):
    """Let an audit be due."""
    NOW[0] += 100.0
    session.chooser.watches.arm()


def serving(name, *ops, **how):
    """Return a session that prefers what turns bad, verified by now, and what turns it."""
    hostile = TURNING[name]
    session = Session(Settings(policy="measure", **how), fakes.registry(hostile.backend(*ops)), fakes.QUICK)
    session.chooser.watches.wait = asleep
    session.chooser.watches._clock = lambda: NOW[0]
    for op in ops:
        backend, kernel = next((b, k) for b, k in session.registry.kernels(op) if b.name == "hostile")
        problem = Problem.of(SPECS[op], fakes.build(op, SPECS[op].tagged("smoke")[0].name))
        assert not session.gate.verify(backend, kernel, problem).refusal
    return session, hostile


def convicted(session):
    return [(e.kind, e.op, e.kernel, e.dtype) for e in session.gate.quarantine]


def called(op, args):
    """Call with copies of the arguments; return them and a copy of the result, lest it changes later."""
    given = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)
    given = tuple(tuple(t.clone() for t in a) if isinstance(a, tuple) else a for a in given)
    return given, fakes.called(op, given)


def right(op, args, given, result):
    same = all(torch.equal(a, b) for a, b in zip(fakes.leaves(args), fakes.leaves(given), strict=True))
    return same and Truth.of(SPECS[op], args).judge(result).ok


@for_each("op", ["add", "softmax_sum"])
@for_each("late", [False, True])
@for_each("name", TURNING)
def test_it_is_convicted_and_the_caller_gets_the_right_answers(name, late, op):
    """Turned right after its gate, or after its first calls, in a sample."""
    session, hostile = serving(name, op)
    operator = session.op(op)
    with session.use("hostile"):
        if late:
            for seed in range(nxcore.choose.learn.watch.FIRST):
                called(operator, arguments(op, seed))
            (watch,) = session.chooser.watches._known.values()
            assert not watch.armed
            arm(session)
            assert watch.armed
        else:
            called(operator, arguments(op))  # chosen, and the problem's first call
        hostile.turn(op)
        results = []
        with pytest.warns(KernelWarning, match="is in quarantine: wrong in a call on .*; torch serves"):
            results += [(seed, *called(operator, arguments(op, seed))) for seed in range(2)]
        for seed, given, result in results:  # only now: a buffer that is used again has changed by now
            assert right(op, arguments(op, seed), given, result)
        assert convicted(session) == [("wrong", op, "hostile", "float32")]
        (entry,) = session.gate.quarantine
        assert hostile.reason in entry.reason
        assert str(session.explain(op, *given).decision["hostile"].refusal).startswith("quarantined")
        assert right(op, arguments(op), *called(operator, arguments(op)))


@for_each("name", TURNING)
def test_a_strict_backend_raises(name):
    session, hostile = serving(name, "add")
    operator = session.op("add", backend="hostile")
    called(operator, arguments("add"))
    hostile.turn("add")
    wrong = pytest.raises(VerificationError, match="hostile, a kernel of 'add': wrong in a call on")
    with pytest.warns(KernelWarning, match="it serves no more calls"), wrong:
        [called(operator, arguments("add", seed)) for seed in range(2)]
    with pytest.raises(UnsupportedProblemError, match="quarantined until"):
        called(operator, arguments("add"))


@for_each("name", sorted({*TURNING} - {"view_of_an_input", "wrong_past_10000"}))
def test_a_backward_operator_is_watched_too(name):
    session, hostile = serving(name, "entropy", "entropy_backward")
    warned = pytest.warns(KernelWarning, match="kernel of 'entropy_backward', is in quarantine")
    x = torch.rand(64, 33, generator=torch.Generator().manual_seed(0)).requires_grad_()
    spec = SPECS["entropy"]

    def step():
        args = spec.bind(x)
        (expected,) = torch.autograd.grad(spec.reference(*args).sum(), x)
        (got,) = torch.autograd.grad(session.op("entropy")(x).sum(), x)
        return torch.allclose(got, expected, rtol=1e-4, atol=1e-6)

    with session.use("hostile"):
        assert step()
        hostile.turn("entropy_backward")
        with warned:
            assert all([step(), step()])
    assert convicted(session) == [("wrong", "entropy_backward", "hostile", "float32")]
