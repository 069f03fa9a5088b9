"""Shared by the planners of operators on lists of separable convolutions: which launch has which of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import Any

import torch

from nxcore_cuda import separable
from nxcore_cuda.depthwise import STEPS
from nxcore_cuda.machine.instance import Instance
from nxcore_cuda.machine.launch import Launch, Launcher
from nxcore_cuda.separable import BAND, MOST, Layer, Tile

ROOM, KINDS = 32, 6  # items and bands of a launch, as in foreach.cuh
BANDS = f"{BAND * KINDS}{KINDS}i{ROOM}i{ROOM + 1}ii"  # struct Bands
EMPTY = (0,) * (3 * int(STEPS[0]) + 5 + 28 + 14)  # struct Band

WINDOWS = ((311, 312, 511, 512), (321, 322, 521, 522), (311, 511))
"""The windows of common calls: what leaves a state of a cell, of a reduction's, and the second halves."""
APART = tuple(dict.fromkeys((window,) for windows in WINDOWS for window in windows))
"""Those of launches that have one window."""
MANY = 4  # convolutions of a window that are worth a launch of their own


@dataclass(frozen=True)
class Group:
    """How the convolutions of a call share launches.

    Attributes
    ----------
    memory : int
        Bytes of shared memory that a block may have.
    threads : int
        Of a block.
    together : bool
        Whether a launch has convolutions of several windows.
    planes : tuple of int, optional
        Which of ``planes.tiles`` convolutions of square planes have, and its items, in a launch for each
        window; where it is empty, those that ``planes.choose`` returns. They are in the others' launches
        where it is None.
    """

    memory: int
    threads: int = 256
    together: bool = True
    planes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Work:
    """The work of a launch for one convolution.

    Attributes
    ----------
    window : (int, int, int)
        Size, stride and dilation.
    band : tuple of int
        The values of its struct Band.
    rows, chunks : int
        Blocks: of a chunk of channels, and chunks.
    bytes : int
        Of shared memory.
    """

    window: tuple[int, int, int]
    band: tuple[int, ...]
    rows: int
    chunks: int
    bytes: int


def choose(layers: list[Layer], device: torch.device, *, back: bool) -> Group:
    """Return the group for a call.

    On an H100 gradients took less time in a launch for each window at every count, outputs from four
    convolutions of a window on.
    """
    windows = {(layer.size, layer.stride, layer.dilation) for layer in layers}
    return Group(separable.memory(device), together=not back and len(layers) < MANY * len(windows))


def tiles(layers: list[Layer], device: torch.device, group: Group, *, back: bool) -> list[Tile]:
    """Return the tile of each convolution."""
    found = [
        separable.choose(layer, device, back=back, most=group.memory, layers=len(layers)) for layer in layers
    ]
    if any(tile is None for tile in found):
        raise ValueError("no tile fits")
    return [replace(tile, threads=group.threads) for tile in found if tile is not None]


def sweep(layers: list[Layer], device: torch.device, *, back: bool) -> Iterator[Group]:
    """Yield the groups worth timing, the chosen one first."""
    most = separable.memory(device)
    sizes = [size for size in dict.fromkeys((most, MOST, 75 * 1024, MOST // 2)) if size <= most]
    for together, memory, threads in product((True, False), sizes, (256, 128, 512)):
        fits = (
            separable.choose(layer, device, back=back, most=memory, layers=len(layers)) for layer in layers
        )
        if all(tile is not None for tile in fits):
            yield Group(memory, threads, together)


def code(window: tuple[int, int, int]) -> int:
    """Return a window as the kernels' templates spell it."""
    size, stride, dilation = window
    return 100 * size + 10 * stride + dilation


def resident(codes: Sequence[int], threads: int) -> int:
    """Return how many blocks a multiprocessor is to hold, for the compiler; 0: no wish."""
    return 512 // threads if max(codes) < 700 else 0


def padded(numbers: Sequence[int], room: int = ROOM) -> tuple[int, ...]:
    """Return numbers for an array of the kernels' arguments."""
    return (*numbers, *(0,) * (room - len(numbers)))


def batches(works: list[Work], *, together: bool) -> Iterator[list[int]]:
    """Yield the convolutions of each launch: as many as its arguments have room for."""
    kinds = [None if together else work.window for work in works]
    for kind in dict.fromkeys(kinds):
        batch: list[int] = []
        bands: set[tuple[int, ...]] = set()
        for i in (i for i, own in enumerate(kinds) if own == kind):
            if len(batch) == ROOM or len(bands | {works[i].band}) > KINDS:
                yield batch
                batch, bands = [], set()
            batch.append(i)
            bands.add(works[i].band)
        yield batch


Launches = list[tuple[list[int], Launcher]]


def launches(
    works: list[Work],
    group: Group,
    device: torch.device,
    lists: int,
    instance: Callable[[tuple[int, ...]], Instance],
) -> Launches:
    """Return the launches of the convolutions, and which of them each has.

    Parameters
    ----------
    lists : int
        How many pointers an item has.
    instance : callable
        From the windows of a launch to its kernel.
    """
    found: Launches = []
    for batch in batches(works, together=group.together):
        some = [works[i] for i in batch]
        bands = list(dict.fromkeys(work.band for work in some))
        codes = {work.band: code(work.window) for work in some}
        slices = math.gcd(*(work.rows for work in some))
        firsts = [0, *accumulate(work.rows // slices * work.chunks for work in some)]
        numbers = (
            *padded([codes[band] for band in bands], KINDS),
            *padded([bands.index(work.band) for work in some]),
            *padded(firsts, ROOM + 1),
            len(some),
        )
        made = Launch(
            instance(tuple(sorted(set(codes.values())))),
            device,
            slices * firsts[-1],
            group.threads,
            max(work.bytes for work in some),
            pointers=lists * ROOM,
            layout=BANDS,
            values=(*(n for band in bands for n in band), *EMPTY * (KINDS - len(bands)), *numbers),
        )
        found.append((batch, made))
    return found


def run(made: Launches, *lists: Sequence[Any]) -> None:
    """Launch all convolutions: ``lists`` have the tensors of each, in the order of the kernel's pointers."""
    for batch, launch in made:
        spare = (None,) * (ROOM - len(batch))
        launch(*(tensor for tensors in lists for tensor in (*(tensors[i] for i in batch), *spare)))
