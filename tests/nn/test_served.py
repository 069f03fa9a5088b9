"""A module rests while torch serves it for good: its forward is torch's own. It wakes when that may end."""

import copy
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import nxcore
from nxcore import context
from nxcore.nn import modules, sequential, served
from nxcore.nn.exchange import kind
from nxcore.nn.served import AFTER, AWAKE, RESTING, RESTS, awake
from nxcore.session import Session
from nxcore.settings import Settings
from tests.nn.conftest import OPERATORS, serve_by
from tests.null import fakes
from tests.table import for_each


def depthwise(**changed: Any) -> nn.Conv2d:
    return nn.Conv2d(4, 4, 3, padding=1, groups=4, **changed)


MAKE: dict[str, Callable[[], nn.Module]] = {
    "MaxPool2d": lambda: nn.MaxPool2d(3, 1, 1),
    "AvgPool2d": lambda: nn.AvgPool2d(3, 1, 1),
    "AdaptiveAvgPool2d": lambda: nn.AdaptiveAvgPool2d(1),
    "AdaptiveMaxPool2d": lambda: nn.AdaptiveMaxPool2d(1),
    "Conv2d": depthwise,
    "BatchNorm2d": lambda: nn.BatchNorm2d(4),
    "Softmax": lambda: nn.Softmax(1),
    "LayerNorm": lambda: nn.LayerNorm(8),
    "RMSNorm": lambda: nn.RMSNorm(8),
    "GroupNorm": lambda: nn.GroupNorm(2, 4),
    "Sequential": lambda: nn.Sequential(
        nn.ReLU(), depthwise(bias=False), nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)
    ),
}
MODES = ("plain", "grad", "autocast", "eval", "half")


@pytest.fixture
def torchs(monkeypatch: pytest.MonkeyPatch) -> Session:
    """Let torch serve all, and nothing be learnt."""
    session = Session(Settings(policy="frozen"), fakes.registry(fakes.backend()))
    serve_by(session, monkeypatch)
    return session


def rests(module: nn.Module) -> bool:
    return type(module) in AWAKE


@pytest.fixture
def resting(torchs: Session) -> nn.Module:
    pool = nn.Sequential(nn.MaxPool2d(2))
    nxcore.accelerate(pool)
    call(pool[0], AFTER)
    assert rests(pool[0])
    return pool[0]


def call(module: nn.Module, times: int, x: torch.Tensor | None = None) -> Any:
    for _ in range(times):
        out = module(torch.ones(2, 4, 8, 8) if x is None else x)
    return out


@pytest.mark.usefixtures("torchs")
@for_each("mode", MODES)
@for_each("name", MAKE)
def test_where_torch_serves_for_good_a_call_is_torchs_alone(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if mode == "half" else torch.float32
    theirs = MAKE[name]().to(dtype)
    own = copy.deepcopy(theirs)
    nxcore.accelerate(own, watch=False)  # whose blocks depend on the clock; see test_steps
    x = torch.randn(2, 4, 8, 8, dtype=dtype, requires_grad=mode == "grad")
    found = []
    with torch.set_grad_enabled(mode == "grad"), torch.autocast("cpu", enabled=mode == "autocast"):
        for module in (theirs, own):
            module.train(mode != "eval")
            for _ in range(AFTER + 10):  # a crossing meets the backward pass first
                out = module(x)
                if mode == "grad":
                    out.sum().backward()
            found.append([out, *module.parameters(), *module.buffers()])
    torch.testing.assert_close(*found, rtol=0, atol=0)
    for module in own.modules():
        if type(module) in RESTING or rests(module):
            assert rests(module)
            assert type(module).forward is getattr(nn, type(module).__name__).forward
    monkeypatch.setattr(served.Operator, "miss", None)
    for operator in (*(getattr(modules, f"_{n}") for n in OPERATORS), sequential._block):
        monkeypatch.setattr(type(operator), "__call__", None)
        monkeypatch.setattr(type(operator), "by_kernel", None)
    own(x)


@for_each("name", MAKE)
def test_what_a_kernel_serves_does_not_rest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_by(fakes.session(fakes.backend()), monkeypatch, "fake")
    module = MAKE[name]()
    nxcore.accelerate(module)
    with torch.no_grad():
        call(module, 2 * AFTER)
    assert kind(module) in RESTING


@pytest.mark.parametrize("gradients", [False, True])
def test_while_its_kernels_are_prepared_a_module_is_awake(
    gradients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rests once torch has won."""
    session = Session(Settings(), fakes.registry(fakes.backend()))
    serve_by(session, monkeypatch)
    jobs: list[Callable[[], None]] = []
    monkeypatch.setattr(session.chooser.learner.preparing, "add", lambda run, _heat=0.0: jobs.append(run))
    norm = nn.BatchNorm2d(4)
    nxcore.accelerate(norm, watch=False)
    x = torch.randn(2, 4, 8, 8, requires_grad=gradients)

    def step(times: int) -> None:
        for _ in range(times):
            out = norm(x)
            if gradients:
                out.sum().backward()

    with torch.set_grad_enabled(gradients):
        step(4 * AFTER)
        assert not rests(norm)
        assert jobs, "its kernels are to be prepared"
        explorations = session.chooser.explorations()
        for found in explorations:
            found.begin(lambda: None)
        step(1)
        for found in explorations:
            found.end()
        step(2 * AFTER)
        assert rests(norm)
        assert norm.reason == RESTS


def test_what_may_still_change_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Settings(policy="auto"), fakes.registry(fakes.backend()))
    serve_by(session, monkeypatch)
    monkeypatch.setattr(served.Operator, "settled", lambda *_, **__: False)
    monkeypatch.setattr(served.Operator, "planned", lambda *_: None)
    pool = nn.MaxPool2d(2)
    nxcore.accelerate(pool)
    call(pool, 2 * AFTER)
    assert type(pool) is nxcore.nn.MaxPool2d


def test_an_exploration_is_not_settled_before_it_is_over() -> None:
    session = Session(Settings(policy="auto"), fakes.registry(fakes.backend()))
    op, x = session.op("entropy"), torch.rand(3, 5)
    op(x)
    assert not op.settled(x)
    with session.policy("frozen"):
        op(torch.rand(4, 5))
        assert op.settled(torch.rand(4, 5))
    assert not op.settled(torch.rand(7, 5))  # never met


def test_calls_that_a_kernel_serves_between_begin_the_count_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    session = fakes.session(fakes.backend())
    serve_by(session, monkeypatch)
    pool, op, small, large = (
        nn.MaxPool2d(2),
        session.op("max_pool2d"),
        torch.ones(1, 1, 4, 4),
        torch.ones(8, 8, 8, 8),
    )
    nxcore.accelerate(pool)
    for x in (small, large):
        pool(x)
    given = op.spec.bind(large, 2, 2)
    op.replan(op.key(*given), op.spec.reference)
    given = op.spec.bind(small, 2, 2)
    op.replan(op.key(*given), lambda *args: op.spec.reference(*args))
    for _ in range(3):
        pool(small)
        call(pool, AFTER - 1, large)
    assert type(pool) is nxcore.nn.MaxPool2d
    call(pool, AFTER, large)
    assert rests(pool)


@pytest.mark.usefixtures("torchs")
def test_a_preference_ends_with_its_block_so_nothing_rests_in_it() -> None:
    pool = nn.MaxPool2d(2)
    nxcore.accelerate(pool)
    with nxcore.use("torch"):
        call(pool, 2 * AFTER)
    assert not rests(pool)


def _use() -> Iterator[None]:
    with nxcore.use("torch"):
        yield


WAKES: dict[str, Callable[[nn.Module, Any], Any]] = {
    "another mode": lambda m, _: m.eval(),
    "another dtype": lambda m, _: m.half(),
    "accelerate": lambda m, _: nxcore.accelerate(m),
    "a preference": lambda *_: next(_use()),
    "a policy": lambda *_: nxcore.policy("measure").__enter__(),
    "plans that are dropped": lambda _, session: session._forget(),
}


@pytest.mark.parametrize("what", WAKES)
def test_it_is_looked_at_again_when_its_decision_may_not_hold(
    what: str, resting: nn.Module, torchs: Session
) -> None:
    token = context.PREFERENCE.set(context.PREFERENCE.get())
    try:
        WAKES[what](resting, torchs)
    finally:
        context.PREFERENCE.reset(token)
    assert type(resting) is nxcore.nn.MaxPool2d
    call(resting, AFTER)
    assert rests(resting)


def test_the_same_mode_again_wakes_nothing(resting: nn.Module) -> None:
    resting.train()
    assert rests(resting)


def test_a_recording_sees_its_calls(resting: nn.Module, tmp_path: Any, torchs: Session) -> None:
    with torchs.record(tmp_path / "problems.jsonl"):
        resting(torch.ones(1, 1, 4, 4))
    assert '"max_pool2d"' in (tmp_path / "problems.jsonl").read_text()


def test_a_copy_and_a_pickle_are_awake(resting: nn.Module) -> None:
    text = pickle.dumps(resting)
    for other in (copy.deepcopy(resting), copy.copy(resting), pickle.loads(text)):
        assert type(other) is nxcore.nn.MaxPool2d
        assert torch.equal(other(torch.ones(1, 1, 4, 4)), torch.ones(1, 1, 2, 2))
    assert rests(resting)
    assert repr(resting) == repr(nn.MaxPool2d(2))


def test_what_rests_is_told_and_can_be_restored(resting: nn.Module) -> None:
    found = nxcore.status(resting)
    assert (found.modules.left, found.modules.replaced) == ({}, {"": "MaxPool2d"})
    assert [(row.state, row.reason) for row in found.served] == [("rests", served.RESTS)]
    assert resting.reason == served.RESTS
    assert nxcore.accelerate(resting).replaced == {"": "MaxPool2d"}
    call(resting, AFTER)
    assert rests(resting)
    assert nxcore.restore(resting).replaced == {"": "MaxPool2d"}
    assert type(resting) is nn.MaxPool2d
    assert vars(resting).keys() == vars(nn.MaxPool2d(2)).keys()


def test_a_norm_rests_in_evaluation_and_only_there() -> None:
    norm = nn.BatchNorm2d(4).eval()
    assert nxcore.accelerate(norm).replaced == {"": "BatchNorm2d"}
    assert rests(norm)
    assert norm.reason == served.IDLES.format("evaluation")
    assert type(norm.train()) is nxcore.nn.BatchNorm2d
    assert norm.reason == ""
    assert rests(norm.eval())
    assert rests(norm.half())  # looked at, and the mode is the same
    assert rests(nxcore.nn.BatchNorm2d(4).eval())


def test_a_class_that_something_else_changed_is_left(resting: nn.Module, torchs: Session) -> None:
    conv = depthwise()
    nxcore.accelerate(conv)
    call(conv, AFTER)
    assert rests(conv)
    parametrizations.weight_norm(conv)
    changed = type(conv)
    conv.eval().train()
    torchs._forget()
    call(conv, AFTER)
    assert type(conv) is changed


class Own(nxcore.nn.MaxPool2d):
    """Somebody's subclass of ours."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x) + 1


@pytest.mark.usefixtures("torchs")
def test_a_subclass_keeps_its_forward() -> None:
    own = Own(2)
    assert call(own, 2 * AFTER).eq(2).all()
    assert type(own) is Own


@pytest.mark.usefixtures("torchs")
def test_an_attribute_that_changes_later_counts() -> None:
    pool = nn.AdaptiveAvgPool2d(1)
    nxcore.accelerate(pool)
    pool.output_size = 2
    assert call(pool, 1).shape[-2:] == (2, 2)
    call(pool, AFTER)
    pool.output_size = 1
    assert call(pool, 1).shape[-2:] == (1, 1)


def test_it_compiles_as_torchs(resting: nn.Module) -> None:
    x = torch.randn(1, 1, 4, 4)
    compiled = torch.compile(resting, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), nn.functional.max_pool2d(x, 2))
    resting.eval()
    assert not rests(resting)
    assert torch.equal(compiled(x), nn.functional.max_pool2d(x, 2))


def test_what_is_gone_is_not_held(resting: nn.Module) -> None:
    pool = nn.MaxPool2d(2)
    nxcore.accelerate(pool)
    call(pool, AFTER)
    before = len(served._resting)
    del pool
    assert len(served._resting) == before - 1


def test_every_class_has_a_sibling_of_its_name() -> None:
    for cls, sibling in RESTING.items():
        assert sibling.__name__ == cls.__name__
        assert issubclass(sibling, cls)
        assert awake(sibling.__new__(sibling)) is cls


LEARNT = {"AvgPool2d": lambda: nn.AvgPool2d(3, 1, 1), "LayerNorm": lambda: nn.LayerNorm(6)}


@for_each("layer", LEARNT)
def test_a_checkpoint_saves_as_much_in_both_runs_whatever_is_chosen_between(layer: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 1), LEARNT[layer]())
    nxcore.accelerate(model)
    for _ in range(6):
        checkpoint(model, torch.randn(2, 2, 6, 6), use_reentrant=False).sum().backward()


def test_a_plan_holds_no_graph_of_the_call_that_it_was_made_for() -> None:
    pool, graphs = nxcore.nn.AvgPool2d(3), []
    for _ in range(6):
        x = torch.ones(2, 2, 6, 6, requires_grad=True) * 2
        pool(x).sum().backward()
        graphs.append(weakref.ref(x))
    del x
    assert [graph() for graph in graphs] == [None] * 6
