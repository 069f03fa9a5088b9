"""``out=`` is written once, never read half-written; a kernel that fails is replaced by torch."""

import warnings
from dataclasses import replace

import pytest
import torch

from nxcore.call.overlap import overlap
from nxcore.context import KernelWarning
from nxcore.errors import InvalidInputError
from tests.null import fakes
from tests.table import for_each

X = torch.arange(12.0).view(3, 4)
ADD = fakes.SPECS["add"].reference


def preferring(*kernels):
    """Return a session whose calls go to backend fake where they can, and ``use`` entered."""
    session = fakes.session(fakes.backend("fake", *kernels))
    return session, session.use("fake")


def test_out_is_written_and_returned():
    op, out = fakes.session(fakes.backend()).op("add"), torch.full((3, 4), torch.nan)
    for i in range(2):
        assert op(X + i, X, out=out) is out
        assert torch.equal(out, X + i + X)


@pytest.mark.parametrize("backend", [None, "torch"])
def test_out_may_be_an_input(backend):
    op, x = fakes.session(fakes.backend()).op("add", backend=backend), X.clone()
    assert op(x, X, out=x) is x
    assert torch.equal(x, 2 * X)


@for_each("safe", [False, True])
@for_each("view", [False, True], ids=["itself", "a_view"])
def test_only_a_kernel_that_claims_it_may_work_in_place(safe, view):
    session, use = preferring(fakes.kernel("add", in_place_safe=safe))
    x = X.clone()
    with use:
        found = session.explain("add", x, X, out=x.view(3, 4) if view else x).decision
        assert session.explain("add", x, X, out=torch.empty(3, 4)).decision.chosen == "fake"
    assert found.chosen == ("fake" if safe else "torch")
    assert safe or found["fake"].refusal.reason == "doesn't claim to be in_place_safe, and out is an input"


def test_choosing_does_not_write_into_out(monkeypatch):
    times = {"torch": 100, "fast": 50}
    session = fakes.scripted(fakes.Clock(), monkeypatch, "add", times)
    x = X.clone()
    session.explain("add", x, X, out=x)
    assert torch.equal(x, X)
    assert torch.equal(session.op("add")(x, X, out=x), 2 * X)


def test_trying_a_kernel_does_not_write_into_out():
    session, use = preferring(fakes.kernel("add", in_place_safe=True))
    x = X.clone()
    with use:
        assert session.explain("add", x, X, out=x).decision.chosen == "fake"
        assert torch.equal(x, X)
        assert torch.equal(session.op("add")(x, X, out=x), 2 * X)


@pytest.mark.parametrize("warm", [False, True], ids=["first_call", "later_call"])
def test_a_partial_overlap_is_refused(warm):
    op, data = fakes.session(fakes.backend()).op("add"), torch.zeros(8)
    if warm:
        op(data[:6], torch.ones(6), out=torch.zeros(8)[2:])
    with pytest.raises(InvalidInputError, match="out must not overlap an input in part"):
        op(data[:6], torch.ones(6), out=data[2:])
    with pytest.raises(InvalidInputError, match="out must not overlap an input in part"):
        op(torch.ones(6), data[:6], out=data[2:])


def test_out_that_overlaps_itself_is_refused():
    op = fakes.session(fakes.backend()).op("add")
    with pytest.raises(InvalidInputError, match="out must not overlap itself: it has stride 0"):
        op(X, X, out=torch.zeros(1, 4).expand(3, 4))


def test_two_halves_of_one_storage_are_apart():
    data = torch.zeros(8)
    assert overlap(data[4:], data[:4], torch.zeros(4), 2.5) == (False, False, False)
    assert overlap(data[4:], data[4:]) == (True,)
    assert torch.equal(fakes.session().op("add")(data[:4], 1.0, out=data[4:]), torch.ones(4))


@pytest.mark.parametrize("warm", [False, True], ids=["first_call", "later_call"])
def test_out_that_needs_a_gradient_is_refused(warm):
    op = fakes.session(fakes.backend()).op("add")
    if warm:
        op(X, X, out=torch.empty(3, 4))
    with pytest.raises(InvalidInputError, match="out can't be differentiated"):
        op(X, X, out=torch.empty(3, 4, requires_grad=True))
    with pytest.raises(InvalidInputError, match="out can't be differentiated"):
        op(X.clone().requires_grad_(), X, out=torch.empty(3, 4))


def test_a_kernel_that_fails_later_is_replaced_with_one_warning():
    moody = fakes.Moody()
    session, use = preferring(fakes.kernel("add", moody))
    op = session.op("add")
    with use:
        op(X, X)
        moody.error = RuntimeError("lost my nerve")
        with pytest.warns(
            KernelWarning,
            match="fake, a kernel of 'add', raised RuntimeError: lost my nerve .*; torch serves",
        ) as caught:
            assert torch.equal(op(X, X), 2 * X)
        calls = moody.calls
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(op(X, X), 2 * X)
    assert len(caught) == 1
    assert moody.calls == calls


@pytest.mark.parametrize(
    "error", [KeyError("k"), TypeError("t"), AttributeError("a")], ids=lambda e: type(e).__name__
)
def test_an_error_of_a_kernel_is_not_taken_for_a_miss(error):
    moody = fakes.Moody()
    session, use = preferring(fakes.kernel("add", moody))
    op = session.op("add")
    with use:
        op(X, X)
        moody.error = error
        with fakes.counting_resolves(op) as seen, pytest.warns(KernelWarning, match=type(error).__name__):
            op(X, X)
    assert seen == []


def test_a_kernel_that_fails_at_its_first_real_call_is_replaced():
    class Late(fakes.Moody):
        def __call__(self, *args):
            if args[0].numel() == 12 and torch.equal(args[0], X) and self.armed:
                raise RuntimeError("too late")
            return ADD(*args)

    late = Late()
    late.armed = False
    session, use = preferring(fakes.kernel("add", late))
    with use:
        session.explain("add", X, X)
        late.armed = True
        with pytest.warns(KernelWarning, match="too late"):
            assert torch.equal(session.op("add")(X, X), 2 * X)


def test_where_one_backend_was_asked_for_its_error_is_raised():
    moody = fakes.Moody()
    op = fakes.session(fakes.backend("fake", fakes.kernel("add", moody))).op("add", backend="fake")
    op(X, X)
    moody.error = RuntimeError("lost my nerve")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="lost my nerve"):
            op(X, X)


def test_a_call_that_writes_into_out_is_never_tried_twice():
    moody = fakes.Moody()
    session, use = preferring(fakes.kernel("add", moody))
    op, out = session.op("add"), torch.zeros(3, 4)
    with use:
        op(X, X, out=out)
        moody.error = RuntimeError("half way")
        out.zero_()
        with pytest.raises(RuntimeError, match="half way"):
            op(X, X, out=out)
    assert not out.any()


def test_where_a_kernel_runs_out_of_memory_torch_serves_that_call_alone():
    moody = fakes.Moody()
    session, use = preferring(fakes.kernel("add", moody))
    op = session.op("add")
    with use:
        op(X, X)
        moody.error = torch.OutOfMemoryError("full")
        with pytest.warns(KernelWarning, match="OutOfMemoryError: full .*; torch serves this call$"):
            assert torch.equal(op(X, X), 2 * X)
        moody.error, calls = None, moody.calls
        op(X, X)
    assert moody.calls == calls + 1, "there may be room again"
    assert not list(session.gate.quarantine)


def test_where_torch_fails_too_its_error_is_raised_and_nobody_is_blamed(monkeypatch):
    moody = fakes.Moody()
    specs = [replace(fakes.SPECS["add"], reference=lambda *args: native(*args))]
    native = ADD
    session = fakes.session(fakes.backend("fake", fakes.kernel("add", moody)), specs=specs)
    op = session.op("add")
    with session.use("fake"), warnings.catch_warnings():
        warnings.simplefilter("error")
        op(X, X)
        moody.error, native = RuntimeError("mine"), fakes.raising(RuntimeError("the call's"))
        with pytest.raises(RuntimeError, match="the call's"):
            op(X, X)
        moody.error, calls = None, moody.calls
        op(X, X)
    assert moody.calls == calls + 1


def test_an_error_of_torch_itself_is_raised_without_a_warning():
    spec = replace(fakes.SPECS["sum"], reference=fakes.raising(RuntimeError("torch can't")))
    op = fakes.session(specs=[spec]).op("sum")
    with pytest.raises(RuntimeError, match="torch can't"):
        op(X)
