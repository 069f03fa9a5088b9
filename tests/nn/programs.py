"""What a program does to a model, done to a plain one and to one of nxcore's; both must come to the same."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import nxcore
import nxcore.nas
from tests.nn.cross_entropy import targeted
from tests.nn.embedding import indexed

Row = Callable[[Any, Tensor], Any]
"""Takes a model and its input; returns what is compared."""


MAKE: dict[type[nn.Module], Callable[[], nn.Module]] = {
    nn.MaxPool2d: lambda: nn.MaxPool2d(2),
    nn.AvgPool2d: lambda: nn.AvgPool2d(2),
    nn.AdaptiveAvgPool2d: lambda: nn.AdaptiveAvgPool2d(1),
    nn.AdaptiveMaxPool2d: lambda: nn.AdaptiveMaxPool2d(1),
    nn.Conv2d: lambda: nn.Conv2d(4, 4, 3, groups=4),
    nn.BatchNorm2d: lambda: nn.BatchNorm2d(4),
    nn.Softmax: lambda: nn.Softmax(1),
    nn.LogSoftmax: lambda: nn.LogSoftmax(1),
    nn.CrossEntropyLoss: lambda: targeted(nn.CrossEntropyLoss()),
    nn.Embedding: lambda: indexed(nn.Embedding(5, 4)),
    nn.LayerNorm: lambda: nn.LayerNorm(16),
    nn.RMSNorm: lambda: nn.RMSNorm(16),
    nn.GroupNorm: lambda: nn.GroupNorm(2, 4),
    nn.Sequential: lambda: nn.Sequential(nn.BatchNorm2d(4), nn.SiLU()),
}
"""Class -> makes a module that an operator can serve, for images of four channels; others take nothing."""


class Mixed(nn.Module):
    """A mixed operation, as search networks have it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        separable = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self._ops = nn.ModuleList([nn.Identity(), nn.MaxPool2d(3, 1, 1), separable])

    def forward(self, x: Tensor, weights: Tensor) -> Any:
        return sum(weights[i] * op(x) for i, op in enumerate(self._ops))


class Net(nn.Module):
    """A module of each kind that is replaced, and a mixed operation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4), nn.SiLU())
        self.alpha = nn.Parameter(torch.tensor([0.1, 0.5, 0.4]))
        self.mixed = Mixed(4)
        self.pool, self.mean = nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        x = self.mixed(self.stem(x), self.alpha)
        out: Tensor = self.head(self.mean(self.pool(x)))
        return out


def image() -> Tensor:
    """Return the input of a network."""
    return torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))


def accelerated(model: nn.Module) -> None:
    """Accelerate it."""
    nxcore.accelerate(model)


def patched(model: nn.Module) -> None:
    """Patch it, as a search network."""
    nxcore.nas.patch(model)


def restored(model: nn.Module) -> None:
    """Patch it, and undo that."""
    nxcore.nas.patch(model)
    model(image())
    nxcore.nas.unpatch(model)


STATES = {"accelerated": accelerated, "served": accelerated, "patched": patched, "restored": restored}
"""What nxcore has done to a model before a program does anything; where it is served, kernels run."""


SLOW = ("served", "restored")


def outcome(row: Row, prepare: Callable[[nn.Module], None] | None = None) -> Any:
    """Return what a row comes to, with gradients, state and random numbers after it; or what it raised."""
    torch.manual_seed(0)
    model = Net()
    state = copy.deepcopy(model.state_dict())
    if prepare is not None:
        prepare(model)
        model.load_state_dict(state)
    torch.manual_seed(1)
    try:
        found = row(model, image())
    except Exception as error:  # noqa: BLE001  whatever it is: the plain model's is the same
        return type(error).__mro__[:-1]
    after = {name: p.grad for name, p in model.named_parameters()}
    return {"found": found, "grads": after, "state": dict(model.state_dict()), "drawn": torch.rand(2)}


plain = functools.cache(outcome)
"""What a row comes to without nxcore: the same for each state."""


def agree(row: Row, state: str) -> None:
    """Do the same to a plain model and to one in a state of nxcore's; both must come to the same."""
    wanted = plain(row)
    same(outcome(row, STATES[state]), wanted)


def same(found: Any, wanted: Any) -> None:
    """Compare tensors nearly, all else exactly."""
    if isinstance(wanted, Tensor) and isinstance(found, Tensor):
        assert found.requires_grad == wanted.requires_grad
        near = 5e-2 if wanted.dtype in (torch.half, torch.bfloat16) else 1e-4  # kernels add in another order
        torch.testing.assert_close(found, wanted, rtol=near, atol=near / 2, equal_nan=True)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for name, each in wanted.items():
            same(found[name], each)
    elif isinstance(wanted, list | tuple):
        assert isinstance(found, list | tuple), found
        assert len(found) == len(wanted), (found, wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    else:
        assert found == wanted


def step(model: Any, x: Tensor) -> Tensor:
    """Run forward and backward; return the result."""
    y = model(x)
    y.square().sum().backward()
    out: Tensor = y.detach()
    return out
