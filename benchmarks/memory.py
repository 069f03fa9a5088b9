"""Whether memory stays flat on the path of this process: ``python benchmarks/memory.py [calls] [shapes]``.

Prints how much the process grows over calls of one shape, over forward and backward passes, and over new
shapes: those of which each has a plan, and those that are met once under the default policy, so that torch
serves them. The first calls of each fill the tables. No tensor has more than 4,096 elements, since tables
keep some tensors.

*Allocated* is what the program holds of the allocators of C and Python. *Resident* is what the process takes
when what is free was given back: that has code too, and the free parts of pages that hold anything.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import re
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

import nxcore
from nxcore.call.operator import CAPACITY
from nxcore.interop import native

WARM = 6 * CAPACITY
"""New shapes after which all tables are full: plans in use, older ones, and watches over kernels."""

ELEMENTS = 4096
"""The most elements of a new shape."""

PAGE_KIB = resource.getpagesize() / 1024


def resident_kib() -> float:
    """Return the process's resident memory, without what is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_KIB


class _Heap(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later."""

    NAMES = "arena ordblks smblks hblks mapped usmblks fsmblks used free keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in NAMES.split())


def allocated_kib() -> float:
    """Return what is allocated, in C and in blocks of Python's allocator."""
    gc.collect()
    with tempfile.TemporaryFile() as file:
        errors = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            sys._debugmallocstats()  # noqa: SLF001  there is no other way; it prints
        finally:
            os.dup2(errors, 2)
            os.close(errors)
        file.seek(0)
        found = re.search(rb"# bytes in allocated blocks += +([\d,]+)", file.read())
    blocks = int(found[1].replace(b",", b"")) if found else 0
    look = ctypes.CDLL(None).mallinfo2
    look.restype = _Heap
    heap = look()
    return float(heap.used + heap.mapped + blocks) / 1024


class Growth(NamedTuple):
    """By how many kibibytes a process grows."""

    allocated: float
    resident: float


def grown(work: Callable[[int], None], count: int, warm: int) -> Growth:
    """Return by how much ``count`` calls of ``work`` grow the process, after ``warm`` calls."""
    for i in range(warm):
        work(i)
    before = allocated_kib(), resident_kib()
    for i in range(warm, warm + count):
        work(i)
    return Growth(allocated_kib() - before[0], resident_kib() - before[1])


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


def growths(calls: int, shapes: int, backend: str = "numba") -> Iterator[tuple[str, Growth]]:
    """Yield what the process does, and by how much it grows."""
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

    yield f"{calls:,} calls", grown(lambda _: add(x, y), calls, WARM)
    yield f"{calls // 10:,} forward and backward passes", grown(both_ways, calls // 10, WARM)
    # First those without a plan: a shape that has one isn't met rarely.
    yield f"{shapes:,} new shapes, met once", grown(anew(anywhere), shapes, WARM)
    yield f"{shapes:,} new shapes, each with a plan", grown(anew(add), shapes, WARM)


def main() -> None:
    """Print the growths."""
    parser = argparse.ArgumentParser(description="Whether memory stays flat on the path of this process.")
    parser.add_argument("calls", nargs="?", type=int, default=10_000_000)
    parser.add_argument("shapes", nargs="?", type=int, default=25 * CAPACITY)
    args = parser.parse_args()
    path = "Python" if native.of(nxcore.op("add")) is None else "compiled"
    for what, kib in growths(args.calls, args.shapes):
        print(
            f"{path} path, {what}: {kib.allocated:+,.0f} KiB allocated, {kib.resident:+,.0f} resident",
            flush=True,
        )


if __name__ == "__main__":
    main()
