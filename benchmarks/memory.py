"""Whether memory stays flat on the path of this process: ``python benchmarks/memory.py [calls] [shapes]``.

Prints how much the process grows over calls of one shape, over forward and backward passes, and over new
shapes. The first round of each warms up: tables fill, and the allocator takes what it keeps.
"""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import nxcore
from nxcore.interop import native

WARM = 20_000
"""New shapes after which all tables are full: plans in use, older ones, and watches over kernels."""

PAGE_KIB = resource.getpagesize() / 1024


def resident_kib() -> float:
    """Return the process's resident memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_KIB


def grown_kib(work: Callable[[int], None], count: int, warm: int) -> float:
    """Return by how much ``count`` calls of ``work`` grow the process, after ``warm`` calls."""
    for i in range(warm):
        work(i)
    before = resident_kib()
    for i in range(warm, warm + count):
        work(i)
    return resident_kib() - before


def growths(calls: int, shapes: int, backend: str = "numba") -> dict[str, float]:
    """Return the kibibytes by which the process grows, by what it does."""
    add, pool = nxcore.op("add", backend=backend), nxcore.op("avg_pool2d", backend=backend)
    x, y = torch.randn(2, 64).unbind()
    image, grad = torch.randn(1, 2, 8, 8, requires_grad=True), torch.ones(1, 2, 8, 8)

    def both_ways(_: int) -> None:
        torch.autograd.grad(pool(image, 3, 1, 1), [image], grad)

    def anew(i: int) -> None:
        add(x[: 1 + i % 64].expand(1 + i // 64, -1), y[: 1 + i % 64])

    return {
        f"{calls:,} calls": grown_kib(lambda _: add(x, y), calls, 10_000),
        f"{calls // 10:,} forward and backward passes": grown_kib(both_ways, calls // 10, 2_000),
        f"{shapes:,} new shapes": grown_kib(anew, shapes, WARM),
    }


def main() -> None:
    """Print the growths."""
    given = [int(arg) for arg in sys.argv[1:]]
    calls, shapes = (*given, *(10_000_000, 100_000)[len(given) :])
    path = "Python" if native.of(nxcore.op("add")) is None else "compiled"
    for what, kib in growths(calls, shapes).items():
        print(f"{path} path, {what}: {kib:+.0f} KiB")


if __name__ == "__main__":
    main()
