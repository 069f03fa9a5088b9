"""Models as a user trains them: plain and accelerated in turns, and what the watch over steps has found.

    python benchmarks/steps.py [--seconds 60] [--half] [--json FILE] [NAME ...]

Each turn runs the accelerated model for two seconds and the plain one for one, on the same images. A turn's
ratio is the plain model's time of a step over the accelerated one's. The policy is that of the environment.
The last column is the time after which no turn was slower than plain by more than 2%. Models of torchvision
need it; the others are networks of the tests.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nxcore
from nxcore import nas
from nxcore.measure.decision import interval
from nxcore.nn import steps

sys.path.append(str(Path(__file__).parents[1]))
from tests.nas import darts  # plain networks, which are no part of the package
from tests.nn import networks

OURS_S, PLAIN_S, LOSS = 2.0, 1.0, 0.02


class Darts(nn.Module):
    """DARTS' own network with its architecture's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.network = darts.Network(16, 10, 8, 4)
        self.normal, self.reduce = (nn.Parameter(1e-3 * torch.randn(14, 8)) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        return self.network(x, self.normal.softmax(-1), self.reduce.softmax(-1))


def torchvisions(name: str) -> Callable[[], nn.Module]:
    """Return the constructor of a model of torchvision."""

    def build() -> nn.Module:
        from torchvision import models

        return getattr(models, name)()

    return build


TORCHVISION = ("resnet50", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "regnet_y_800mf")
MODELS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "mobilenet-small": (networks.mobilenet, 8, 48),
    "darts-unrecognised": (networks.Darts, 8, 24),
    "darts": (Darts, 64, 32),
} | {name: (torchvisions(name), 64, 224) for name in TORCHVISION}
"""Name -> constructor, batch, and extent of the images."""


def step(model: nn.Module, x: Tensor, *, half: bool) -> None:
    """Run forward and backward."""
    model.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=half):
        scores = model(x)
    scores = scores[0] if isinstance(scores, tuple) else scores
    scores.float().square().mean().backward()


def mean_s(model: nn.Module, x: Tensor, seconds: float, *, half: bool) -> float:
    """Return the seconds of a step, over so many seconds."""
    count, began = 0, time.perf_counter()
    while (now := time.perf_counter() - began) < seconds:
        step(model, x, half=half)
        count += 1
        if x.is_cuda and count % 8 == 0:
            torch.cuda.current_stream().synchronize()  # else the host runs ahead of the limit
    if x.is_cuda:
        torch.cuda.synchronize()
        now = time.perf_counter() - began
    return now / count


def turns(name: str, seconds: float, *, half: bool) -> Iterator[tuple[float, float, float, list[str]]]:
    """Yield, a turn: the seconds so far, both models' seconds of a step, and the watch's report."""
    build, batch, extent = MODELS[name]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layout = torch.channels_last if half else torch.contiguous_format
    torch.manual_seed(0)
    plain = build().to(device, memory_format=layout)
    ours = copy.deepcopy(plain)
    (nas.patch if name.startswith("darts") else nxcore.accelerate)(ours)
    x = torch.randn(batch, 3, extent, extent, device=device).contiguous(memory_format=layout)
    step(plain, x, half=half)
    spent = 0.0
    while spent < seconds:
        began = time.perf_counter()
        own = mean_s(ours, x, OURS_S, half=half)
        spent += time.perf_counter() - began
        found = steps.report(ours)  # ends a block: a step must not contain the plain model's
        yield spent, mean_s(plain, x, PLAIN_S, half=half), own, found


def main() -> None:
    """Print a line a model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=[*MODELS], metavar="NAME", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--half", action="store_true", help="bfloat16 autocast, channels_last")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print(f"{'model':20} {'plain':>10} {'accelerated':>12} {'ratio of the last half':>24} {'good after':>11}")
    for name in given.names:
        found = list(turns(name, given.seconds, half=given.half))
        ratios = [plain / own for _, plain, own, _ in found]
        late = found[len(found) // 2 :]
        plain, own = (1e3 * statistics.median(row[i] for row in late) for i in (1, 2))
        bad = [spent for (spent, *_), ratio in zip(found, ratios, strict=True) if ratio < 1 - LOSS]
        good = f"{max(bad, default=0.0):.0f} s"
        print(
            f"{name:20} {plain:7.2f} ms {own:9.2f} ms {interval(ratios[len(ratios) // 2 :])!s:>24} {good:>11}"
        )
        print(*(f"    {line}" for line in found[-1][-1]), sep="\n")
        if given.json:
            row = {"model": name, "half": given.half, "turns": found}
            with given.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
