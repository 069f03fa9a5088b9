"""Whether memory stays flat on the path of this process: ``python benchmarks/memory.py [calls] [shapes]``.

Prints how much the process grows over calls of one shape, over forward and backward passes, and over new
shapes: those of which each has a plan, and those that are met once under the default policy, so that torch
serves them. The first calls of each fill the tables. Memory is compared when what is free was given back. No
tensor has more than 4,096 elements, since tables keep some tensors.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import random
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import nxcore
from nxcore.call.operator import CAPACITY
from nxcore.interop import native

WARM = 4 * CAPACITY
"""New shapes after which all tables are full: plans in use, older ones, and watches over kernels."""

ELEMENTS = 4096
"""The most elements of a new shape."""

PAGE_KIB = resource.getpagesize() / 1024


def resident_kib() -> float:
    """Return the process's resident memory, without what is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_KIB


def grown_kib(work: Callable[[int], None], count: int, warm: int) -> float:
    """Return by how much ``count`` calls of ``work`` grow the process, after ``warm`` calls."""
    for i in range(warm):
        work(i)
    before = resident_kib()
    for i in range(warm, warm + count):
        work(i)
    return resident_kib() - before


def bounded_shapes() -> list[tuple[int, int, int]]:
    """Return 168,736 shapes in an order that has small and large ones everywhere."""
    shapes = [
        (a, b, c)
        for a in range(1, ELEMENTS + 1)
        for b in range(1, ELEMENTS // a + 1)
        for c in range(1, ELEMENTS // (a * b) + 1)
    ]
    random.Random(0).shuffle(shapes)
    return shapes


def growths(calls: int, shapes: int, backend: str = "numba") -> dict[str, float]:
    """Return the kibibytes by which the process grows, by what it does."""
    add, pool = nxcore.op("add", backend=backend), nxcore.op("avg_pool2d", backend=backend)
    x, y = torch.randn(2, 64).unbind()
    image, grad = torch.randn(1, 2, 8, 8, requires_grad=True), torch.ones(1, 2, 8, 8)

    def both_ways(_: int) -> None:
        torch.autograd.grad(pool(image, 3, 1, 1), [image], grad)

    anywhere, some = nxcore.op("add"), torch.randn(ELEMENTS)
    of_all = bounded_shapes()

    def anew(op: Callable[..., Any]) -> Callable[[int], None]:
        def call(i: int) -> None:
            a, b, c = of_all[i]
            one = some[: a * b * c].view(a, b, c)
            op(one, one[0])

        return call

    return {
        f"{calls:,} calls": grown_kib(lambda _: add(x, y), calls, WARM),
        f"{calls // 10:,} forward and backward passes": grown_kib(both_ways, calls // 10, WARM),
        # First those without a plan: a shape that has one isn't met rarely.
        f"{shapes:,} new shapes, met once": grown_kib(anew(anywhere), shapes, WARM),
        f"{shapes:,} new shapes, each with a plan": grown_kib(anew(add), shapes, WARM),
    }


def main() -> None:
    """Print the growths."""
    parser = argparse.ArgumentParser(description="Whether memory stays flat on the path of this process.")
    parser.add_argument("calls", nargs="?", type=int, default=10_000_000)
    parser.add_argument("shapes", nargs="?", type=int, default=25 * CAPACITY)
    args = parser.parse_args()
    path = "Python" if native.of(nxcore.op("add")) is None else "compiled"
    for what, kib in growths(args.calls, args.shapes).items():
        print(f"{path} path, {what}: {kib:+.0f} KiB")


if __name__ == "__main__":
    main()
