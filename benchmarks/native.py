"""Calls beside torch's own, on the path of this process: ``python benchmarks/native.py [cpu|cuda]``.

Ratios of minima over many short rounds in turns, since noise only adds time. ``NXCORE_NATIVE=0`` measures
Python's path. On a GPU, rounds end with a synchronisation, so the larger of host and device time counts.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F  # noqa: N812  as torch's own documentation names it

import nxcore
from nxcore.interop import native
from nxcore.registry.discovery import discover
from nxcore.session import Session
from nxcore.settings import Settings

ROUNDS = 30
PASSES = 3
"""All calls are measured one after another so often: a host may be slower for seconds."""

BUDGET_US = 20_000.0
"""Microseconds of a round."""


class Row(NamedTuple):
    """One call beside torch's: microseconds of each, and the budget of their ratio."""

    name: str
    ours_us: float
    torch_us: float
    budget: float

    @property
    def ratio(self) -> float:
        return self.ours_us / self.torch_us

    def __str__(self) -> str:
        return (
            f"{self.name:55} {self.ours_us:9.2f} {self.torch_us:9.2f} us {self.ratio:6.2f} of {self.budget}"
        )


def _round_us(call: Callable[[], Any], count: int, cuda: bool) -> float:
    began = time.perf_counter_ns()
    for _ in range(count):
        call()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter_ns() - began) / count * 1e-3


def beside(
    name: str,
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    budget: float,
    cuda: bool,
    rounds: int = ROUNDS,
) -> Row:
    """Measure two calls in turns."""
    for call in (ours, theirs):
        _round_us(call, 10, cuda)
    count = max(2, min(2_000, int(BUDGET_US / _round_us(theirs, 5, cuda))))
    least = [float("inf")] * 2
    for _ in range(rounds):
        for i, call in enumerate((ours, theirs)):
            least[i] = min(least[i], _round_us(call, count, cuda))
    return Row(name, *least, budget)


def _both_ways(call: Callable[[], Any], leaves: list[torch.Tensor], grad: torch.Tensor) -> Callable[[], Any]:
    def run() -> Any:
        result = call()
        return torch.autograd.grad(result[0] if isinstance(result, tuple) else result, leaves, grad)

    return run


def looked_up(x: torch.Tensor, y: torch.Tensor) -> Callable[[], Any]:
    """Return a call whose plan does nothing: what is left is to find the plan."""
    settings = Settings.from_environment()
    op = Session(Settings(native=settings.native), discover(found=())).op("add")
    op.replan(op.key(x, y, 1, None), lambda *args: args[0])
    return lambda: op(x, y)


def gathered(xs: list[torch.Tensor], logits: torch.Tensor) -> Callable[[], Any]:
    """Return a call of many tensors whose plan does nothing."""
    settings = Settings.from_environment()
    op = Session(Settings(native=settings.native), discover(found=())).op("softmax_sum")
    op.replan(op.key(tuple(xs), logits), lambda *args: args[0][0])
    return lambda: op(xs, logits)


class Case(NamedTuple):
    """Two calls, the budget of their ratio, and whether gradients are recorded."""

    name: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    budget: float
    grad: bool = True


def cases(device: str, backend: str) -> Iterator[Case]:
    """Yield the calls of the budgets."""

    def op(name: str) -> Any:
        return nxcore.op(name, backend=backend)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, requires_grad=True)

    one, other = torch.randn(2, 1024, device=device).unbind()
    add, blend = op("add"), op("softmax_sum")
    with torch.no_grad():
        hit = looked_up(one, other)
    yield Case("a hit: an addition that does nothing", hit, lambda: torch.add(one, other), 1.0, grad=False)
    yield Case("add of 1,024", lambda: add(one, other), lambda: torch.add(one, other), 1.10, grad=False)
    x, w, b, d = leaf(64, 16, 32, 32), leaf(16), leaf(16), leaf(16, 1, 3, 3)
    grad = torch.randn(64, 16, 32, 32, device=device)
    norm, pool, mean, depthwise = map(op, ("batch_norm", "max_pool2d", "avg_pool2d", "depthwise_conv2d"))
    modules: dict[str, tuple[Any, Any, list[torch.Tensor]]] = {
        "max_pool2d": (lambda: pool(x, 3, 1, 1), lambda: F.max_pool2d(x, 3, 1, 1), [x]),
        "avg_pool2d": (lambda: mean(x, 3, 1, 1), lambda: F.avg_pool2d(x, 3, 1, 1), [x]),
        "depthwise_conv2d": (
            lambda: depthwise(x, d, 1, 1),
            lambda: F.conv2d(x, d, None, 1, 1, 1, 16),
            [x, d],
        ),
        "batch_norm": (
            lambda: norm(x, w, b),
            lambda: F.batch_norm(x, None, None, w, b, training=True),
            [x, w, b],
        ),
    }
    for name, (ours, theirs, leaves) in modules.items():
        both = _both_ways(ours, leaves, grad), _both_ways(theirs, leaves, grad)
        yield Case(f"{name} (64, 16, 32, 32), both ways", *both, 1.0)
    xs, logits = [leaf(64, 16, 32, 32) for _ in range(8)], leaf(8)

    def loop() -> torch.Tensor:
        shares = torch.softmax(logits, 0)
        total = shares[0] * xs[0]
        for i in range(1, 8):
            total = total + shares[i] * xs[i]
        return total

    def einsum() -> torch.Tensor:
        return torch.einsum("n...,n->...", torch.stack(xs), torch.softmax(logits, 0))

    ours = _both_ways(lambda: blend(xs, logits), [*xs, logits], grad)
    for name, theirs, budget in (("the loop", loop, 0.2), ("stack and einsum", einsum, 0.5)):
        both = ours, _both_ways(theirs, [*xs, logits], grad)
        yield Case(f"softmax_sum of 8 beside {name}, both ways", *both, budget)


def rows(device: str, backend: str, rounds: int = ROUNDS, passes: int = PASSES) -> Iterator[Row]:
    """Measure the calls of the budgets; yield each in the last pass over all of them."""
    found = list(cases(device, backend))
    least: dict[str, Row] = {}
    for number in range(passes):
        for case in found:
            with torch.set_grad_enabled(case.grad):
                row = beside(*case[:4], device == "cuda", -(-rounds // passes))
            best = least.get(case.name, row)
            times = min(row.ours_us, best.ours_us), min(row.torch_us, best.torch_us)
            least[case.name] = Row(case.name, *times, case.budget)
            if number == passes - 1:
                yield least[case.name]
            else:
                print(least[case.name], "so far", file=sys.stderr, flush=True)


def together(call: Callable[..., Any], size: int, device: str, threads: int = 16) -> float:
    """Return calls a second of some Python threads, each with two tensors of its own."""
    stop, counts = time.perf_counter() + 0.5, [0] * threads

    def work(i: int) -> None:
        with torch.no_grad():
            x, y = torch.randn(2, size, device=device).unbind()
            while time.perf_counter() < stop:
                for _ in range(20):
                    call(x, y)
                counts[i] += 20
            if device == "cuda":
                torch.cuda.synchronize()

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began)


class Rates(NamedTuple):
    """Calls a second of some threads together, beside torch's own."""

    ours: float
    torch: float

    @property
    def ratio(self) -> float:
        return self.ours / self.torch


def scaling(device: str, backend: str, size: int = 1024, threads: int = 16, rounds: int = 5) -> Rates:
    """Return the rates of threads that add: the best of some rounds in turns."""
    add, best = nxcore.op("add", backend=backend), [0.0, 0.0]
    with torch.no_grad():
        x, y = torch.randn(2, size, device=device).unbind()
        for _ in range(50):
            add(x, y)
    for _ in range(rounds):
        for i, call in enumerate((add, torch.add)):
            best[i] = max(best[i], together(call, size, device, threads))
    return Rates(*best)


def main() -> None:
    parser = argparse.ArgumentParser(description="Calls beside torch's own, on the path of this process.")
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("device", nargs="?", default=usual, choices=("cpu", "cuda"))
    parser.add_argument("backend", nargs="?", help="by default cuda on a GPU, numba on a CPU")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each call; {ROUNDS} by default")
    parser.add_argument("--passes", type=int, default=PASSES, help=f"over all calls; {PASSES} by default")
    args = parser.parse_args()
    device = args.device
    backend = args.backend or ("cuda" if device == "cuda" else "numba")
    compiled = native.of(nxcore.op("add")) is not None
    about = f"{native.found().detail}: " if not compiled else ""
    print(
        f"torch {torch.__version__}, {device}, {backend}, {about}{'compiled' if compiled else 'Python'} path"
    )
    for row in rows(device, backend, args.rounds, args.passes):
        print(row, flush=True)
    for size in (1024, 16_384):
        rates = scaling(device, backend, size)
        print(
            f"16 threads that add {size:,}: {rates.ratio:.2f} of torch's rate, at least 0.9 "
            f"({rates.ours:,.0f} and {rates.torch:,.0f} calls a second)",
            flush=True,
        )


if __name__ == "__main__":
    main()
