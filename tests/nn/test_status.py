"""A module is replaced or left, a replaced one is served, torch's or undecided; sums add up."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import nxcore
from nxcore.nn import exchange, steps
from nxcore.nn.swap import OURS, TORCHS
from nxcore.offline import gains
from nxcore.offline.fitting import fits, operators
from nxcore.offline.survey import decided
from nxcore.store.pages import Page
from nxcore.store.wisdom import key
from tests.nn import networks
from tests.nn.conftest import serve_by
from tests.nn.test_survey import X, network, session
from tests.null import fakes

__all__ = ["session"]  # a fixture

POLICIES = "measure", "auto", "frozen"
MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "small": (network, X),
    "mobilenet": (networks.mobilenet, torch.randn(2, 3, 16, 16)),
    "resnet": (networks.resnet, torch.randn(2, 3, 16, 16)),
    "inception": (networks.inception, torch.randn(2, 3, 16, 16)),
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU()), torch.randn(2, 3, 2, 2)),
}


def held(found: nxcore.offline.status.Status, model: nn.Module) -> None:
    """Every sum of a status is that of its parts, and no line is too long for a terminal."""
    swap = found.modules
    assert not swap.replaced.keys() & swap.left.keys()
    for name, module in model.named_modules():
        cls = exchange.awake(module)
        known = cls in TORCHS or cls in OURS or not list(module.children())
        holds = OURS[TORCHS.get(cls, cls)].concerns(module) if TORCHS.get(cls, cls) in OURS else True
        assert (name in swap.replaced) + (name in swap.left) == (known and holds), name
    assert [row.name for row in found.served] == list(swap.replaced)
    assert sum(found.shares.values()) == len(swap.replaced)
    text = str(found)
    shares = ", ".join(f"{n} {share}" for share, n in found.shares.items())
    told = f"{len(swap.replaced)} replaced" + (f" ({shares})" if swap.replaced else "")
    assert f"modules: {told}, {len(swap.left)} left" in text
    assert max(map(len, text.splitlines())) <= 80
    assert found.saved_ms == pytest.approx(
        max(0.0, sum(row.calls * (row.saved_us or 0.0) for row in found.served) / 1e3), abs=1e-6
    )


@pytest.fixture
def torchs(monkeypatch, as_default):
    """A session without any kernel but torch's."""
    found = fakes.session()
    as_default(found)
    serve_by(found, monkeypatch)
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_sums_add_up_at_every_time(name: str, policy: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("session" if name == "small" else "torchs")
    make, x = MODELS[name]
    model = make()
    model(x)  # a lazy module is of another class before its first call
    often = 40 if name in ("small", "mlp") else 3
    with nxcore.policy(policy):
        held(nxcore.status(model), model)
        swap = nxcore.accelerate(model)
        for calls in (0, 1, often):
            for _ in range(calls):
                model(x).sum().backward()
            for found in (nxcore.status(model), nxcore.status(model, x)):
                held(found, model)
                assert (found.modules.replaced, found.modules.left) == (swap.replaced, swap.left)
        assert nxcore.accelerate(model) == swap
    assert nxcore.restore(model).replaced == swap.replaced


def test_where_nothing_is_replaced_the_reason_is_the_next_line() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4))
    before = nxcore.status(model).next
    nxcore.accelerate(model)
    for found in (nxcore.status(model), nxcore.status(model, torch.ones(2, 4))):
        assert found.next == before
        assert found.next.startswith("nothing: accelerate replaces none of its modules; ")
        assert not found.rows


def test_the_calls_are_the_models_own(session) -> None:
    """A race of forward and backward together runs in one of them."""
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.BatchNorm2d(4))
    nxcore.accelerate(model, watch=False)
    session.hold(session.chooser.lock, "measure")
    found = [nxcore.status(model, X) for _ in range(3)]
    assert session.chooser.pairs.made, "they were measured in one of the steps"
    assert {row.calls for status in found for row in status.rows} == {1}


@pytest.mark.usefixtures("session")
def test_modules_are_as_between_blocks_of_plain_steps() -> None:
    model = network()
    swap = nxcore.accelerate(model)
    watch = exchange.watch_of(model)
    assert isinstance(watch, steps.Steps)
    mode = steps.Mode(given=frozenset({"Conv2d"}))
    watch._modes[True, False] = watch._mode = mode
    watch._apply(model, mode.given)
    assert exchange.kind(model[0]) in exchange.AWAKE, "it runs plain"
    assert nxcore.status(model).modules.replaced == swap.replaced


@pytest.mark.usefixtures("session")
def test_without_an_input_a_module_is_what_the_problems_that_fit_it_are() -> None:
    model = network()
    nxcore.accelerate(model, watch=False)
    assert nxcore.status(model).shares == {"served": 0, "torch": 0, "undecided": 4}
    with nxcore.policy("measure"), torch.no_grad():
        model(X)
    found = nxcore.status(model)
    assert {row.name: row.kernels for row in found.served if row.state == "kernel"} == {
        "0": ("fake",),
        "3": ("fake",),
    }
    assert found.shares == {"served": 2, "torch": 2, "undecided": 0}
    assert not any(row.saved_us for row in found.served), "no step was run"


def test_a_problem_fits_a_module_of_its_parameters_alone() -> None:
    conv = nn.Conv2d(4, 4, 3, groups=4, padding=1)
    nxcore.accelerate(conv)
    spec = nxcore.op("depthwise_conv2d").spec

    def facts(channels: int, padding: int) -> dict[str, object]:
        args = spec.bind(torch.ones(1, channels, 9, 9), torch.ones(channels, 1, 3, 3), padding=padding)
        return key(nxcore.spec.problem.Problem.of(spec, args))

    assert operators(conv) == ("depthwise_conv2d",)
    assert fits(conv, facts(4, 1))
    assert not fits(conv, facts(8, 1))
    assert not fits(conv, facts(4, 0))
    assert not fits(nn.MaxPool2d(2), facts(4, 1))
    assert operators(nn.Linear(2, 2)) == ()


def test_a_dry_run_changes_nothing_and_says_the_gain_on_record(session) -> None:
    model = network()
    x = X.clone()
    classes, state = [type(m) for m in model.modules()], copy.deepcopy(model.state_dict())
    marks = [set(vars(m)) for m in model.modules()]
    blank = nxcore.accelerate(model, dry_run=True)
    assert blank.gains == dict.fromkeys(("0", "1", "3", "4"))
    assert "\n  0: Conv2d, gain unknown" in str(blank)
    seen = nxcore.accelerate(model, (x,), dry_run=True)
    assert set(seen.gains.values()) == {None}
    assert (session.chooser.made, [type(m) for m in model.modules()]) == (0, classes)
    assert [set(vars(m)) for m in model.modules()] == marks
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    other = network()
    swap = nxcore.accelerate(other)
    assert (blank.replaced, blank.left) == (swap.replaced, swap.left)
    with nxcore.policy("measure"), torch.no_grad():
        other.eval()(x)
        known = nxcore.accelerate(model.eval(), (x,), dry_run=True)
    assert known.gains["0"] == pytest.approx(10, rel=0.1)
    assert known.gains["4"] == 1
    assert "would replace 4, left 1\n  0: Conv2d, 10.00 times as fast" in str(known)
    for problem in decided(session):
        decision = session.chooser.known(problem).decision
        if decision.rule != "prior":
            session.wisdom.write(problem, Page(decision, None, {}))
    told = nxcore.accelerate(model, dry_run=True).gains
    assert (told["0"], told["4"]) == (pytest.approx(10, rel=0.1), 1)
    assert nxcore.accelerate(nn.Conv2d(8, 8, 3, groups=8), dry_run=True).gains == {"": None}
    assert gains.dry_run(nn.MaxPool2d(7)).gains == {"": None}


def test_a_dry_run_takes_what_is_no_module_for_an_error() -> None:
    with pytest.raises(nxcore.errors.InvalidInputError, match=r"model must be a torch\.nn\.Module, got 3,"):
        nxcore.accelerate(3, dry_run=True)  # type: ignore[arg-type]  # that is the test
