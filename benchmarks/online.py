"""Overhead of exploration: ``measured`` runs calls of a new problem, ``test_online.py`` holds it to a limit.

They are compared with two runs of as many calls by torch (policy ``frozen``). The three take turns of ten
calls, so that drift affects all alike; torch's two runs differ by the noise. Background work slows all
three, so its time is added to the overhead in full. Short runs are repeated with new sessions, and the
median counts.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nxcore.choose.learn.budget import ALLOWANCE_S, GRACE_S, Pace
from nxcore.registry.registry import Registry
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import tensors_of

BUDGET = 0.05
ENOUGH_S, ROUNDS = 3.0, 9
TURN = 10

Make = Callable[[], tuple[Any, ...]]


def _xs(*shape: int, grad: bool = False) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(shape, requires_grad=grad) for _ in range(8))


def _leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


CASES: Mapping[str, tuple[str, Make]] = {
    "add of 16": ("add", lambda: (torch.randn(16), torch.randn(16))),
    "add of 65,536": ("add", lambda: (torch.randn(65_536), torch.randn(65_536))),
    "sum of (512, 512) over 0": ("sum", lambda: (torch.randn(512, 512), 0)),
    "softmax_sum of 8 x (8, 16, 16, 16)": ("softmax_sum", lambda: (_xs(8, 16, 16, 16), torch.randn(8))),
    "softmax_sum of 8 x (64, 16, 32, 32)": ("softmax_sum", lambda: (_xs(64, 16, 32, 32), torch.randn(8))),
    "softmax_sum_backward of 8 x (8, 16, 16, 16)": (
        "softmax_sum_backward",
        lambda: (torch.randn(8, 16, 16, 16), _xs(8, 16, 16, 16), torch.randn(8).softmax(0)),
    ),
    "max_pool2d of (8, 16, 32, 32) by 3": ("max_pool2d", lambda: (torch.randn(8, 16, 32, 32), 3, 2, 1)),
    "depthwise_conv2d of (8, 16, 32, 32) by 3": (
        "depthwise_conv2d",
        lambda: (torch.randn(8, 16, 32, 32), torch.randn(16, 1, 3, 3), 1, 1),
    ),
    "depthwise_conv2d_backward of (8, 16, 32, 32) by 3": (
        "depthwise_conv2d_backward",
        lambda: (torch.randn(8, 16, 32, 32), torch.randn(8, 16, 32, 32), torch.randn(16, 1, 3, 3), 1, 1),
    ),
    # Where an argument needs a gradient, a call is one forward and backward.
    "gradient of weighted_sum of 8 x (2, 4, 8, 8)": (
        "weighted_sum",
        lambda: (_xs(2, 4, 8, 8, grad=True), _leaf(8)),
    ),
    "gradient of avg_pool2d of (2, 4, 8, 8) by 3": ("avg_pool2d", lambda: (_leaf(2, 4, 8, 8), 3, 1, 1)),
    "gradient of max_pool2d of (2, 4, 8, 8) by 3": ("max_pool2d", lambda: (_leaf(2, 4, 8, 8), 3, 1, 1)),
    "gradient of depthwise_conv2d of (2, 4, 8, 8) by 3": (
        "depthwise_conv2d",
        lambda: (_leaf(2, 4, 8, 8), _leaf(4, 1, 3, 3), 1, 1),
    ),
}


@dataclass(frozen=True)
class Row:
    """One case.

    Attributes
    ----------
    case : str
        Name of the case.
    calls : int
        Number of calls in each run.
    torch_s : float
        Median seconds of torch's run.
    cost : float
        Median overhead of the exploring run over torch's, as a share of it, including background work.
    noise : float
        The same for torch's other run.
    background : float
        The part of ``cost`` that is background work.
    rule, chosen : str
        Rule and winner at the end, forward and backward.
    """

    case: str
    calls: int
    torch_s: float
    cost: float
    noise: float
    background: float
    rule: str
    chosen: str

    @property
    def budget(self) -> float:
        """The share that it may cost: that of learning, and in a run of more than a second the allowance."""
        return BUDGET + (ALLOWANCE_S / self.torch_s if self.torch_s > GRACE_S else 0.0)

    def __str__(self) -> str:
        return (
            f"{self.case}: {self.cost:+.1%} (background {self.background:.1%}, noise {self.noise:+.1%}) "
            f"over {self.calls:,} calls of {self.torch_s / self.calls * 1e6:.1f} us; "
            f"{self.chosen} ({self.rule})"
        )


def measured(
    case: str,
    calls: int,
    registry: Registry,
    cache: Path | None = None,
    *,
    enough_s: float = ENOUGH_S,
    rounds: int = 1,
) -> Row:
    """Run one case, as often as it takes: ``rounds`` times, or more of a short one."""
    op, make = CASES[case]
    args = make()
    runs: list[tuple[float, float, float, float]] = []
    while len(runs) < rounds or (sum(r[0] for r in runs) < enough_s and len(runs) < ROUNDS):
        spent = dict.fromkeys(("torch", "again", "online"), 0.0)
        time_of_run = lambda now=spent: now["online"]  # noqa: E731  the time of this run alone
        pace = Pace(allowance=ALLOWANCE_S, grace=GRACE_S, clock=time_of_run)
        sessions = {
            which: Session(
                Settings(policy="auto", cache=cache) if which == "online" else Settings(policy="frozen"),
                registry,
            )
            for which in spent
        }
        learning = sessions["online"].chooser
        learning.learner.keep_to(pace)
        runners = {which: _there_and_back(session.op(op), args) for which, session in sessions.items()}
        order, dice = list(spent), random.Random(len(runs))
        for _ in range(calls // TURN):
            dice.shuffle(order)
            for which in order:
                spent[which] += _spent(runners[which], args)
        background = (pace.spent - pace.charged) / spent["torch"]
        cost = spent["online"] / spent["torch"] - 1 + background
        runs.append((spent["torch"], cost, spent["again"] / spent["torch"] - 1, background))
    decisions = [c.decision for c in learning.choices.values()]
    first = next((d for d in decisions if d.rule == "exploring"), decisions[0])
    seconds, cost, noise, background = (statistics.median(column) for column in zip(*runs, strict=True))
    return Row(case, calls, seconds, cost, noise, background, first.rule, first.chosen)


def _there_and_back(operator: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """Return ``operator``, followed by its gradient where an argument needs one."""
    inputs = [t for t in tensors_of(args) if t.requires_grad]
    if not inputs:
        return operator
    grad = torch.randn_like(operator(*args).detach())
    return lambda *args: torch.autograd.grad(operator(*args), inputs, grad)


def _spent(operator: Callable[..., Any], args: tuple[Any, ...]) -> float:
    started = time.perf_counter()
    for _ in range(TURN):
        operator(*args)
    return time.perf_counter() - started
