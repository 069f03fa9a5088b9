"""An eager search step on a CUDA device: what it waits for, with the network replayed whole or by cells.

    python benchmarks/search_host.py [--output search-host.json] [--networks whole cells] [--no-errors]
                                     [--policy measure]

The network and its step are those of ``benchmarks/search_step.py``, under ``nas.patch``. Of one step from an
idle device to an idle device: the host's part of the forward and of the backward pass, the wait for the
device after these, and all of it by the wall; and the time of a step if twenty follow each other. As is,
without garbage collection, and with autograd in one thread. Beside it the same step captured
(``nxcore.graphed``), memory, and errors against float64.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import nxcore
from nxcore import nas
from nxcore.nas import whole
from nxcore.spec.device import describe
from nxcore.store.encoding import encoded

sys.path.append(str(Path(__file__).parents[1]))
from benchmarks import search_step

STEPS, ROW, WARM = 25, 20, 32
WAYS = ("whole", "cells")
TAKE = whole.take
BATCHES = 3


def patched(way: str) -> nn.Module:
    """Return the network, patched so that it is replayed whole or by cells."""
    whole.take = TAKE if way == "whole" else bool
    net: nn.Module = search_step.networks()["patched"]()
    return net


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage within the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "as is": contextlib.nullcontext,
    "no gc": without_collection,
    "one thread": lambda: torch.autograd.set_multithreading_enabled(False),
}


def host_parts(forward: Callable[[], Tensor], backward: Callable[[Tensor], Any]) -> dict[str, float]:
    """Return the medians of a step's parts, in ms."""
    rows = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        times = [time.perf_counter()]
        loss = forward()
        times.append(time.perf_counter())
        found = backward(loss)
        times.append(time.perf_counter())
        torch.cuda.synchronize()
        times.append(time.perf_counter())
        del loss, found
        rows.append([1e3 * (b - a) for a, b in itertools.pairwise(times)])
        rows[-1].append(1e3 * (times[-1] - times[0]))
    medians = [statistics.median(column) for column in zip(*rows, strict=True)]
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(ROW):
        backward(forward())
    torch.cuda.synchronize()
    each = 1e3 * (time.perf_counter() - began) / ROW
    return dict(zip(("forward", "backward", "wait", "total"), medians, strict=True)) | {"in a row": each}


def measured(way: str, images: Tensor, labels: Tensor, logits: Tensor) -> dict[str, Any]:
    """Return times and memory of one way."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    net = patched(way)
    wanted = [logits, *net.parameters()]

    def forward() -> Tensor:
        return cross_entropy(net(images, *logits.unbind(0)), labels)

    def backward(loss: Tensor) -> Any:
        return torch.autograd.grad(loss, wanted)

    def accumulated(loss: Tensor) -> None:
        loss.backward()
        for tensor in wanted:
            tensor.grad = None

    began = time.perf_counter()
    for turn in range(WARM):
        backward(forward())
        torch.cuda.synchronize()
        states = nas.replays(net)
        if turn > 2 and any(states.get(name, "").startswith("replays") for name in ("", "cells.7")):
            break
    row: dict[str, Any] = {"warm_s": time.perf_counter() - began, "steps": turn + 1, "replays": states}
    print(f"{way}: {turn + 1} steps, {row['warm_s']:.1f} s", flush=True)
    torch.cuda.reset_peak_memory_stats()
    for name, mode in MODES.items():
        with mode():
            row[name] = host_parts(forward, backward)
    row["backward()"] = host_parts(forward, accumulated)
    row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    row["added_gib"] = row["peak_gib"] - before / 2**30
    return row


def captured(images: Tensor, labels: Tensor, logits: Tensor) -> dict[str, Any]:
    """Return the time of the step as one capture."""
    net = patched("cells")
    replay = nxcore.graphed(search_step.step_of(net, images, labels, logits))
    replay()
    return {"captured_ms": search_step.timed(replay)}


def errors(ways: list[str], images: Tensor, labels: Tensor, logits: Tensor, policy: str) -> dict[str, Any]:
    """Return the errors of all ways against float64, and of plain torch."""
    search_step.BATCHES = BATCHES
    setattr(search_step, "chosen", lambda _: nxcore.policy(policy))  # noqa: B010  of another type
    nets = {"plain": search_step.networks()["plain"]()} | {way: patched(way) for way in ways}
    made: dict[str, Callable[[], nn.Module]] = {n: functools.partial(nets.__getitem__, n) for n in nets}
    found: dict[str, Any] = search_step.errors(made, images, labels, logits, None, WARM // 2)
    state = nets["plain"].state_dict()
    for way in ways:
        own = nets[way].state_dict()
        off = []  # a mean may be 0 but for rounding, so it is held against the deviation
        for name in state:
            if "running_" in name:
                of_var = name.endswith("var")
                scale = state[name] if of_var else state[name.replace("mean", "var")].sqrt()
                off.append(float((own[name] - state[name]).norm() / scale.norm()))
        found[way]["running statistics, from plain"] = max(off)
        found[way]["batches tracked"] = all(torch.equal(own[n], state[n]) for n in state if "tracked" in n)
    return found


def show(way: str, row: dict[str, Any]) -> None:
    """Print the results of one way."""
    print(way, *(f"{k} {v:.2f}" for k, v in row.items() if isinstance(v, float)), row.get("failed", ""))
    states = row.get("replays", {})
    print("  " + (states.get("") or states.get("cells.0") or "")[:160])
    for mode, parts in row.items():
        if isinstance(parts, dict) and mode != "replays":
            print(f"  {mode}:", ", ".join(f"{k} {v:.2f}" for k, v in parts.items()))
    sys.stdout.flush()


def main() -> None:
    """Measure, print a table last, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="write the results to this file, as JSON")
    parser.add_argument("--networks", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--policy", default="measure", help="by which kernels are chosen, by default measure")
    parser.add_argument("--no-errors", action="store_true", help="measure the times only")
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    images = torch.randn(BATCHES * 64, 3, 32, 32, device="cuda")
    labels = torch.randint(10, (len(images),), device="cuda")
    logits = (1e-3 * torch.randn(2, 14, 8, device="cuda")).requires_grad_()
    record: dict[str, Any] = {"device": describe("cuda").to_dict() | {"torch": str(torch.__version__)}}
    record["rows"] = rows = {}

    def keep() -> None:
        if given.output:
            given.output.write_text(encoded(record, indent=1) + "\n", encoding="utf-8")

    with nxcore.policy(given.policy):
        for way in given.networks:
            try:
                rows[way] = measured(way, images[:64], labels[:64], logits)
            except Exception as error:  # noqa: BLE001  the other ways are measured all the same
                rows[way] = {"failed": f"{type(error).__name__}: {error}"}
            show(way, rows[way])
            keep()
        rows["captured"] = captured(images[:64], labels[:64], logits)
        show("captured", rows["captured"])
        keep()
    if not given.no_errors:
        gc.collect()
        torch.cuda.empty_cache()
        record["errors"] = errors(given.networks, images, labels, logits, given.policy)
        keep()
        for name, row in record["errors"].items():
            figures = [f"{k} {v:.2e}" for k, v in row.items() if isinstance(v, float)]
            print(name, ", ".join(figures), row.get("batches tracked", ""))


if __name__ == "__main__":
    main()
