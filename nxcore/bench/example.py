"""The demo's model: a small convolutional network on handwritten digits, plain and accelerated.

A step is forward, cross-entropy, backward and stochastic gradient descent. The plain and the accelerated
model take steps in turn, so that other load on the machine affects both alike.
"""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.choose.learn.watch import FIRST
from nxcore.errors import NxcoreError
from nxcore.measure.decision import Interval, interval
from nxcore.nn.swap import accelerate
from nxcore.offline.status import Status, of_model

SIDE, CHANNELS, CLASSES = 32, 16, 10
LAYER = 2
"""Index of the depthwise convolution in the network."""

WARMUP = FIRST + 4
"""Steps of each model before the timed ones: they decide new problems, and their calls are watched."""

PAIRS = 12
"""Number of timed steps of each model: the fewest for which a 99% interval exists."""


@dataclass(frozen=True, slots=True)
class Step:
    """Times and errors of a model's step, plain and accelerated.

    Attributes
    ----------
    plain_ms, accelerated_ms : float
        Median milliseconds.
    ratio : (float, float, float)
        Times as fast as plain, from pairs of steps: median and interval.
    plain_error, accelerated_error : float
        Relative error of all gradients against float64, in the 2-norm.
    status : Status
        The problems of the accelerated step, and their winners.
    """

    plain_ms: float
    accelerated_ms: float
    ratio: tuple[float, float, float]
    plain_error: float
    accelerated_error: float
    status: Status

    def to_dict(self) -> dict[str, Any]:
        """Return the step as plain data."""
        names = ("plain_ms", "accelerated_ms", "ratio", "plain_error", "accelerated_error")
        return {name: getattr(self, name) for name in names} | {"status": self.status.to_dict()}


def digits(count: int, device: torch.device, seed: int) -> tuple[Tensor, Tensor]:
    """Return handwritten digits (Alpaydin and Kaynak 1998; 8x8, from scikit-learn), enlarged and normalised.

    Returns
    -------
    images : Tensor
        Shape (count, 1, SIDE, SIDE), float32, zero mean, unit variance.
    labels : Tensor
        Shape (count,), int64, from 0 to 9.

    Raises
    ------
    NxcoreError
        If scikit-learn isn't installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise NxcoreError("the demo needs scikit-learn for its images: pip install scikit-learn") from error

    found = load_digits()
    picked = torch.randperm(len(found.images), generator=torch.Generator().manual_seed(seed))[:count]
    small, labels = torch.from_numpy(found.images).float()[picked, None], torch.from_numpy(found.target)
    large = nn.functional.interpolate(small, size=(SIDE, SIDE), mode="bilinear")
    return ((large - large.mean()) / large.std()).to(device), labels[picked].long().to(device)


def network() -> nn.Sequential:
    """Return the model: a stem, then twice a depthwise and a 1x1 convolution, as in MobileNet."""
    wide = 2 * CHANNELS
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(CHANNELS, CHANNELS, 5, padding=2, groups=CHANNELS, bias=False),
        nn.Conv2d(CHANNELS, wide, 1, stride=2),
        nn.ReLU(),
        nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False),
        nn.Conv2d(wide, wide, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(wide, CLASSES),
    )


def compared(plain: nn.Sequential, images: Tensor, labels: Tensor) -> Step:
    """Compare ``plain`` with an accelerated copy; the policy in force decides new problems."""
    fast = copy.deepcopy(plain)
    accelerate(fast, watch=False)
    status = of_model(fast, images)
    exact = _gradients(copy.deepcopy(plain).double(), images.double(), labels)
    errors = [_error(_gradients(model, images, labels), exact) for model in (plain, fast)]
    models = [(model, torch.optim.SGD(model.parameters(), lr=0.01)) for model in (plain, fast)]
    for _ in range(WARMUP):
        for model, optimizer in models:
            _timed(model, optimizer, images, labels)
    pairs = [
        tuple(_timed(model, optimizer, images, labels) for model, optimizer in models) for _ in range(PAIRS)
    ]
    mine: Interval = interval([before / after for before, after in pairs])
    ratio = (mine.median, mine.low, mine.high)
    plain_ms, fast_ms = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    return Step(plain_ms, fast_ms, ratio, errors[0], errors[1], status)


def _timed(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> float:
    """Run a step and return its milliseconds."""
    began = time.perf_counter()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    if images.is_cuda:
        torch.cuda.synchronize(images.device)
    return (time.perf_counter() - began) * 1e3


def _gradients(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the gradients of all weights as one vector, in float64."""
    with torch.backends.cudnn.flags(
        enabled=True, allow_tf32=False
    ):  # TF32 in torch's convolutions would add to the error
        loss = nn.functional.cross_entropy(model(images), labels)
        found = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([grad.double().flatten() for grad in found])


def _error(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())
