"""What the stages of a call cost the host: ``python benchmarks/stages.py [cpu|cuda]``.

Microseconds on the path of this process, minima over short rounds, of calls whose kernels are as short as can
be. Differences of rows are stages: a further tensor is key and guards, an addition beside a hit is the result
and the launch, a call with a leaf beside one without is the forward half of autograd. ``NXCORE_NATIVE=0`` is
for Python's path. A GPU is idle before each round and not waited for after it: the host's time counts, as
long as kernels are shorter than their launches. On the CPU the processor's time of the thread counts, which
runs both ways: others may use the machine, but for its caches.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812  as torch's own documentation names it

import nxcore
from benchmarks.claims import emptied
from benchmarks.native import ROUNDS, _both_ways, _round_us, looked_up, scaling
from nxcore.interop import fresh, native
from nxcore.registry.discovery import discover
from nxcore.session import Session
from nxcore.settings import Settings

ROUND_US = 4_000.0
"""Microseconds of a round: a GPU's queue must not fill."""

Call = Callable[[], Any]
Stage = tuple[str, Call, Call | None]
"""What is measured, the call, and torch's own."""


def least_us(call: Call, cuda: bool, rounds: int = ROUNDS) -> float:
    """Return the least mean of some rounds, each begun with an idle device."""
    _round_us(call, 20, cuda)  # which may compile: a round of few calls is the clock's time too
    count = max(2, min(500, int(ROUND_US / _round_us(call, 20, cuda))))
    clock = time.perf_counter_ns if cuda else time.thread_time_ns
    found = []
    for _ in range(rounds):
        if cuda:
            torch.cuda.synchronize()
        began = clock()
        for _ in range(count):
            call()
        found.append((clock() - began) / count * 1e-3)
    return min(found)


def gathered(xs: list[torch.Tensor], logits: torch.Tensor) -> Call:
    """Return a call of many tensors whose plan does nothing."""
    settings = Settings.from_environment()
    op = Session(Settings(native=settings.native), discover(found=())).op("softmax_sum")
    op.replan(op.key(tuple(xs), logits), lambda *args: args[0][0])
    return lambda: op(xs, logits)


def stages(device: str, backend: str) -> Iterator[Stage]:
    """Yield what is measured."""

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, requires_grad=True)

    add, pool, mean, norm = (
        nxcore.op(name, backend=backend) for name in ("add", "max_pool2d", "avg_pool2d", "batch_norm")
    )
    with torch.no_grad():
        x, y = torch.randn(2, 1024, device=device).unbind()
        yield "a hit of two tensors, no plan", looked_up(x, y), None
        logits = torch.randn(16, device=device)
        yield "a hit of 17 tensors, no plan", gathered([x[:16].view(1, 1, 4, 4)] * 16, logits), None
        yield "add of 1,024", lambda: add(x, y), lambda: torch.add(x, y)
        a, product = torch.randn(8, 8, device=device), nxcore.op("matmul", backend="torch")
        yield "matmul (8, 8) by torch, of a class", lambda: product(a, a), lambda: torch.matmul(a, a)
        yield "a result: torch.empty_like", lambda: torch.empty_like(x), None
    x, w, b, grad = leaf(2, 4, 8, 8), leaf(4), leaf(4), torch.randn(2, 4, 8, 8, device=device)
    calls: dict[str, tuple[Call, Call, list[torch.Tensor]]] = {
        "max_pool2d": (lambda: pool(x, 3, 1, 1), lambda: F.max_pool2d(x, 3, 1, 1), [x]),
        "avg_pool2d": (lambda: mean(x, 3, 1, 1), lambda: F.avg_pool2d(x, 3, 1, 1), [x]),
        "batch_norm": (
            lambda: norm(x, w, b),
            lambda: F.batch_norm(x, None, None, w, b, training=True),
            [x, w, b],
        ),
    }
    for name, (ours, theirs, leaves) in calls.items():
        with torch.no_grad():
            yield f"{name} (2, 4, 8, 8), without a leaf", ours, theirs
        yield "the same with a leaf, forward", ours, theirs
        yield (
            "the same, forward and backward",
            _both_ways(ours, leaves, grad),
            _both_ways(theirs, leaves, grad),
        )
    bias = leaf(4, 1, 1)
    yield (
        "add of a bias to (2, 4, 8, 8), both ways",
        _both_ways(lambda: add(x, bias), [x, bias], grad),
        _both_ways(lambda: torch.add(x, bias), [x, bias], grad),
    )
    separable, dw, pw = nxcore.op("sep_conv2d", backend=backend), leaf(4, 1, 3, 3), leaf(4, 4, 1, 1)
    yield (
        "sep_conv2d (2, 4, 8, 8), both ways",
        _both_ways(lambda: separable(x, dw, pw, 1, 1), [x, dw, pw], grad),
        _both_ways(lambda: F.conv2d(F.conv2d(F.relu(x), dw, None, 1, 1, 1, 4), pw), [x, dw, pw], grad),
    )
    xs, logits = [leaf(2, 4, 8, 8) for _ in range(8)], leaf(8)
    blend = nxcore.op("softmax_sum", backend=backend)
    both = _both_ways(lambda: blend(xs, logits), [*xs, logits], grad)
    whole = torch.randn(16, 4, 8, 8, device=device)
    # torch's own node that takes as many tensors.
    yield (
        "softmax_sum of 8, both ways, beside cat of 8",
        both,
        _both_ways(lambda: torch.cat(xs), xs, whole),
    )
    nothing = emptied(xs, logits)
    node = _both_ways(lambda: nothing(xs, logits), [*xs, logits], grad)
    yield "the same that computes nothing: torch's autograd", node, None
    yield from many(device, backend)


def many(device: str, backend: str) -> Iterator[Stage]:
    """Yield how what a call of 16 candidates, with gradients, costs is made up."""
    xs = [torch.randn(4, 96, 24, 24, device=device, requires_grad=True) for _ in range(16)]
    logits, grad = torch.randn(16, device=device, requires_grad=True), torch.randn_like(xs[0])

    def both(call: Callable[..., Any]) -> Call:
        return _both_ways(lambda: call(xs, logits), [*xs, logits], grad)

    yield "16 x (4, 96, 24, 24), both ways, no computation", both(emptied(xs, logits)), None
    yield "the same, its gradients made anew", both(emptied(xs, logits, anew=True)), None
    blend = nxcore.op("softmax_sum", backend=backend)
    with alone():  # which its first calls record
        apart = Session(Settings.from_environment()).op("softmax_sum", backend=backend)
        _round_us(both(apart), 20, device == "cuda")
    yield "softmax_sum, each gradient allocated by itself", both(apart), None
    yield "the same, on a GPU in one allocation", both(blend), None


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Have plans that are recorded in this block allocate each gradient by itself."""
    before, fresh.PART = fresh.PART, 0
    try:
        yield
    finally:
        fresh.PART = before


def graphed_us(call: Call, calls: int = 200) -> float:
    """Return the device's microseconds of one call, by the replays of a graph of many."""
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    found = []
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / calls)
    return min(found)


def rates(device: str, backend: str) -> Iterator[str]:
    """Yield how threads scale, and on a GPU how long its kernels take, which bounds their rate."""
    add = nxcore.op("add", backend=backend)
    for size in (1024, 16_384):
        each = []
        for threads in (1, 16):
            found = scaling(device, backend, size, threads, rounds=2)
            ours, theirs = found.ours / 1e3, found.torch / 1e3
            each.append(f"{threads} {ours:.0f} and {theirs:.0f}k ({found.ratio:.2f} of torch's)")
        yield f"add of {size:,}, calls a second of threads: {', '.join(each)}"
        if device == "cuda":
            x, y = torch.randn(2, size, device=device).unbind()
            ours, theirs = (graphed_us(functools.partial(call, x, y)) for call in (add, torch.add))
            yield f"add of {size:,}, device: {ours:.2f} and {theirs:.2f} us"


def main() -> None:
    """Print the stages."""
    parser = argparse.ArgumentParser(
        description="What the stages of a call cost, on the path of this process."
    )
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("device", nargs="?", default=usual, choices=("cpu", "cuda"))
    parser.add_argument("backend", nargs="?", help="by default cuda on a GPU, numba on a CPU")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each call; {ROUNDS} by default")
    parser.add_argument("--many", action="store_true", help="only the rows of 16 candidates")
    parser.add_argument("--threads", action="store_true", help="how threads scale too")
    args = parser.parse_args()
    device, cuda = args.device, args.device == "cuda"
    backend = args.backend or ("cuda" if cuda else "numba")
    if not cuda:
        # As set: the stages are the host's; its kernels' threads would be noise.
        torch.set_num_threads(1)
    path = "Python" if native.of(nxcore.op("add")) is None else "compiled"
    print(f"torch {torch.__version__}, {device}, {backend}, {path} path: microseconds, and torch's own")
    for what, ours, theirs in (many if args.many else stages)(device, backend):
        least = least_us(ours, cuda, args.rounds), theirs and least_us(theirs, cuda, args.rounds)
        print(f"{what:48}" + "".join(f"{us:9.2f}" for us in least if us), flush=True)
    if args.threads:
        for line in rates(device, backend):
            print(line, flush=True)


if __name__ == "__main__":
    main()
