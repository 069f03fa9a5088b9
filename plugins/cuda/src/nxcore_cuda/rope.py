"""rope: a thread turns a vector of pairs of several rows, whose angles it reads once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import FLOATS, Problem, Turned
from nxcore_cuda.candidates import TYPES
from nxcore_cuda.layout import DIMS, STRIDES, VECTOR, dims, steps
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher
from nxcore_cuda.machine.toolkit import EMULATED

ROWS = 4
"""The most rows of a thread; as in rope.cu."""

THREADS, ENOUGH = 256, 64 if EMULATED else 2**16
"""Threads of a block, and those that fill a large GPU: only beyond them a thread has more rows than one."""


def _instance(dtype: torch.dtype, angles: torch.dtype, width: int) -> Instance:
    return Instance("rope", (TYPES[dtype], TYPES[angles], width), "rope", threads=THREADS)


def _width(found: Turned, wide: int) -> int:
    """Return the elements of a vector: ``wide``, or 1 where rows aren't made of those."""
    strides = (*found.again, *(n for step in found.steps for n in step), found.pairs, found.rest)
    return wide if set(found.entry) == {1} and all(n % wide == 0 for n in strides) else 1


def plan(problem: Problem) -> Callable[..., Any]:
    """Return the launch of ``rope``, or of its gradient, which turns back and reads no ``x``."""
    back = int(problem.op.endswith("_backward"))
    x, cos = problem.args[0], problem["cos"]
    out = problem.outputs[0] if back else problem.outputs
    found = Turned.of(problem)

    def launch(width: int) -> Launcher:
        turning, places = found.pairs // width, (found.pairs + found.rest) // width
        rows = max(min(ROWS, found.repeats, found.rows * found.repeats * places // ENOUGH), 1)
        chunks = -(-found.repeats // rows)
        sizes = (chunks, *found.sizes, places)
        walks = [(rows * n, *step, 0) for n, step in zip(found.again, found.steps, strict=True)]
        none = (0,) * len(found.sizes)
        walks += [(0, *none, 1), (rows, *none, 0)]
        kept = [k for k, n in enumerate(sizes) if n != 1]
        walked = (tuple(walk[k] for k in kept) for walk in walks)
        count = chunks * found.rows * places
        values = (
            *(count, found.repeats, found.again[0], found.again[3], *found.entry[:3], turning),
            *dims(tuple(sizes[k] for k in kept)),
            *(n for walk in walked for n in steps(walk)),
            *(rows, int(problem["interleaved"]), int(found.each), back),
        )
        return Launch(
            _instance(x.dtype, cos.dtype, width),
            problem.device,
            -(-count // THREADS),
            THREADS,
            pointers=4,
            layout=f"8q{DIMS}{6 * STRIDES}4i",
            values=values,
        )

    wide = _width(found, VECTOR // x.element_size())
    run = Guarded(launch(wide) if wide > 1 else None, launch(1))

    def call(x: Tensor, *rest: Any) -> Any:
        result = out.empty()
        run(x, *rest[back : back + 2], result)
        return (result, None, None) if back else result

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for dtype in FLOATS:
        for angles in {dtype, torch.float32}:
            for width in (1, VECTOR // dtype.itemsize):
                yield _instance(dtype, angles, width)
