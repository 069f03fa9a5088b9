"""Two steps of training of a DARTS supernet, plain and patched: losses and running statistics.

    python benchmarks/search_training.py [--images cifar10.npz] [--output FILE] [--backend cuda] [--warm 16]
                                         [--channels 16] [--batch 64] [--layers 8]

Each network trains by SGD and, from the same weights again, by Adam; another Adam trains the architecture.
The record has the losses of two steps, and of a third batch after them, of each network in float32 and of the
plain one in float64; and how far running statistics are from those in float64, the norm that is furthest
(2-norm, relative). ``--warm`` steps come before, without training, until what is to be replayed is.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import nxcore
from nxcore import nas
from nxcore.spec.device import describe
from nxcore.store.encoding import encoded

sys.path.append(str(Path(__file__).parents[1]))
from tests.nas import darts  # the plain network, which is no part of the package

TRAINED = 2
"""Steps of training; the loss of one more batch is that after them."""

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda weights: torch.optim.SGD(weights, 0.025, momentum=0.9, weight_decay=3e-4),
    "Adam": lambda weights: torch.optim.Adam(weights, 1e-3),
}


def trained(
    net: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], rows: Tensor, name: str, warm: int
) -> list[float]:
    """Return the loss of each batch, with a step of training after each but the last."""
    dtype = next(net.parameters()).dtype
    rows = rows.to(dtype).requires_grad_()
    weights, of_rows = (
        OPTIMIZERS[name](list(net.parameters())),
        torch.optim.Adam([rows], 3e-4, betas=(0.5, 0.999)),
    )

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        for optimizer in (weights, of_rows):
            optimizer.zero_grad()
        found = cross_entropy(net(images.to(dtype), *rows.unbind(0)), labels)
        found.backward()
        return found.detach()

    for _ in range(warm):
        loss(*batches[0])
    losses = []
    for batch in batches:
        losses.append(loss(*batch).item())
        if len(losses) < len(batches):
            weights.step()
            of_rows.step()
    return losses


def furthest(net: nn.Module, exact: nn.Module) -> float:
    """Return the largest error of a norm's running statistics."""
    own = dict(net.named_buffers())
    pairs = [(own[name].double(), b.double()) for name, b in exact.named_buffers() if "running" in name]
    return max(float((got - want).norm() / want.norm()) for got, want in pairs)


def compared(given: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Return losses and errors of all networks, for each optimizer."""
    count = (TRAINED + 1) * given.batch
    torch.manual_seed(0)
    if given.images:
        part = nas.data.load("cifar10", given.images).train
        images, labels = (t[:count].to(device) for t in part)
    else:
        images = torch.randn(count, 3, 32, 32, device=device)
        labels = torch.randint(10, (count,), device=device)
    batches = list(zip(images.split(given.batch), labels.split(given.batch), strict=True))
    network: Any = darts.Network
    plain: nn.Module = network(given.channels, 10, given.layers, 4).to(device)
    rows = 1e-3 * torch.randn(2, 14, 8, device=device)
    found: dict[str, Any] = {}
    for name in OPTIMIZERS:
        nets: dict[str, nn.Module] = {"float64": copy.deepcopy(plain).double(), "plain": copy.deepcopy(plain)}
        nets["patched"] = copy.deepcopy(plain)
        nas.patch(nets["patched"], watch=False)
        nets["SearchNetwork"] = nas.SearchNetwork(C=given.channels, layers=given.layers).to(device)
        nets["SearchNetwork"].load_state_dict(plain.state_dict())
        each = found[name] = {}
        for what, net in nets.items():
            chosen = nxcore.use(given.backend) if given.backend else contextlib.nullcontext()
            with chosen:
                losses = trained(net, batches, rows.clone(), name, given.warm)
            each[what] = {"losses": losses, "statistics": furthest(net, nets["float64"])}
            off = [abs(a - b) for a, b in zip(losses, each["float64"]["losses"], strict=True)]
            each[what]["off"] = max(off)
            print(
                f"{name} {what}: losses "
                + ", ".join(f"{loss:.6f}" for loss in losses)
                + f"; off by {max(off):.1e}, statistics by {each[what]['statistics']:.1e}",
                flush=True,
            )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print a line for each network, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, help="CIFAR-10 as an .npz file; by default random images")
    parser.add_argument("--output", type=Path, help="write the results to this file, as JSON")
    parser.add_argument("--backend", help="use this backend's kernels, without a race")
    parser.add_argument("--warm", type=int, default=16, help="steps without training, by default %(default)s")
    parser.add_argument("--channels", type=int, default=16, help="of the first cell, by default 16")
    parser.add_argument("--batch", type=int, default=64, help="images a step, by default 64")
    parser.add_argument("--layers", type=int, default=8, help="cells, by default 8")
    given = parser.parse_args(argv)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    record: dict[str, Any] = {
        "device": describe(device).to_dict() | {"torch": str(torch.__version__)},
        "images": given.images and "cifar10",
        "channels": given.channels,
        "batch": given.batch,
        "warm": given.warm,
    }
    record["trained"] = compared(given, device)
    if given.output:
        given.output.write_text(encoded(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
