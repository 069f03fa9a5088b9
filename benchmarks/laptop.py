"""What ``nxcore.accelerate`` gains a program on a CPU, by kind of model, as a user runs it from a shell.

A model and an accelerated copy of it make steps in turns, a block of some seconds each, in one process with
torch's own number of threads: two processes differ by more than the models, by where their memory lies. The
accelerated one is prepared, then warmed for some seconds under the default policy. Clock and processor time
of a step are compared block by block. The search network is taken by ``nas.patch``. torchvision gives the
networks that are named as its own.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.store.encoding import encoded

ROOT = Path(__file__).parents[1]


def cnn() -> tuple[nn.Module, Tensor]:
    """Return three convolutions with batch norms and pools."""
    sizes = (3, 32, 64, 128)
    layers: list[nn.Module] = []
    for channels, filters in itertools.pairwise(sizes):
        layers += [
            nn.Conv2d(channels, filters, 3, padding=1),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)), images(32, 32)


def mlp() -> tuple[nn.Module, Tensor]:
    """Return three linear layers with GELU."""
    layers = (nn.Linear(784, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    return nn.Sequential(nn.Flatten(), *layers), torch.randn(128, 1, 28, 28)


def transformer() -> tuple[nn.Module, Tensor]:
    """Return four encoder layers of 128 numbers, over 64 tokens."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(16, 64, 128)


def search() -> tuple[nn.Module, Tensor]:
    """Return a DARTS-like network of mixed operations, as the tests have it."""
    sys.path.insert(0, str(ROOT))
    from tests.nn.networks import Darts

    return Darts(16), images(8, 32)


def of_torchvision(name: str, count: int, side: int) -> Callable[[], tuple[nn.Module, Tensor]]:
    """Return a function that makes one of torchvision's networks."""

    def make() -> tuple[nn.Module, Tensor]:
        import torchvision

        return getattr(torchvision.models, name)(num_classes=10), images(count, side)

    return make


def images(count: int, side: int) -> Tensor:
    """Return random images of three channels."""
    return torch.randn(count, 3, side, side)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "cnn": cnn,
    "mobilenet_v2": of_torchvision("mobilenet_v2", 8, 64),
    "resnet18": of_torchvision("resnet18", 8, 64),
    "transformer": transformer,
    "mlp": mlp,
    "search": search,
}


def row(name: str, training: bool, args: argparse.Namespace) -> dict[str, Any]:
    """Return the medians of both ways, and of the ratios of neighbouring blocks."""
    import nxcore

    torch.manual_seed(0)
    model, x = MODELS[name]()
    plain = copy.deepcopy(model.train(training))
    with torch.set_grad_enabled(training):
        swap = nxcore.nas.patch(model) if name == "search" else nxcore.accelerate(model, prepare=(x,))
    steps = [step_of(way, x, training) for way in (plain, model)]
    until = time.perf_counter() + args.warm
    while time.perf_counter() < until:
        steps[1]()
    shares = nxcore.status(model).shares
    blocks: list[list[tuple[float, float]]] = [[], []]
    for turn in range(args.blocks):
        for i in (0, 1) if turn % 2 else (1, 0):
            blocks[i].append(block(steps[i], args.seconds))
    wall, cpu = (sorted(p[k] / a[k] for p, a in zip(*blocks, strict=True)) for k in (0, 1))
    return {
        "model": name,
        "mode": "training" if training else "inference",
        "plain_ms": round(1e3 * statistics.median(b[0] for b in blocks[0]), 3),
        "accelerated_ms": round(1e3 * statistics.median(b[0] for b in blocks[1]), 3),
        "speed": round(statistics.median(wall), 3),
        "quartiles": [round(q, 3) for q in statistics.quantiles(wall, n=4)[::2]],
        "cpu_speed": round(statistics.median(cpu), 3),
        "blocks": args.blocks,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "replaced": len(swap.replaced),
        "left": len(swap.left),
        "shares": shares,
    }


def step_of(model: nn.Module, x: Tensor, training: bool) -> Callable[[], None]:
    """Return a function that makes one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        with torch.set_grad_enabled(training):
            result = model(x)
            if training:
                optimizer.zero_grad()
                result.square().mean().backward()
                optimizer.step()

    return step


def block(step: Callable[[], None], seconds: float) -> tuple[float, float]:
    """Make steps for some seconds; return the clock's and the processors' seconds of one."""
    began, cpu, steps = time.perf_counter(), time.process_time(), 0
    while (passed := time.perf_counter() - began) < seconds or steps < 3:
        step()
        steps += 1
    return passed / steps, (time.process_time() - cpu) / steps


def main() -> None:
    """Print a line of JSON a model and mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--modes", nargs="*", default=["training", "inference"])
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--warm", type=float, default=20.0)
    parser.add_argument("--inside", action="store_true", help="measure here, without a process a row")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        for mode in args.modes:
            for name in args.only:
                if args.inside:
                    print(encoded(row(name, mode == "training", args)), flush=True)
                    continue
                how = ["--seconds", args.seconds, "--blocks", args.blocks, "--warm", args.warm]
                one = [sys.executable, __file__, "--inside", "--only", name, "--modes", mode, *map(str, how)]
                # As set: the cache of this run alone, as on a machine that nothing was measured on.
                subprocess.run(one, env=os.environ | {"NXCORE_CACHE": cache}, check=True)


if __name__ == "__main__":
    main()
