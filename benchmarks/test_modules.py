"""Every accelerated module in every mode beside torch's own, in turns, in one run.

Where torch serves, the module rests from its tenth call on and must cost what torch's costs: at most 5% or
0.1 us more. Both sides then run one function, which ``tests/nn/test_served.py`` asserts; two of torch's own
differ as much. Where a pool's operator is called, with a kernel that takes as long as torch's own, a call may
take 2 us more, and under autocast on Python's path 0.4 us more than that; with gradients that is the forward
half, which the module adds to. A convolution with a bias also adds it, and a norm updates its
statistics, which a kernel must save. One core; each side is the minimum of many short rounds, because noise
only adds time.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from nxcore import nn as ours
from nxcore.call.operator import Operator, Plan
from nxcore.interop import native
from nxcore.nn import activations, embedding, modules, norms, sequential, softmaxes, swap
from nxcore.nn.served import AFTER, RESTING
from nxcore.registry.discovery import discover
from nxcore.session import Session
from nxcore.settings import Settings

REST_US, REST_RATIO = 0.1, 1.05
AWAKE_US, AUTOCAST_US = 2.0, 0.0 if native.found().extension else 0.4
REFERENCE_KEY_US = 0.34
TENTH = 10
"""The call from which on a module costs what torch's costs."""

ROUNDS, CALLS, KEYS = 40, 25, 100


def depthwise(**changed: Any) -> nn.Conv2d:
    return nn.Conv2d(4, 4, 3, padding=1, groups=4, **changed)


def targeted() -> nn.Module:
    loss = nn.CrossEntropyLoss()
    loss.register_forward_pre_hook(lambda _, given: (*given, given[0].argmin(1)))
    return loss


def indexed() -> nn.Module:
    table = nn.Embedding(4, 8)
    table.register_forward_pre_hook(lambda _, given: given[0].argmin(1))
    return table


ACTIVATIONS = {cls.__name__: cls for cls in activations.FUNCTIONS if cls in swap.OURS}
MAKE: dict[str, Callable[[], nn.Module]] = {
    "MaxPool2d": lambda: nn.MaxPool2d(3, 1, 1),
    "AvgPool2d": lambda: nn.AvgPool2d(3, 1, 1),
    "AdaptiveAvgPool2d": lambda: nn.AdaptiveAvgPool2d(1),
    "AdaptiveMaxPool2d": lambda: nn.AdaptiveMaxPool2d(1),
    "Conv2d, depthwise": lambda: depthwise(bias=False),
    "Conv2d, depthwise, bias": depthwise,
    "Conv2d": lambda: nn.Conv2d(4, 4, 1),
    "BatchNorm2d": lambda: nn.BatchNorm2d(4),
    "Softmax": lambda: nn.Softmax(1),
    "LogSoftmax": lambda: nn.LogSoftmax(1),
    "CrossEntropyLoss": targeted,
    "Embedding": indexed,
    "LayerNorm": lambda: nn.LayerNorm(16),
    "RMSNorm": lambda: nn.RMSNorm(16),
    "GroupNorm": lambda: nn.GroupNorm(2, 4),
    **ACTIVATIONS,
    "Sequential": lambda: nn.Sequential(
        nn.ReLU(), depthwise(bias=False), nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)
    ),
    "Sequential, pair": lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.GELU()),
}
MODES = ("plain", "gradients", "autocast", "evaluation", "bfloat16", "float16")


@contextmanager
def _mode(mode: str) -> Iterator[None]:
    # As set: the host's cost of a module, in calls of microseconds.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.set_grad_enabled(mode == "gradients"), torch.autocast("cpu", enabled=mode == "autocast"):
            yield
    finally:
        torch.set_num_threads(threads)


def _sides(name: str, mode: str) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """Return torch's module, an accelerated copy, and an input."""
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(mode, torch.float32)
    theirs = MAKE[name]().to(dtype)
    own = copy.deepcopy(theirs)
    ours.accelerate(own, watch=False)
    for module in (theirs, own):
        module.train(mode != "evaluation")
    return theirs, own, torch.randn(2, 4, 16, 16, dtype=dtype, requires_grad=mode == "gradients")


def _step(module: nn.Module, x: torch.Tensor) -> None:
    out = module(x)
    if out.requires_grad:
        out.sum().backward()


def _forward(module: nn.Module, x: torch.Tensor) -> None:
    module(x)


Step = Callable[[nn.Module, torch.Tensor], None]


def _least_us(sides: tuple[nn.Module, ...], x: torch.Tensor, step: Step = _step) -> list[float]:
    """Return the minimum microseconds of a step of each, in turns whose order alternates."""
    least = [float("inf")] * len(sides)
    for turn in range(ROUNDS):
        for i in range(len(sides))[:: 1 if turn % 2 else -1]:
            began = time.perf_counter_ns()
            for _ in range(CALLS):
                step(sides[i], x)
            least[i] = min(least[i], (time.perf_counter_ns() - began) / CALLS * 1e-3)
    return least


def _within(
    limit: Callable[[float], float], sides: tuple[nn.Module, ...], x: torch.Tensor, step: Step = _step
) -> None:
    """Measure up to five times, because the host's clock rate may change between the two sides."""
    for left in (4, 3, 2, 1, 0):
        torchs, own = _least_us(sides, x, step)
        print(f"torch {torchs:.2f} us, accelerated {own:.2f} us: {own - torchs:+.2f} us, {own / torchs:.3f}")
        if own <= limit(torchs):
            return
        assert left, f"{own:.2f} us, and torch's takes {torchs:.2f}"


def _serve_by(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[Operator]:
    found = []
    for held in (embedding, modules, norms, sequential, softmaxes):
        for name in [n for n, value in vars(held).items() if isinstance(value, Operator)]:
            found.append(session.op(getattr(held, name).spec.name))
            monkeypatch.setattr(held, name, found[-1])
    activated = {name: session.op(name) for name, _ in activations.FUNCTIONS.values()}
    monkeypatch.setattr(activations, "operator", activated.__getitem__)
    monkeypatch.setattr(activations, "won", lambda *_: True)  # so that ReLU is taken too
    return [*found, *activated.values()]


def test_every_module_that_accelerate_takes_is_measured() -> None:
    assert {type(make()) for make in MAKE.values()} == set(swap.OURS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MAKE)
def test_where_torch_serves_a_module_costs_nothing(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _serve_by(Session(Settings(policy="frozen"), discover(found=())), monkeypatch)
    with _mode(mode):
        theirs, own, x = _sides(name, mode)
        for module in (theirs, own):
            for _ in range(TENTH - 1):
                _step(module, x)
        assert not any(type(m) in RESTING for m in own.modules())
        _within(lambda us: max(REST_RATIO * us, us + REST_US), (theirs, own), x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*(name for name in MAKE if "Pool" in name), *ACTIVATIONS])
def test_a_call_of_the_operator_costs_little(name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operators = _serve_by(Session(Settings(policy="frozen"), discover(found=())), monkeypatch)
    monkeypatch.setattr(activations, "FEWEST", 0)
    for operator in operators:
        monkeypatch.setattr(operator, "_resolve", functools.partial(_no_faster, operator))
    with _mode(mode):
        theirs, own, x = _sides(name, mode)
        for _ in range(2 * AFTER):
            own(x)
        assert type(own) in RESTING
        unit = max(1.0, _key_us(x) / REFERENCE_KEY_US)
        above = AWAKE_US + (AUTOCAST_US if mode == "autocast" else 0.0)
        _within(lambda us: us + above * unit, (theirs, own), x, _forward)


def _key_us(x: torch.Tensor) -> float:
    """Return the time of one tensor's key, in which ``test_overhead`` counts too: hosts differ."""
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(KEYS):
            _ = (x.shape, x.stride(), x.dtype, x.device)
        least = min(least, (time.perf_counter_ns() - began) / KEYS * 1e-3)
    return least


def _no_faster(operator: Operator, *_: Any) -> Plan:
    """Plan a kernel that takes as long as torch's own: it is the function that torch's module calls."""
    name = operator.spec.name
    theirs = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}.get(name)
    theirs = theirs or getattr(nn.functional, name, operator.spec.reference)

    def kernel(*args: Any) -> Any:
        return theirs(*args)

    without_out: dict[int, Callable[..., Any]] = {  # to unpack the arguments takes longer
        2: lambda x, _out: theirs(x),
        3: lambda x, a, _out: theirs(x, a),
        4: lambda x, a, b, _out: theirs(x, a, b),
    }
    count = len(operator.spec.params)
    return Plan(without_out[count] if operator.spec.params[-1].kind == "out" else kernel, "another")
