"""One search step on a CUDA device: its time, the time of its parts, and its error against float64.

    python benchmarks/search_step.py [--images cifar10.npz] [--output search-step.json] [--quick]
                                     [--backend cuda] [--networks patched ...]
                                     [--channels 16] [--batch 64] [--no-errors]
                                     [--autocast bfloat16]

A forward and backward of a DARTS supernet (8 cells, C = 16, 4 nodes, batch 64 of 3 x 32 x 32, float32 without
TF32) for weights and architecture: plain torch (the network of ``tests/nas/darts.py``), the same under
``nas.patch``, without its graphs and with them, and ``nas.SearchNetwork``, which is patched too; each eager
and as one CUDA graph (``nxcore.graphed``). Kernels are chosen by measurement beforehand, or are those of
``--backend``, without a race. With real images (an ``.npz`` as ``nas.data.load`` takes it) the errors of
scores and gradients against the same network in float64, over several batches. ``--autocast`` runs forward
passes under ``torch.autocast``.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
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

BATCHES, ROUNDS, KERNELS = 11, 11, 400
WARM = 16
"""Number of untimed eager steps: more than a cell needs before it is captured."""

Step = Callable[[], tuple[Tensor, Tensor, tuple[Tensor, ...]]]


def networks(channels: int = 16) -> dict[str, Callable[[], nn.Module]]:
    """Return a constructor for each network, all with the same weights."""

    def plain() -> nn.Module:
        torch.manual_seed(0)
        return darts.Network(channels, 10, 8, 4).to("cuda")

    def patched(graphs: bool = True) -> nn.Module:
        net = plain()
        nas.patch(net, graphs=graphs, watch=False)
        return net

    def own() -> nn.Module:
        net = nas.SearchNetwork(C=channels, num_classes=10, layers=8).to("cuda")
        net.load_state_dict(plain().state_dict())
        return net

    run = functools.partial(patched, graphs=False)
    return {"plain": plain, "patched, run": run, "patched": patched, "SearchNetwork": own}


def step_of(
    net: nn.Module, images: Tensor, labels: Tensor, logits: Tensor, half: torch.dtype | None = None
) -> Step:
    """Return one forward and backward: loss, scores, and gradients of the logits and of every weight.

    ``half`` is the dtype of autocast; None is without.
    """
    wanted = [logits, *net.parameters()]

    def step() -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        with torch.autocast("cuda", half, enabled=half is not None):
            scores = net(images, *logits.unbind(0))
            loss = cross_entropy(scores, labels)
        return loss.detach(), scores.detach(), torch.autograd.grad(loss, wanted)

    return step


def timed(step: Callable[[], Any]) -> float:
    """Return the median wall time of some steps, in ms."""
    found = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - began) * 1e3)
    return statistics.median(found)


def chosen(backend: str | None) -> AbstractContextManager[None]:
    """Return a context in which kernels are chosen by measurement, or are those of a backend."""
    return nxcore.use(backend) if backend else nxcore.policy("measure")


def eager(
    make: Callable[[], nn.Module],
    images: Tensor,
    labels: Tensor,
    logits: Tensor,
    warm: int,
    half: torch.dtype | None = None,
) -> dict[str, Any]:
    """Return time and memory of one network's eager step, and the cells that are replayed."""
    gc.collect()
    torch.cuda.empty_cache()
    row: dict[str, Any] = {"before_gib": torch.cuda.memory_allocated() / 2**30}
    net = make()
    step = step_of(net, images, labels, logits, half)
    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    row["first_s"] = time.perf_counter() - began
    for _ in range(warm):
        step()
    row["replays"] = nas.replays(net)
    torch.cuda.reset_peak_memory_stats()
    row["eager_ms"] = timed(step)
    row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    row["added_gib"] = row["peak_gib"] - row["before_gib"]
    return row


def captured(
    make: Callable[[], nn.Module],
    images: Tensor,
    labels: Tensor,
    logits: Tensor,
    half: torch.dtype | None = None,
) -> dict[str, Any]:
    """Return time and memory of one network's captured step, and the device time of each kernel."""
    gc.collect()  # what the eager steps held
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    replay = nxcore.graphed(step_of(make(), images, labels, logits, half))
    replay()
    row: dict[str, Any] = {"captured_ms": timed(replay)}
    row["captured_peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        replay()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    kernels = sorted(
        (
            (e.self_device_time_total / 1e3, e.count, e.key)
            for e in profile.key_averages()
            if e.device_type == cuda
        ),
        reverse=True,
    )
    row["busy_ms"], row["launches"] = sum(k[0] for k in kernels), sum(k[1] for k in kernels)
    row["kernels"] = [{"ms": ms, "count": n, "kernel": name[:120]} for ms, n, name in kernels[:KERNELS]]
    return row


def errors(
    makes: dict[str, Callable[[], nn.Module]],
    images: Tensor,
    labels: Tensor,
    logits: Tensor,
    backend: str | None,
    warm: int,
    half: torch.dtype | None = None,
) -> dict[str, Any]:
    """Return the errors (relative, 2-norm) of networks against the plain one in float64.

    Each is a median over batches, listed with the errors of all batches. One batch means nothing: if two
    pixels of a pool's window, or an activation and 0, differ by less than a rounding error, a gradient takes
    one path or the other. Most of the error comes from these flips, which are random.
    """
    nets, batch = {name: make() for name, make in makes.items()}, len(images) // BATCHES
    truth = copy.deepcopy(nets["plain"]).double()

    def found(net: nn.Module, x: Tensor, y: Tensor, dtype: torch.dtype) -> list[Tensor]:
        rows = logits.detach().to(dtype).requires_grad_()
        _, scores, gradients = step_of(net, x.to(dtype), y, rows, None if net is truth else half)()
        return [scores, *gradients]

    with chosen(backend):
        for net in nets.values():
            for _ in range(warm):  # until what is to be replayed is
                found(net, images[:batch], labels[:batch], torch.float32)
    each: dict[str, list[dict[str, float]]] = {name: [] for name in nets}
    for x, y in zip(images.split(batch), labels.split(batch), strict=True):
        exact = found(truth, x, y, torch.float64)
        for name, net in nets.items():
            with chosen(backend):
                got = found(net, x, y, torch.float32)
            pairs = zip(got, exact, strict=True)
            scores, architecture, *off = (
                float((g - e).norm() / e.norm()) for g, e in pairs if float(e.norm())
            )
            middle = {
                "scores": scores,
                "architecture": architecture,
                "weights_median": statistics.median(off),
            }
            each[name].append(middle | {"weights_max": max(off)})
    return {
        name: {what: statistics.median(r[what] for r in rows) for what in rows[0]} | {"batches": rows}
        for name, rows in each.items()
    }


def main() -> None:
    """Measure, print a line for each network, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, help="CIFAR-10 as an .npz file; by default random images")
    parser.add_argument("--output", type=Path, help="write the results to this file, as JSON")
    parser.add_argument("--quick", action="store_true", help="measure the errors only")
    parser.add_argument("--backend", help="use this backend's kernels, without a race")
    parser.add_argument("--networks", nargs="+", default=list(networks()), choices=list(networks()))
    parser.add_argument("--warm", type=int, default=WARM, help="untimed steps, by default %(default)s")
    parser.add_argument("--channels", type=int, default=16, help="of the first cell, by default 16")
    parser.add_argument("--batch", type=int, default=64, help="images a step, by default 64")
    parser.add_argument("--autocast", choices=["bfloat16", "float16"], help="of forward passes")
    parser.add_argument("--no-errors", action="store_true", help="measure the times only")
    given = parser.parse_args()
    half = given.autocast and getattr(torch, given.autocast)
    count, makes = BATCHES * given.batch, networks(given.channels)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    if given.images:
        part = nas.data.load("cifar10", given.images).to("cuda").train
        images, labels = part.images[:count].clone(), part.labels[:count].clone()
        del part  # which is no memory of a step
    else:
        images = torch.randn(count, 3, 32, 32, device="cuda")
        labels = torch.randint(10, (count,), device="cuda")
    logits = (1e-3 * torch.randn(2, 14, 8, device="cuda")).requires_grad_()
    facts = describe("cuda").to_dict() | {"torch": str(torch.__version__)}
    record: dict[str, Any] = {"device": facts, "images": given.images and "cifar10", "rows": {}, "errors": {}}
    record |= {name: getattr(given, name) for name in ("channels", "batch", "backend", "autocast")}

    def keep() -> None:
        if given.output:
            given.output.write_text(encoded(record, indent=1) + "\n", encoding="utf-8")

    names = dict.fromkeys(["plain", *given.networks])
    if not given.no_errors:
        compared = {name: makes[name] for name in names}
        record["errors"] = errors(compared, images, labels, logits, given.backend, given.warm, half)
        keep()
    for name, row in record["errors"].items():
        figures = (f"{what} {value:.2e}" for what, value in row.items() if isinstance(value, float))
        print(f"{name}: {', '.join(figures)}", flush=True)
    images, labels = images[: given.batch], labels[: given.batch]
    for name in [] if given.quick else given.networks:
        make = makes[name]
        with chosen(given.backend):
            row = eager(make, images, labels, logits, given.warm, half)
            row |= captured(make, images, labels, logits, half)
        record["rows"][name] = row
        print(
            f"{name}: " + ", ".join(f"{k} {v:.1f}" for k, v in row.items() if isinstance(v, float)),
            flush=True,
        )
        for kernel in row["kernels"][:12]:
            print(f"  {kernel['ms']:7.2f} ms {kernel['count']:5} {kernel['kernel'][:80]}")
        keep()
    choices = nxcore._session().chooser.choices  # noqa: SLF001  no public name has them all at once
    served = Counter((key[0].op, c.decision.chosen, c.decision.rule) for key, c in choices.items())
    record["choices"] = {" ".join(names): n for names, n in sorted(served.items())}
    keep()


if __name__ == "__main__":
    main()
