"""What of a captured function needs no device: signatures, who is forgotten, and refusals in words."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import nxcore
from nxcore.context import PREFERENCE
from nxcore.errors import CaptureError, InvalidInputError
from nxcore.graphs import graphed
from nxcore.graphs.graphed import Failure, Graphed, check_result, in_words, signature
from tests.null import fakes

X = torch.arange(12.0).view(3, 4)


def signed(fn, *args, **kwargs):
    return signature(fn, *pytree.tree_flatten((args, kwargs)))


def double(x, *rest, **named):
    return 2 * x


SAME = {
    "numbers": ((X,), (X + 1,)),
    "names in any order": ((X, {"a": 1, "b": 2}), (X, {"a": 1, "b": 2})),
}
DIFFERENT = {
    "shape": (X[:2],),
    "stride": (X.t().contiguous().t(),),
    "dtype": (X.double(),),
    "requires_grad": (X.clone().requires_grad_(),),
    "one more": (X, X),
    "nesting": ([X],),
    "a number": (X, 1),
}


@pytest.mark.parametrize("what", SAME)
def test_a_signature_is_the_same_whatever_is(what):
    one, other = SAME[what]
    assert signed(double, *one) == signed(double, *other)


def test_a_signature_changes_with_all_that_a_capture_fixes():
    found = [signed(double, *args) for args in ((X,), *DIFFERENT.values(), (X, 2), (X, 1.0))]
    with torch.no_grad():
        found.append(signed(double, X))
    with nxcore.use("torch"):
        found.append(signed(double, X))
    found.append(signed(double, x=X))
    assert len(set(found)) == len(found)


def test_a_modules_signature_holds_its_mode_and_where_its_parameters_are():
    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    first = signed(layer, X)
    with torch.no_grad():
        layer[0].weight.zero_()
    assert signed(layer, X) == first, "parameters may change in place"
    layer[1].eval()
    assert signed(layer, X) != first
    layer[1].train()
    before = layer[0].weight  # kept, so that no other lies in its place
    layer[0].weight = nn.Parameter(torch.zeros(4, 4))
    assert signed(layer, X) != first
    assert before is not layer[0].weight


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((X, [1, {"a": {1, 2}}]), {}, r"argument 1\[1\]\['a'\] must be a tensor, or hashable .* got set"),
        ((), {"x": X.to_sparse()}, r"^x must be a plain strided tensor, got one of layout torch.sparse_coo"),
        ((X.as_subclass(type("Sub", (torch.Tensor,), {})),), {}, r"argument 0 must be .* got a Sub"),
    ],
    ids=["set", "sparse", "subclass"],
)
def test_an_argument_that_no_graph_can_take_is_named(args, named, message):
    with pytest.raises(CaptureError, match=message):
        signed(double, *args, **named)


def test_tensors_on_two_devices_are_refused_by_name():
    with pytest.raises(
        CaptureError, match=r"y must be on cpu, as argument 0 is, got meta: a graph is of one"
    ):
        nxcore.graphed(double)(X, y=X.to("meta"))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"fn": 3}, "fn must be a function or a module, got int"),
        ({"fn": double, "limit": 0}, "limit must be a positive integer, got 0"),
        ({"fn": double, "warmup": 1.5}, "warmup must be a positive integer, got 1.5"),
    ],
)
def test_what_makes_no_sense_is_refused(how, message):
    with pytest.raises(InvalidInputError, match=message):
        nxcore.graphed(**how)


def test_on_the_cpu_the_function_itself_is_run():
    layer = nn.Linear(4, 2)
    for run, args in ((nxcore.graphed(double), (X,)), (nxcore.graphed(layer), (X,))):
        torch.testing.assert_close(run(*args), run.fn(*args))
        assert len(run) == 0
    assert nxcore.graphed(layer)(X).requires_grad

    @nxcore.graphed(clone=True)
    def triple(x):
        """Return ``3 * x``."""
        return 3 * x

    assert isinstance(triple, Graphed)
    assert (triple.__name__, triple.__doc__) == ("triple", "Return ``3 * x``.")
    torch.testing.assert_close(triple(X), 3 * X)


@pytest.fixture
def captures(monkeypatch):
    """Note every capture, of which none is one; CPU tensors stand for CUDA's."""
    seen = []

    def captured(self, leaves, spec, device):
        seen.append(leaves[0].shape[0])
        return lambda tensors: self.fn(*tensors)

    monkeypatch.setattr(graphed, "_device", lambda fn, leaves, spec: torch.device("cuda"))
    monkeypatch.setattr(Graphed, "_captured", captured)
    monkeypatch.setattr(Graphed, "_in_order", lambda self, device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return seen


def test_the_graph_that_was_called_longest_ago_is_forgotten(captures):
    run = nxcore.graphed(double, limit=2)
    for n in (1, 2, 1, 3, 1, 2):
        torch.testing.assert_close(run(X[:n]), 2 * X[:n])
    assert captures == [1, 2, 3, 2]
    assert len(run) == 2
    run.clear()
    assert len(run) == 0


def test_copies_are_returned_where_they_are_asked_for(captures):
    held = torch.zeros(3)
    for clone in (False, True):
        result = nxcore.graphed(lambda x: {"held": [held]}, clone=clone)(X)["held"][0]
        assert (result is held) is not clone


def test_a_pool_that_no_graph_is_in_any_more_is_not_asked_for_again(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    run = nxcore.graphed(double, clone=True)
    first = run._memory()
    run._graphs[0] = double
    assert run._memory() is first
    run.clear()
    assert run._memory() is not first


def standing_in(layer, real, fn, inputs, **how):
    """Return what ``torch.cuda.make_graphed_callables`` does: the gradients of all calls lie in one place."""
    assert how["num_warmup_iters"] == 0, "torch's keeps nodes of autograd of another stream"
    assert not {id(t) for t in inputs} & {id(p) for p in real}, "a capture holds no node of theirs"
    assert [id(t) for t in inputs[1:]] == [id(p) for p in layer.parameters()], "it is of what stands for them"
    assert [t.data_ptr() for t in inputs[1:]] == [p.data_ptr() for p in real]
    wanted = [inputs[0], *real]
    places = [torch.zeros_like(t) for t in wanted]

    class Replayed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.save_for_backward(*tensors)
            return fn(*tensors).detach()

        @staticmethod
        def backward(ctx, grad):
            with torch.enable_grad():
                leaves = [t.detach().requires_grad_(t.requires_grad) for t in inputs]
                leaves[0] = ctx.saved_tensors[0].detach().requires_grad_()
                fresh = torch.autograd.grad(fn(*leaves), [leaves[0], *wanted[1:]], grad)
            for place, value in zip(places, fresh, strict=True):
                place.copy_(value)
            return tuple(place.detach() for place in places)

    return Replayed.apply


def test_gradients_of_replays_add_up(monkeypatch):
    layer = nn.Linear(4, 2)
    real = list(layer.parameters())
    make = functools.partial(standing_in, layer, real)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", make)
    warmed = []
    monkeypatch.setattr(Graphed, "_aside", lambda self, work: warmed.append(work()))
    run = nxcore.graphed(layer, backward=True)
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    replay = run._differentiable(lambda t: layer(t), [x.detach().clone().requires_grad_()], pool=None)
    assert list(map(id, layer.parameters())) == list(map(id, real))
    assert warmed == [None], "both ways once, and nothing of it is kept"
    for tensor in (x, y.requires_grad_(), x):
        replay([tensor]).square().sum().backward()
    got = [p.grad for p in layer.parameters()] + [x.grad]
    for leaf in (*layer.parameters(), x):
        leaf.grad = None
    for tensor in (x, y, x):
        layer(tensor).square().sum().backward()
    for one, other in zip(got, [*(p.grad for p in layer.parameters()), x.grad], strict=True):
        torch.testing.assert_close(one, other)


def test_within_another_capture_the_function_itself_is_run(captures, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    torch.testing.assert_close(nxcore.graphed(double)(X), 2 * X)
    assert captures == []


def test_a_result_that_no_replay_renews_is_refused():
    with pytest.raises(CaptureError, match=r"its result\['loss'\] needs a gradient.* pass backward=True"):
        check_result({"loss": X.clone().requires_grad_()})
    with pytest.raises(CaptureError, match=r"its result\[1\] is on cpu: a graph holds the work of a CUDA"):
        check_result((3, X))


def waiting(x):
    if x.sum() > 0:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_a_failure_is_told_by_the_line_that_raised(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    failure = Failure()
    with pytest.raises(CaptureError) as caught, failure.explained():  # noqa: PT012  as a capture ends
        try:
            with failure.noted():
                waiting(X)
        finally:
            raise RuntimeError("capture was invalidated")
    assert "`raise RuntimeError(" in str(caught.value)
    assert "of waiting) can't be captured in a CUDA graph: RuntimeError: operation not" in str(caught.value)
    assert "as .item(), .cpu() and `if x > 0` do" in str(caught.value)
    assert in_words(RuntimeError("")).startswith("fn can't be captured in a CUDA graph: RuntimeError: ;")


def test_a_failure_before_the_capture_is_raised_as_it_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    failure = Failure()
    with pytest.raises(ValueError, match="its own"), failure.explained(), failure.noted():
        raise ValueError("its own")


def test_problems_met_before_a_capture_are_measured_and_not_learnt():
    session = fakes.session(fakes.backend())
    session.chooser.settings = fakes.replace(session.settings, policy="online")
    assert session.chooser.policy == "online"
    with graphed.deciding():
        assert session.chooser.policy == "measure"
        with session.policy("estimate"):
            assert session.chooser.policy == "estimate", "what was asked for stays"
    assert not PREFERENCE.get().at_once
