"""What of a captured function needs no device: signatures, who is forgotten, and refusals in words."""

import threading
import types

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import nxcore
from nxcore.context import PREFERENCE, REGIME, Purpose
from nxcore.errors import CaptureError, InvalidInputError
from nxcore.graphs import graphed
from nxcore.graphs.graphed import Failure, Graphed, check_result, in_words, signature
from nxcore.graphs.recorder import MAKING, Pool, recorder_of, recording
from tests.nn.tape import Tape
from tests.null import fakes
from tests.stand_ins import stand_in

graphed_has = stand_in(graphed)

X = torch.arange(12.0).view(3, 4)


def signed(fn, *args, **kwargs):
    return signature(fn, *pytree.tree_flatten((args, kwargs)))


def double(x, *rest, **named):
    return 2 * x


SAME = {"numbers": ((X,), (X + 1,)), "names in any order": ((X, {"a": 1, "b": 2}), (X, {"a": 1, "b": 2}))}
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
        ((X, [1, {"a": {1, 2}}]), {}, r"argument 1\[1\]\['a'\] must be a tensor or a hashable .* got set"),
        ((), {"x": X.to_sparse()}, r"^x must be a plain strided tensor, got one of layout torch.sparse_coo"),
        ((X.as_subclass(type("Sub", (torch.Tensor,), {})),), {}, r"argument 0 must be .* got a Sub"),
    ],
    ids=["set", "sparse", "subclass"],
)
def test_an_argument_that_no_graph_can_take_is_named(args, named, message):
    with pytest.raises(CaptureError, match=message):
        signed(double, *args, **named)


def test_tensors_on_two_devices_are_refused_by_name():
    with pytest.raises(CaptureError, match=r"y must be on cpu, as argument 0 is, got meta: a graph has one"):
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
def tape(graphed_has, cuda_answers):
    """A recorder on the CPU, whose tensors stand for CUDA's."""
    found = Tape()
    graphed_has(_device=lambda fn, leaves, spec: torch.device("cpu"), recorder_of=lambda device: found)
    cuda_answers(is_current_stream_capturing=lambda: False)
    return found


def test_a_signature_is_captured_once_after_warm_ups_and_replayed(tape):
    calls = []

    def counted(x, scale):
        calls.append(scale)
        return {"out": [scale * x]}

    run = nxcore.graphed(counted, warmup=2)
    for n in (1, 3, 1, 3):
        torch.testing.assert_close(run(X[:n] + n, 3), {"out": [3 * (X[:n] + n)]})
    assert calls == [3] * 6, "two warm-ups and a capture of each"
    assert (tape.captured, tape.replayed, len(run)) == (2, 4, 2)


def test_warm_ups_take_the_choices_of_the_capture(tape):
    regimes = []

    def noted(x):
        regimes.append(REGIME.captured)
        return 2 * x

    nxcore.graphed(noted, warmup=2)(X)
    assert regimes[:2] == [True, True]
    assert not REGIME.captured


def test_the_graph_that_was_called_longest_ago_is_forgotten(tape):
    run, captured = nxcore.graphed(double, limit=2), []
    for n in (1, 2, 1, 3, 1, 2):
        torch.testing.assert_close(run(X[:n]), 2 * X[:n])
        captured.append(tape.captured)
    assert captured == [1, 2, 2, 3, 3, 4]
    assert len(run) == 2
    run.clear()
    assert len(run) == 0


def test_copies_are_returned_where_they_are_asked_for(tape):
    for clone in (False, True):
        run = nxcore.graphed(lambda x: {"held": [2 * x]}, clone=clone)
        first, second = (run(x)["held"][0] for x in (X, X + 1))
        assert (first is second) is not clone
        torch.testing.assert_close(second, 2 * X + 2)


def test_graphs_share_memory_only_where_results_are_copied(tape):
    for how in ({"clone": True}, {"clone": False}, {"backward": True, "clone": True}):
        tape.pools.clear()
        run = nxcore.graphed(nn.ReLU(), **how)
        for n in (1, 2):
            run(X[:n].clone().requires_grad_(how.get("backward", False)))
        assert None not in tape.pools, "the parts' pool"
        assert len(set(tape.pools)) == (1 if how == {"clone": True} else 2), how


def test_what_is_held_is_put_back_and_then_written_by_calls_alone(tape):
    norm, seen = nn.BatchNorm1d(4), torch.zeros(())

    def step(x):
        seen.add_(1)
        return norm(x).detach()

    run = nxcore.graphed(step, state=(seen, *norm.buffers()))
    for _ in range(2):
        run(X)
    assert (float(seen), int(norm.num_batches_tracked)) == (2, 2)


def test_an_argument_that_is_written_into_is_refused_by_name(tape):
    with pytest.raises(CaptureError, match=r"^x is written into, and a replay reads a copy of it"):
        nxcore.graphed(lambda x: x.add_(1))(x=X.clone())
    with pytest.raises(CaptureError, match="its result needs a gradient"):
        nxcore.graphed(double)(X.clone().requires_grad_())
    assert tape.captured == 0


def test_while_another_thread_makes_a_capture_the_function_itself_is_run(tape):
    run = nxcore.graphed(double)
    holds, done = threading.Event(), threading.Event()

    def other():
        with MAKING:
            holds.set()
            done.wait()

    thread = threading.Thread(target=other)
    thread.start()
    holds.wait()
    try:
        torch.testing.assert_close(run(X), 2 * X)
        assert (tape.captured, len(run)) == (0, 0)
    finally:
        done.set()
        thread.join()
    torch.testing.assert_close(run(X), 2 * X)
    assert (tape.captured, len(run)) == (1, 1)


def test_a_pool_that_no_graph_is_in_any_more_is_not_asked_for_again(cuda_answers):
    cuda_answers(graph_pool_handle=object)
    pool, graph = Pool(), Tape()
    first = pool.handle
    pool.hold(graph)
    assert pool.handle is first
    pool.leave()
    second = pool.handle
    assert second is not first
    assert pool.handle is second
    del graph
    assert pool.handle is not second


def test_gradients_of_replays_add_up(tape):
    layer, plain = nn.Linear(4, 2), nn.Linear(4, 2)
    plain.load_state_dict(layer.state_dict())
    held = list(layer.parameters())
    run = nxcore.graphed(layer, backward=True)
    inputs = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    mirrors = [x.detach().clone().requires_grad_() for x in inputs]
    for i in (0, 1, 0):
        for model, x in ((run, inputs[i]), (plain, mirrors[i])):
            model(x).square().sum().backward()
        with torch.no_grad():
            for p in (*layer.parameters(), *plain.parameters()):
                p.mul_(0.9)
    assert list(map(id, layer.parameters())) == list(map(id, held))
    assert (tape.captured, tape.replayed, len(run)) == (2, 6, 1)
    for got, want in zip((*held, *inputs), (*plain.parameters(), *mirrors), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


def test_results_of_any_structure_let_their_gradients_through(tape):
    def many(x, y):
        return {"both": (x * y, y.detach() + 1), "none": None, "first": x.sum(), "index": y.argmax()}

    run = nxcore.graphed(many, backward=True)
    x, y = (torch.randn(3, requires_grad=True) for _ in range(2))
    for _ in range(2):
        got, want = run(x, y), many(x, y)
        torch.testing.assert_close(got, want)
        assert [t.requires_grad for t in pytree.tree_leaves(got) if t is not None] == [
            True,
            False,
            True,
            False,
        ]
        found, expected = (torch.autograd.grad(out["both"][0].sum(), (x, y)) for out in (got, want))
        torch.testing.assert_close(found, expected)
    assert not run(X, X)["first"].requires_grad
    assert tape.captured == 3, "without a gradient there is no graph of it"


def test_a_gradient_that_would_be_lost_is_refused(tape):
    layer = nn.Linear(4, 2)
    with pytest.raises(CaptureError, match=r"depends on a tensor of shape \(2, 4\) that is neither"):
        nxcore.graphed(lambda x: x @ layer.weight.t(), backward=True)(X)
    assert tape.captured == 0


def test_within_another_capture_the_function_itself_is_run(tape, cuda_answers):
    cuda_answers(is_current_stream_capturing=lambda: True)
    torch.testing.assert_close(nxcore.graphed(double)(X), 2 * X)
    assert tape.captured == 0


def test_a_result_that_no_replay_renews_is_refused():
    with pytest.raises(CaptureError, match=r"its result\['loss'\] needs a gradient.* pass backward=True"):
        check_result({"loss": X.clone().requires_grad_()})
    with pytest.raises(
        CaptureError, match=r"its result\[1\] is on cpu: a graph contains only work of a CUDA"
    ):
        check_result((3, X))


def waiting(x):
    if x.sum() > 0:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_a_failure_is_told_by_the_line_that_raised(cuda_answers):
    cuda_answers(is_current_stream_capturing=lambda: True)
    failure = Failure()
    with pytest.raises(CaptureError) as caught, failure.explained():  # noqa: PT012  as a capture ends
        try:
            with failure.noted():
                waiting(X)
        finally:
            raise RuntimeError("capture was invalidated")
    assert "`raise RuntimeError(" in str(caught.value)
    assert "of waiting) can't be captured in a CUDA graph: RuntimeError: operation not" in str(caught.value)
    assert "such as .item(), .cpu() and `if x > 0`" in str(caught.value)
    assert in_words(RuntimeError("")).startswith("fn can't be captured in a CUDA graph: RuntimeError: ;")


def test_a_failure_before_the_capture_is_raised_as_it_is(cuda_answers):
    cuda_answers(is_current_stream_capturing=lambda: False)
    failure = Failure()
    with pytest.raises(ValueError, match="its own"), failure.explained(), failure.noted():
        raise ValueError("its own")


def test_problems_met_before_a_capture_are_measured_and_not_learnt():
    session = fakes.session(fakes.backend())
    session.chooser.settings = fakes.replace(session.settings, policy="auto")
    assert session.chooser.policy == "auto"
    with graphed.deciding():
        assert session.chooser.policy == "measure"
        with session.policy("frozen"):
            assert session.chooser.policy == "frozen", "what was asked for stays"
    assert PREFERENCE.get().purpose is Purpose.RUN


def test_another_recorder_serves_its_device_in_a_block():
    one, other = (types.SimpleNamespace(device=torch.device("cuda", 7)) for _ in range(2))
    with recording(one):
        with recording(other), recording(None):
            assert recorder_of(one.device) is other
        assert recorder_of(one.device) is one
