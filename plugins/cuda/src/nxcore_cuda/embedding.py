"""embedding: a thread copies a vector of a row that an index names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nxcore.plugin import Problem
from nxcore_cuda.layout import VECTOR
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher
from nxcore_cuda.scatters import BLOCKS, KEYS, THREADS

WORDS = {4: "float", 2: "bfloat16"}
"""Bytes of an element -> the type that it is copied as."""


def _instance(size: int, width: int, key: torch.dtype) -> Instance:
    return Instance("embedding", (WORDS[size], width, KEYS[key]), threads=THREADS)


def plan(problem: Problem) -> Callable[..., Tensor]:
    """Return the launch for one problem, ``call(input, weight, ...)``."""
    out, given, weight = problem.outputs, problem["input"], problem["weight"]
    (rows, columns), size = weight.shape, weight.element_size()

    def launch(width: int) -> Launcher:
        vectors = given.numel() * columns // width
        return Launch(
            _instance(size, width, given.dtype),
            problem.device,
            min(-(-vectors // THREADS), BLOCKS),
            THREADS,
            pointers=3,
            layout="3q",
            values=(rows, given.numel(), columns // width),
        )

    wide = VECTOR // size
    run = Guarded(launch(wide) if columns % wide == 0 else None, launch(1))

    def call(index: Tensor, weight: Tensor, *_: Any) -> Tensor:
        result: Tensor = out.empty()
        run(index, weight, result)
        return result

    return call


def instances() -> Iterator[Instance]:
    """Yield the kernels of common calls, to compile ahead of time."""
    for size in WORDS:
        for width in (1, VECTOR // size):
            for key in KEYS:
                yield _instance(size, width, key)
