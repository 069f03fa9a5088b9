"""A model whose calls take the time of a clock, for tests of the comparison of steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import nxcore
from nxcore.nn import exchange, steps, watching
from nxcore.nn.exchange import AWAKE, RESTING, kind
from nxcore.nn.groups import GIVEN_BACK
from nxcore.session import Session
from tests.nn.conftest import serve_by
from tests.null import fakes


class Clock:
    """Seconds that pass in a model's call."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def ticks(seconds: float) -> float:
    """Return about as many seconds, whose sums have no rounding errors."""
    return round(seconds * 4096) / 4096


class Net(nn.Module):
    """A norm and two pools; its call takes the seconds of a clock that ``cost`` gives its modules."""

    def __init__(self, clock: Clock, cost: dict[str, tuple[float, float]]) -> None:
        super().__init__()
        self.norm, self.pool, self.mean = nn.BatchNorm2d(4), nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1)
        self.clock, self.cost = [clock], cost  # shared by copies
        self.plain = 0
        self.error: Exception | None = None

    def __deepcopy__(self, memo: Any) -> Net:
        made = type(self).__new__(kind(self))
        memo[id(self)] = made
        vars(made).update({k: v if k == "clock" else copy.deepcopy(v, memo) for k, v in vars(self).items()})
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in (self.norm, self.pool, self.mean):
            resting = kind(module) in AWAKE
            ours, plain = self.cost.get(type(module).__name__, (0.0, 0.0))
            self.clock[0].now += ticks(plain if resting else ours)
        self.clock[0].now += ticks(0.01)
        self.plain += kind(self.pool) in AWAKE
        if self.error:
            raise self.error
        return self.mean(self.pool(self.norm(x)))


X = torch.randn(2, 4, 8, 8)


@pytest.fixture
def session(light: None, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Serve all modules by kernels, so that none rests by itself."""
    found = fakes.session(fakes.backend())
    serve_by(found, monkeypatch, "fake")
    monkeypatch.setattr(watching, "default", lambda: found)
    return found


Make = Callable[..., Net]


@pytest.fixture
def make(session: Session) -> Make:
    def made(**cost: tuple[float, float]) -> Net:
        clock = Clock()
        model = Net(clock, cost)
        nxcore.accelerate(model, watch=False)
        assert exchange.hold(model, steps.Steps(model, session, clock))
        return model

    return made


def over(model: nn.Module) -> steps.Steps:
    held = exchange.watch_of(model)
    assert isinstance(held, steps.Steps)
    return held


def train(model: nn.Module, times: int, x: torch.Tensor = X) -> None:
    for _ in range(times):
        model(x).sum().backward()


def settle(model: Net, most: int = 20_000) -> str:
    """Train until the trials of training are over; return what was found."""
    for _ in range(most):
        train(model, 1)
        mode = over(model)._modes[True, False]
        if mode.over:
            return mode.state
    raise AssertionError(over(model).report)


def given_back(model: nn.Module) -> set[str]:
    return {type(m).__name__ for m in model.modules() if getattr(m, "reason", "") == GIVEN_BACK}


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run no kernels: these tests are of classes and clocks."""
    for cls in (*RESTING,):
        monkeypatch.setattr(cls, "forward", cls.__bases__[0].forward)
