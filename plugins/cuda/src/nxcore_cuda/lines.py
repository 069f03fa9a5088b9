"""Lines: the threads of each, what of it stays in shared memory, and the launch by vectors or by elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from nxcore.plugin import Lines, TensorMeta
from nxcore_cuda.layout import VECTOR
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Guarded, Launch, Launcher

__all__ = ["MOST", "VECTOR", "WARP", "groups", "launch", "threads_of"]

WARP, MOST = 32, 1024
EACH = 4
"""Vectors of a line for each of its threads, where there are threads enough."""

ALONE, MANY = 64, 4096
"""The most entries of a line that a thread has alone where neighbours lie beside it; the least lines."""

MOST_BLOCKS = 2**31 - 1

SMALL = 128
"""Threads of a block of several lines."""

SPARE = 2048
"""Bytes of a block's shared memory for what kernels reduce in."""


PORTABLE = 48 * 1024
"""Bytes of shared memory of a block on every device."""


def memory(device: torch.device) -> int:
    """Return the bytes of shared memory that a block may have."""
    properties: Any = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return getattr(properties, "shared_memory_per_block_optin", PORTABLE)


def threads_of(vectors: int) -> tuple[int, int]:
    """Return the threads of a line of so many vectors, and of a block."""
    lanes = min(1 << max(-(-vectors // EACH) - 1, 0).bit_length(), MOST)
    return lanes, max(lanes, SMALL) if lanes <= WARP else lanes


def _threads(found: Lines, wide: int) -> tuple[int, int]:
    beside = any(within == 1 < entry for _, within, entry in found.steps)
    if beside and found.length <= ALONE and found.count >= MANY:
        return 1, SMALL  # so that a warp reads memory in one piece
    return threads_of(found.length // wide if found.vectors(wide) else found.length)


def blocks(found: Lines, wide: int, most: int = 0) -> int:
    """Return the blocks of a launch on lines, of ``wide`` elements a vector where they can be read so."""
    lanes, threads = _threads(found, wide)
    return min(-(-found.count * lanes // threads), most or MOST_BLOCKS)


def groups(found: Lines, dtype: torch.dtype, most: int) -> int:
    """Return how many groups of threads have lines of their own."""
    wide = VECTOR // dtype.itemsize
    lanes, threads = _threads(found, wide)
    return blocks(found, wide, most) * (threads // lanes)


def launch(
    instance: Callable[[int], Instance],
    device: torch.device,
    found: Lines,
    steps: Sequence[tuple[int, int, int]],
    metas: Sequence[TensorMeta],
    *,
    kept: int,
    pointers: int = 0,
    head: str = "",
    values: tuple[Any, ...] = (),
    most: int = 0,
    summed: int = 0,
) -> Launcher:
    """Return the launch of a kernel on lines, by vectors where all tensors lie so.

    Parameters
    ----------
    instance : callable
        ``instance(width)``: the kernel for vectors of so many elements.
    steps : sequence of (int, int, int)
        Of the tensors in the kernel's order.
    metas : sequence of TensorMeta
        Those tensors.
    kept : int
        How many of them, the first ones, are kept in shared memory.
    pointers : int
        Pointers of the kernel's struct, where these are more than the tensors.
    head, values
        What lies between the pointers and the lines in the kernel's struct.
    most : int
        The most blocks, where they step through the lines.
    summed : int
        How many float32 sums threads keep for each entry too.
    """
    size = max(meta.element_size() for meta in metas)
    room, wide = memory(device) - SPARE, VECTOR // size
    lanes, threads = _threads(found, wide)
    grid = blocks(found, wide, most)

    def launched(width: int) -> Launcher:
        vectors = found.length // width
        each = (sum(meta.element_size() for meta in metas[:kept]) + 4 * summed) * width * threads
        held = min(-(-vectors // lanes), room // each)
        of_lines = (found.count, found.inner, *(step[k] for k in range(3) for step in steps))
        return Launch(
            instance(width),
            device,
            grid,
            threads,
            shared=held * each,
            pointers=pointers or len(metas),
            layout=f"{head}{3 + 3 * len(steps)}q2i",
            values=(*values, *of_lines, vectors, lanes, held),
        )

    return Guarded(launched(wide) if wide > 1 and found.vectors(wide) else None, launched(1))
