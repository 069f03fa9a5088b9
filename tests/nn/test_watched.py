"""A model with a watch over its steps: copies, checkpoints, compilers, threads, and what ends the watch."""

import copy
import gc
import io
import pickle
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import nxcore
from nxcore.graphs.snapshot import Inside
from nxcore.nn import exchange, served, steps, watching
from nxcore.nn.exchange import RESTING, Watched, kind
from nxcore.nn.groups import Groups
from nxcore.nn.marks import differentiated
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.store.lock import Lock
from tests.nn.stepping import Clock, Make, Net, X, given_back, light, make, over, session, settle, train
from tests.null import fakes

__all__ = ["light", "make", "session"]  # fixtures


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_runs_again_what_it_ran(make: Make, reentrant: bool) -> None:
    class Outer(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.first = inner, nn.Conv2d(4, 4, 1)

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.inner, self.first(x), use_reentrant=reentrant)

    inner = make(BatchNorm2d=(0.05, 0.01))
    outer = Outer(inner)
    train(outer, 500)
    assert inner.plain == 0, "the model itself is within the checkpoint"
    inner, clock = Net(Clock(), {"BatchNorm2d": (0.05, 0.01)}), None
    outer = Outer(inner)
    nxcore.accelerate(outer, watch=False)
    clock = inner.clock[0]
    exchange.hold(outer, steps.Steps(outer, watching.default(), clock))
    train(outer, 1500)
    assert given_back(outer) == {"BatchNorm2d", "MaxPool2d", "AvgPool2d"}


def test_a_step_that_raises_ends_a_block(make: Make) -> None:
    model = make(BatchNorm2d=(0.02, 0.02))
    while not model.plain:
        train(model, 1)
    model.error = ValueError("mine")
    with pytest.raises(ValueError, match="mine"):
        model(X)
    model.error = None
    train(model, 1)
    assert type(model.pool) in RESTING
    while model.plain < 3:
        train(model, 1)
    model.error = torch.OutOfMemoryError("full")
    with pytest.raises(torch.OutOfMemoryError):
        model(X)
    model.error = None
    plain = model.plain
    train(model, 300)
    assert model.plain == plain
    assert over(model).report == ["training: not compared: a step ran out of memory"]


def test_what_is_requested_runs_nxcores(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    settle(model)
    with nxcore.use("torch"):
        train(model, 3)
        assert not given_back(model)
    train(model, 1)
    assert given_back(model)


def test_another_policy_is_no_request(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    with nxcore.policy("measure"):
        settle(model)
        assert given_back(model)
    train(model, 1)
    assert given_back(model)


def test_other_models_do_not_disturb(make: Make) -> None:
    model, other = make(BatchNorm2d=(0.05, 0.01)), make(BatchNorm2d=(0.05, 0.01))
    settle(other)
    assert given_back(other)
    for _ in range(300):
        train(model, 1)
        other.eval()
        other.train()
    assert given_back(model)
    other.double()
    plain = model.plain
    train(model, 20)
    assert model.plain == plain + 20, "it stays given back"


def test_other_plans_do_not_take_back(make: Make, session: Session) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    settle(model)
    session._forget()
    train(model, 1)
    assert given_back(model)


def test_tensors_that_are_moved_are_compared_anew(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    settle(model)
    model.double()
    x = X.double()
    train(model, 1, x)
    assert not given_back(model)
    train(model, 500, x)
    assert given_back(model)


def test_deterministic_algorithms_have_no_plain_steps(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    torch.use_deterministic_algorithms(True)
    try:
        train(model, 1000)
    finally:
        torch.use_deterministic_algorithms(False)
    assert model.plain == 0


def test_several_threads_end_it(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    for _ in range(4):
        thread = threading.Thread(target=train, args=(model, 3))
        thread.start()
        thread.join()
        train(model, 3)
    assert over_is_gone(model)


def over_is_gone(model: nn.Module) -> bool:
    held: Any = exchange.watch_within(model)
    return (held is None or bool(held.ended)) and not given_back(model)


def test_a_model_that_calls_itself(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))

    def again(*_: Any) -> None:
        pre.remove()
        model(X)

    pre = model.norm.register_forward_pre_hook(again)
    model(X).sum().backward()
    settle(model)
    assert given_back(model)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: s.hold(Lock({}), "frozen"), "the policy is 'frozen'"),
        (lambda s: s.hold(Lock({"a": {"b": "c"}}), "auto"), "a lock fixes the choices"),
    ],
)
def test_where_choices_are_fixed_nothing_is_compared(
    make: Make, session: Session, change: Callable[[Session], None], why: str
) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    change(session)
    train(model, 200)
    assert over(model).report == [f"training: not compared: {why}"]
    assert model.plain == 0


def test_ranks_do_not_compare(make: Make, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    train(model, 200)
    assert over(model).report == ["training: not compared: ranks would choose apart"]


def test_a_compiled_part_is_not_compared(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    model.pool.compile(backend="eager")
    train(model, 200)
    assert over(model).report == ["training: not compared: a part of it is compiled"]


def test_a_compiled_model_is_not_watched(make: Make) -> None:
    torch._dynamo.reset()  # other tests' modules count for its limit of recompilations
    model = make(BatchNorm2d=(0.05, 0.01))
    compiled = torch.compile(model.mean, backend="eager")
    compiled(X)
    whole = nn.Sequential(nn.MaxPool2d(2))
    nxcore.accelerate(whole)
    assert isinstance(whole, Watched)
    out = torch.compile(whole, fullgraph=True, backend="eager")(X)
    assert torch.equal(out, nn.functional.max_pool2d(X, 2))
    whole(X)
    assert over_is_gone(whole)
    nxcore.restore(whole)
    assert type(whole) is nn.Sequential


def test_a_copy_a_pickle_and_a_saved_model_are_not_watched(session: Session) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.MaxPool2d(2))
    nxcore.accelerate(model)
    assert isinstance(model, Watched)
    assert type(model).__name__ == "Sequential"
    assert repr(model) == repr(copy.deepcopy(model))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (
        copy.copy(model),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ):
        assert exchange.watch_within(other) is None
        assert torch.equal(other(X), model(X))
        nxcore.restore(other)
        assert type(other) is nn.Sequential
    replica = model._replicate_for_data_parallel()
    replica[1](X)


def test_a_served_root_rests_and_copies_as_before(session: Session) -> None:
    model = nn.Sequential(
        nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)
    )
    nxcore.accelerate(model)
    assert kind(model) is nxcore.nn.Sequential
    steps.exchange.become(model, RESTING[nxcore.nn.Sequential])
    assert model.reason
    assert kind(copy.deepcopy(model)) is nxcore.nn.Sequential
    nxcore.restore(model)
    assert type(model) is nn.Sequential


def test_it_is_taken_away_with_what_was_accelerated(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    settle(model)
    nxcore.restore(model)
    assert type(model) is Net
    assert [type(m) for m in model.children()] == [nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d]
    assert "norm" in nxcore.accelerate(model).replaced
    inner = exchange.watch_of(model)
    outer = nn.Sequential(model)
    nxcore.accelerate(outer)
    assert exchange.watch_of(model) is None
    assert inner.ended
    assert exchange.watch_of(outer)
    nxcore.accelerate(outer, watch=False)
    assert exchange.watch_of(outer) is None


def test_restoring_within_a_block_gives_torchs(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.05))
    while not model.plain:
        train(model, 1)
    nxcore.restore(model)
    assert [type(m) for m in model.modules()] == [Net, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d]


def test_it_holds_no_model(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    settle(model)
    watch, known = over(model), weakref.ref(model)
    del model
    gc.collect()
    assert known() is None
    assert watch._groups.resting == {}


def test_settings_switch_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = Session(Settings(watch=False), fakes.registry(fakes.backend()))
    monkeypatch.setattr(watching, "default", lambda: quiet)
    model = nn.Sequential(nn.MaxPool2d(2))
    nxcore.accelerate(model)
    assert type(model) is nn.Sequential
    assert not Settings.from_environment({"NXCORE_WATCH": "0"}).watch
    assert Settings.from_environment({}).watch


def test_a_model_without_anything_to_exchange_is_not_watched(session: Session) -> None:
    for model in (nn.Sequential(nn.ReLU()), nn.MaxPool2d(2)):
        nxcore.accelerate(model)
        assert not isinstance(model, Watched)


class Registered(nn.Module):
    """Keeps a registry of its subclasses, as some libraries do."""

    known: ClassVar[list[type]] = []

    def __init_subclass__(cls, *, name: str) -> None:
        Registered.known.append(cls)

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x)


def test_a_registry_of_subclasses_does_not_see_the_watch(session: Session) -> None:
    model = Registered()
    nxcore.accelerate(model)
    assert isinstance(model, Watched)
    assert Registered.known == []
    assert model(X).shape == (2, 4, 4, 4)


def test_results_of_any_nesting_are_followed() -> None:
    x = torch.ones(2, requires_grad=True)
    done = differentiated({"a": [2 * x], "b": (torch.ones(1), None)})
    assert not done()
    (3 * x).sum().backward()
    assert not done()
    y = 2 * x
    done = differentiated({"a": [y]})
    y.sum().backward()
    assert done()
    assert differentiated(torch.ones(1)) is None
    assert not differentiated(object())()


def test_a_class_that_something_else_changed_is_left(make: Make) -> None:
    model = make(BatchNorm2d=(0.05, 0.01))
    settle(model)
    model.pool.__class__ = own = type("Own", (type(model.pool),), {})
    outer = type(model)
    model.__class__ = type("Sharded", (outer,), {})
    nxcore.restore(model)
    assert type(model.pool) is own
    assert over_is_gone(model)
    assert exchange.watch_within(model).ended
    model(X)


def test_a_capture_outlives_a_block(make: Make) -> None:
    """A replayed cell compares the classes and attributes within it with those of its capture."""
    model, groups = make(), Groups()
    served.left(model.norm)  # as where torch served a call
    inside = Inside(nn.Sequential(model.norm, model.pool, model.mean))
    for _ in range(2):
        groups.rest(model, groups.present(model))
        assert not inside.holds()
        train(model, 1)
        groups.rest(model, frozenset())
        assert inside.holds()
        model.eval()
        model.train()
        assert inside.holds()


@pytest.mark.gpu
def test_on_a_gpu_nothing_waits_for_the_device(session: Session, monkeypatch: Any, cuda_answers: Any) -> None:
    def slow(self: Any, x: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(2_000_000)
        return nn.MaxPool2d.forward(self, x)

    def refuse(*_: Any) -> None:
        raise AssertionError("synchronized")

    monkeypatch.setattr(nxcore.nn.MaxPool2d, "forward", slow)
    monkeypatch.setattr(exchange.RESTING[nxcore.nn.MaxPool2d], "forward", nn.MaxPool2d.forward)
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.MaxPool2d(2)).cuda()
    nxcore.accelerate(model)
    x = X.cuda()
    train(model, 24, x)  # graphs and first launches of kernels, which are waited for
    cuda_answers(synchronize=refuse)
    monkeypatch.setattr(torch.cuda.Event, "synchronize", refuse)
    began = time.monotonic()
    while time.monotonic() - began < 60 and not over(model)._modes[True, False].over:
        train(model, 1, x)
    assert given_back(model) == {"MaxPool2d"}, over(model).report
    graph, static = torch.cuda.CUDAGraph(), x.clone()
    monkeypatch.undo()
    with torch.no_grad(), torch.cuda.graph(graph):
        model(static)
        assert not given_back(model), "what is captured is nxcore's"
    train(model, 1, x)
    assert given_back(model)
