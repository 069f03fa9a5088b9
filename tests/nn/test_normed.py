"""A batch norm in evaluation and the activation after it: when one operator computes both."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import nxcore
from nxcore.expression import normed as expressions
from nxcore.nn import normed
from nxcore.nn.served import AFTER, RESTS
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import Problem
from nxcore.trust.truth import Truth, agreement
from tests.null import fakes
from tests.stand_ins import stand_in
from tests.table import for_each

normed_has = stand_in(normed)

ACTIVATIONS: list[nn.Module] = [
    nn.ReLU(),
    nn.ReLU(inplace=True),
    nn.LeakyReLU(0.3),
    nn.ELU(1.7),
    nn.GELU(),
    nn.GELU(approximate="tanh"),
    nn.SiLU(inplace=True),
    nn.Mish(),
    nn.Hardswish(),
]


def chain(activation: nn.Module | None = None, norm: nn.Module | None = None) -> nn.Sequential:
    """Return a convolution, a norm with statistics of its own, and an activation, in evaluation."""
    norm = norm or nn.BatchNorm2d(6, eps=1e-3)
    for t in (getattr(norm, name, None) for name in normed.STATE):
        if t is not None:
            t.data.uniform_(0.5, 2.0)
    return nn.Sequential(nn.Conv2d(4, 6, 3), norm, activation or nn.SiLU()).eval()


SPECS = [*fakes.SPECS.values(), *expressions.normed("silu")]


@pytest.fixture
def ran(normed_has) -> list[str]:
    """Serve pairs by the chain of the expression; return the names of the operators that ran."""
    names: list[str] = []

    def operator(name: str) -> object:
        specs = expressions.normed(name.removeprefix("normed_"))

        def run(*args: object) -> object:
            names.append(name)
            return specs[0].reference.__wrapped__(*args)  # type: ignore[attr-defined]  # see as_modules

        session = fakes.session(fakes.backend("fake", fakes.kernel(name, run)), specs=specs)
        return session.op(name, backend="fake")

    normed_has(operator=operator, FEWEST=1)
    return names


@for_each("activation", ACTIVATIONS, ids=str)
def test_one_operator_computes_both(activation: nn.Module, ran: list[str], device: torch.device) -> None:
    theirs = chain(activation).to(device)
    own = copy.deepcopy(theirs)
    assert nxcore.accelerate(own, watch=False).replaced[""] == "Sequential"
    x = torch.randn(2, 4, 9, 9, device=device)
    with torch.no_grad():
        torch.testing.assert_close(own(x), theirs(x), rtol=1e-4, atol=1e-4)
    assert len(set(ran)) == 1
    assert ran[0].startswith("normed_")


@for_each("cls", [c for c in normed.ACTIVATIONS if c.__module__.startswith("nxcore")])
def test_an_activation_of_ours_follows_a_norm_too(cls: type[nn.Module], ran: list[str]) -> None:
    own = chain(cls())
    assert nxcore.accelerate(own, watch=False).replaced[""] == "Sequential"
    with torch.no_grad():
        own(torch.randn(2, 4, 9, 9))
    assert len(set(ran)) == 1


LEFT: dict[str, Callable[[], nn.Sequential]] = {
    "training": lambda: chain().train(),
    "statistics of the batch": lambda: chain(norm=nn.BatchNorm2d(6, track_running_stats=False)),
    "no weights": lambda: chain(norm=nn.BatchNorm2d(6, affine=False)),
    "another activation": lambda: chain(nn.Softplus()),
    "another norm": lambda: chain(norm=nn.InstanceNorm2d(6)),
}


@for_each("case", LEFT)
def test_torch_computes_other_chains(case: str, ran: list[str]) -> None:
    theirs = LEFT[case]()
    own = copy.deepcopy(theirs)
    nxcore.accelerate(own, watch=False)
    x = torch.randn(2, 4, 9, 9)
    with torch.no_grad():
        torch.testing.assert_close(own(x), theirs(x))
    assert not ran


def test_gradients_hooks_and_autocast_leave_it_to_torch(ran: list[str]) -> None:
    own = chain()
    nxcore.accelerate(own, watch=False)
    x = torch.randn(2, 4, 9, 9)
    own(x).sum().backward()
    assert own[0].weight.grad is not None
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert own(x).dtype is torch.bfloat16
    seen: list[object] = []
    handle = own[1].register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        own(x)
    handle.remove()
    assert seen
    assert not ran
    with torch.inference_mode():
        own(x)
    assert ran


def test_what_comes_before_stays_as_it_was(ran: list[str]) -> None:
    """An activation in place wrote into the norm's result, never into what the norm was given."""
    own = nn.Sequential(*list(chain(nn.ReLU(inplace=True)))[1:]).eval()
    nxcore.accelerate(own, watch=False)
    x = torch.randn(2, 6, 5, 5)
    kept = x.clone()
    with torch.no_grad():
        own(x)
    assert ran
    assert torch.equal(x, kept)


def test_few_elements_are_left_to_torch(ran: list[str], normed_has) -> None:
    normed_has(FEWEST=2 * 6 * 7 * 7)
    own = chain()
    nxcore.accelerate(own, watch=False)
    with torch.no_grad():
        own(torch.randn(1, 4, 9, 9))
        assert not ran
        own(torch.randn(2, 4, 9, 9))
    assert ran


def test_it_rests_in_training_and_wakes_in_evaluation() -> None:
    own = chain()
    nxcore.accelerate(own, watch=False)
    assert own.train().reason == "it rests: torch serves training"
    assert own.eval().reason == ""


def test_it_rests_where_torch_wins(normed_has) -> None:
    known = fakes.registry(fakes.backend("none", fakes.kernel("add")), specs=SPECS)
    session = Session(Settings(policy="frozen"), known)
    normed_has(operator=session.op, FEWEST=1)
    own = chain()
    nxcore.accelerate(own, watch=False)
    x = torch.randn(1, 4, 9, 9)
    with torch.no_grad():
        for _ in range(2 * AFTER):
            own(x)
    assert own.reason == RESTS


@pytest.mark.parametrize("name", dict.fromkeys(normed.ACTIVATIONS.values()), ids=str)
def test_the_reference_is_the_modules(name: tuple[str, tuple[str, ...]]) -> None:
    spec = nxcore.op(f"normed_{name[0]}").spec
    x, state = torch.randn(2, 6, 5, 5), [torch.rand(6, 1, 1) + 0.5 for _ in normed.STATE]
    args = (x, *state, *(p.default for p in spec.params[5:]))
    chained = spec.reference.__wrapped__  # type: ignore[attr-defined]  # see as_modules
    torch.testing.assert_close(spec.reference(*args), chained(*args), rtol=1e-5, atol=1e-5)
    assert agreement(lambda *_: chained(*args), spec, args, Truth.of(spec, args)).ok
    assert Problem.of(spec, args).outputs.shape == x.shape
