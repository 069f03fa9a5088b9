"""Time separable convolutions of square planes at stride 2 by kernels that know them, and by others.

Every tile is checked against float64, at the shapes of a search's reduction cells and all windows, and timed
in CUDA graphs, in turns: gradients without norms, and outputs with norms, of 16 convolutions in one call, as
leave a state of such a cell, and of four of one window; then of one convolution. Prints a line a case, writes
all figures after each.

    python benchmarks/strided.py --output FILE.json [--seconds 40]

``--compile`` compiles what the others start, many at a time; ``--profile`` runs one launch of each window,
for a profiler; ``--race`` one of each window on one image, for a sanitizer. On the emulator, ``--tiny`` shows
that the script works.

    NXCORE_CUDA_EMULATOR=1 python benchmarks/strided.py --output FILE.json --tiny
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from foreach import OP, backward_of
from nxcore_cuda import strided_planes, strided_planes_forward
from nxcore_cuda.planes import Planes
from nxcore_cuda.strided_planes_forward import Lines
from planes import FORWARD, MODULES, SINGLE, WINDOWS, Case, line, plan, row_of

import nxcore
from nxcore.plugin import Problem
from nxcore.store.encoding import encoded

SHAPES = tuple(strided_planes.TILES)
TURNS = (1, 2)
"""Images or halves that a block computes, one after the other."""


def single(images: int, channels: int, side: int, size: int, dilation: int, device: str) -> tuple[Any, ...]:
    """Return the call of one convolution's gradients."""
    torch.manual_seed(size + 10 * dilation)
    x = torch.randn(images, channels, side, side, device=device)
    grad = torch.randn(images, channels, side // 2, side // 2, device=device)
    filters = torch.randn(channels, 1, size, size, device=device) / size
    points = torch.randn(channels, channels, 1, 1, device=device) / channels**0.5
    return grad, x, filters, points, 2, (size - 1) * dilation // 2, dilation, True, (True,) * 3


def several(
    images: int, channels: int, side: int, count: int, windows: tuple[Any, ...], device: str, *, normed: bool
) -> tuple[Any, ...]:
    """Return the call of convolutions of one tensor, of which all have norms or none."""
    each = [single(1, channels, side, *windows[i % len(windows)], device) for i in range(count)]
    x = torch.randn(images, channels, side, side, device=device)
    filters, points, strides, pads, dilations = zip(*(one[2:7] for one in each), strict=True)
    return (x,) * count, filters, points, strides, pads, dilations, (normed,) * count, True, 1e-5


def single_case(op: str, images: int, shape: tuple[int, int], window: tuple[int, int], device: str) -> Case:
    """Return a case of one convolution: today's tile, then those of planes."""
    given = single(images, *shape, *window, device)
    if op == FORWARD:
        given = given[1:-1]
    tiles = list(MODULES[op].sweep(Problem.of(nxcore.op(op).spec, given)))
    own = [tile for tile in tiles if isinstance(tile, (Planes, Lines))]
    today = next(tile for tile in tiles if tile not in own)
    return f"{shape[0]}x{shape[1]} k{window[0]}d{window[1]}", op, given, [today, *own]


def grouped_case(
    op: str, images: int, shape: tuple[int, int], count: int, windows: tuple[Any, ...], device: str
) -> Case:
    """Return a case of several convolutions: as today, then by planes."""
    given = several(images, *shape, count, windows, device, normed=op == OP)
    if op == OP:
        numbers: list[tuple[int, ...]] = [(i,) for i in range(len(strided_planes_forward.TILES[shape]))]
    else:
        given = backward_of(given)
        numbers = [(i, turns) for turns in TURNS for i in range(len(strided_planes.TILES[shape]))]
    first = replace(MODULES[op].choose(Problem.of(nxcore.op(op).spec, given)), planes=None)
    name = "mixed" if len(windows) > 1 else f"k{windows[0][0]}d{windows[0][1]}"
    tiles = [first, *(replace(first, planes=each) for each in numbers)]
    return f"{shape[0]}x{shape[1]} {count} {name}{' out' * (op == OP)}", op, given, tiles


def cases(images: int, device: str, *, tiny: bool) -> Iterator[Callable[[], Case]]:
    """Yield what makes each case, the most telling first."""
    shapes, windows = (SHAPES[1:], WINDOWS[:1]) if tiny else (SHAPES, WINDOWS)
    for op in (f"{OP}_backward", OP):
        for shape in shapes:
            yield partial(grouped_case, op, images, shape, 4 if tiny else 16, WINDOWS, device)
    for op in (f"{OP}_backward", OP):
        for shape, window in product(shapes, windows):
            yield partial(grouped_case, op, images, shape, 4, (window,), device)
    for op in (SINGLE, FORWARD):
        for shape, window in product(shapes, windows):
            yield partial(single_case, op, images, shape, window, device)


def profile(images: int, device: str) -> None:
    """Launch the usual kernels of each shape and window once, for four convolutions."""
    for op, shape, window in product((f"{OP}_backward", OP), SHAPES, WINDOWS):
        _, _, given, (_, usual, *_) = grouped_case(op, images, shape, 4, (window,), device)
        plan(op, given, usual)(*given)
    if device == "cuda":
        torch.cuda.synchronize()


def compile_all(images: int, device: str) -> None:
    """Compile the kernels of all cases, many at a time."""
    made = [make() for make in cases(images, device, tiny=False)]
    work = [(op, given, tile) for _, op, given, tiles in made for tile in tiles]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: plan(*each), work))


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seconds", type=float, default=40, help="start no case after so many")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--race", action="store_true")
    parser.add_argument("--compile", action="store_true", help="compile all kernels, many at a time, and end")
    parser.add_argument("--tiny", action="store_true", help="small cases, to try the script")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not given.tiny:
        parser.error("needs a CUDA device; on the emulator, pass --tiny")
    images = 2 if given.tiny else 64
    if given.profile or given.race:
        return profile(1 if given.race else images, device)
    if given.compile:
        return compile_all(images, device)
    about = {"device": torch.cuda.get_device_name() if device == "cuda" else "emulator"}
    about |= {"torch": str(torch.__version__), "repeats": given.repeats}
    ends, rows = time.monotonic() + given.seconds, []
    for make in cases(images, device, tiny=given.tiny):
        if time.monotonic() >= ends:
            break
        rows.append(row_of(make(), given.repeats))
        print(line(rows[-1]), flush=True)
        if given.output:
            text = encoded({**about, "rows": rows}, indent=1)
            given.output.write_text(text + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
