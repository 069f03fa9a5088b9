"""What of a part of a network is run, and why."""

import contextlib
import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import nxcore
from nxcore.graphs import part
from nxcore.graphs.part import SETTLED
from nxcore.nn import Part
from tests.nn.parts import Pair, blended, layers
from tests.nn.tape import Tape
from tests.table import for_each

pytestmark = pytest.mark.usefixtures("decided")


@pytest.fixture
def pair():
    found = Pair()
    found.met()
    return found


CHANGES = {
    "a parameter": lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach() * 2)),
    "a parameter's memory": lambda m: setattr(m[0].weight, "data", m[0].weight.detach() * 2),
    "a parameter that needs no gradient": lambda m: m[0].weight.requires_grad_(False),
    "a module": lambda m: m.__setitem__(2, nn.Tanh()),
    "one more module": lambda m: m.append(nn.Tanh()),
    "a module's class": lambda m: setattr(m[2], "__class__", nn.Tanh),
    "a module's mode": lambda m: m[1].eval(),
    "an attribute": lambda m: setattr(m[3], "factor", 3.0),
    "a forward": lambda m: setattr(m[2], "forward", lambda x: 2 * x),
    "a hook": lambda m: m[2].register_forward_hook(lambda module, args, out: 2 * out),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_module_that_has_changed_is_run(pair, what):
    kept = [copy.copy(m) for m in pair.module.modules()]  # so that nothing lies in its place
    for module in (pair.plain, pair.module):
        CHANGES[what](module)
    before, x = pair.tape.replayed, torch.randn(2, 3, 5, 5, requires_grad=True)
    for _ in range(2):
        got, want = (
            call(module, x, pair.weight) for module, call in ((pair.module, pair.part), (pair.plain, blended))
        )
        torch.testing.assert_close(got, want)
    assert pair.tape.replayed == before
    assert kept


def test_what_is_no_call_in_training_is_run_and_says_why(pair):
    x, before = torch.randn(2, 3, 5, 5, requires_grad=True), pair.tape.replayed
    with torch.no_grad():
        pair.part(pair.module, x, pair.weight)
    pair.part(pair.module.eval(), x, pair.weight)
    pair.module.train()
    with torch.autograd.graph.save_on_cpu():
        pair.part(pair.module, x, pair.weight)
    with nxcore.profile():
        pair.part(pair.module, x, pair.weight)
    checkpoint(lambda t: pair.part(pair.module, t, pair.weight), x, use_reentrant=False)
    kept = []  # beyond the end of its transform, as a replay would have to notice
    torch.vmap(lambda t: kept.append(t) or t)(x.detach()[None])
    with contextlib.suppress(RuntimeError):  # which torch itself may refuse
        pair.part(pair.module, kept[0], pair.weight)
    assert pair.tape.replayed == before
    fresh = Pair()
    fresh.part(fresh.module.eval(), x, fresh.weight)
    assert fresh.part.state == "runs: it isn't training"


class Twice(nn.Conv2d):
    def forward(self, x):
        return super().forward(x), x


class Waits(nn.Conv2d):
    def forward(self, x):
        if _modes():
            raise RuntimeError("no graph can hold it")
        return super().forward(x)


class Alternates(nn.Conv2d):
    _calls = 0

    def forward(self, x):
        self._calls += 1
        return super().forward(x) * (1 + self._calls % 2)


def _modes():
    return torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def with_hook(module):
    module[0].register_forward_pre_hook(lambda module, args: None)
    return module


def with_hooked_weight(module):
    module[0].weight.register_hook(lambda grad: grad)
    return module


def call(module, x, weight):
    return module(x) * weight if isinstance(module, nn.Sequential) else module(x)


REFUSED = {
    "draws": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout()), "it draws random numbers"),
    "has hooks": (lambda: with_hook(layers()), "it has hooks"),
    "has a hook on a weight": (lambda: with_hooked_weight(layers()), "one of its parameters has hooks"),
    "returns two": (
        lambda: Twice(3, 4, 3),
        "it must return one plain tensor that needs a gradient, got tuple",
    ),
    "raises": (lambda: Waits(3, 4, 3), "RuntimeError: no graph can hold it"),
    "does something else each time": (
        lambda: Alternates(3, 4, 3),
        "a second run differs from the first, by ",
    ),
}


@for_each("what", REFUSED)
def test_what_no_graph_can_stand_for_is_run_for_good_and_says_why(what):
    make, why = REFUSED[what]
    module, tape = make(), Tape()
    part, x, weight = Part(call, lambda device: tape), torch.randn(2, 3, 5, 5), torch.ones(())
    for _ in range(SETTLED):
        part(module, x, weight)
    torch.manual_seed(1)
    part(module, x, weight)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    call(module, x, weight)
    assert why in part.state
    assert torch.rand(1) == drawn
    assert tape.captured <= 2
    assert not part.captured


def test_what_is_no_faster_is_run_for_good():
    pair = Pair(tape=Tape(slow=2e-3))
    pair.met()
    assert pair.part.state.startswith("runs: replaying is no faster: 3e+03 ms replayed, 2e+03 ms run")
    before = pair.tape.replayed
    pair.agree()
    assert pair.tape.replayed == before


def test_while_something_is_learnt_from_calls_nothing_is_captured(monkeypatch):
    pair = Pair()
    monkeypatch.setattr(type(nxcore._session()), "learning", True)
    pair.met()
    assert pair.part.state == "runs: its problems are still in exploration"
    monkeypatch.setattr(type(nxcore._session()), "learning", False)
    monkeypatch.setattr("nxcore.graphs.part.AGAIN", 2)
    pair.agree()
    assert not pair.part.captured
    pair.agree()
    assert pair.part.captured == 1


def test_while_another_thread_captures_nothing_is_captured(monkeypatch):
    pair = Pair()
    monkeypatch.setattr("nxcore.graphs.part.AGAIN", 2)
    with ThreadPoolExecutor(1) as other:
        other.submit(part.MAKING.acquire).result()
        pair.met()
        assert pair.part.state == "runs: another thread is making a capture"
        other.submit(part.MAKING.release).result()
    pair.agree()
    assert not pair.part.captured
    pair.agree()
    assert pair.part.captured == 1
    with ThreadPoolExecutor(1) as other:
        assert other.submit(part.MAKING.acquire, False).result(), "it is let go of"
        other.submit(part.MAKING.release).result()


def test_an_epochs_last_batch_is_run(pair):
    for _ in range(SETTLED):
        for _ in range(10):
            pair.agree()
        pair.agree(1, 3, 5, 5)
    assert pair.part.captured == 1
    assert (
        pair.part._why
        == f"too rarely called for the memory of a capture: {SETTLED} of {11 * (SETTLED - 1) + 1} calls"
    )
    for _ in range(64):
        pair.agree(1, 3, 5, 5)
    assert pair.part.captured == 2, "another size of batch, from now on"


def test_on_the_cpu_there_are_no_graphs():
    module, part = layers(), Part(blended)
    x, weight = torch.randn(2, 3, 5, 5), torch.ones(())
    for _ in range(SETTLED):
        part(module, x, weight)
    assert part.state == "runs: there are no graphs on 'cpu'"


def test_under_autocast_a_replay_has_its_dtypes_and_the_parameters_of_its_time():
    """A cast that torch kept from before the capture would be one of older parameters."""
    pair = Pair(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 3, 1)).train())
    pair.module.load_state_dict(pair.plain.state_dict())

    def compare():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = pair.step(torch.randn(2, 3, 5, 5))
        for got, want in zip(*found, strict=True):
            assert got.dtype is want.dtype
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)

    for _ in range(SETTLED):
        compare()
    assert pair.part.captured == 1, pair.part.state
    before = pair.tape.replayed
    with torch.no_grad():
        for module in (pair.plain, pair.module):
            for parameter in module.parameters():
                parameter.add_(0.5)
    compare()
    assert pair.tape.replayed > before
    replayed = pair.tape.replayed
    pair.met()
    assert pair.part.captured == 2, "of calls without autocast"
    assert pair.tape.replayed >= replayed


def test_gradients_of_another_dtype_than_the_result_are_copied_together_too():
    """A copy costs a launch, and a network has a thousand parameters."""
    pair = Pair(lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 3, 1)).train())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(SETTLED):
            pair.step(torch.randn(2, 3, 5, 5))
    (capture,) = (c for captures in pair.part._captures.values() for c in captures)
    recorded = capture._recorded
    assert recorded.out.dtype is torch.bfloat16
    recorded._back = lambda: None
    with Clones() as clones:
        found = recorded.backward(torch.zeros_like(recorded.out))
    assert {g.dtype for g in found} == {torch.float32}
    assert len(found) == 2 + 4
    assert clones.count == 1


class Clones(TorchDispatchMode):
    """Counts copies into new memory."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.clone.default
        return func(*args, **(kwargs or {}))
