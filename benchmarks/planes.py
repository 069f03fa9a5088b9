"""Time separable convolutions of square planes, by kernels that know the shapes and by others.

Every tile is checked against float64, at the shapes of a search's cells and all windows, and timed in CUDA
graphs, in turns: single convolutions, and 4, 8 and 16 in one call without norms; of the outputs also 16 with
norms. Prints a line a case, writes all figures after each.

    python benchmarks/planes.py --output FILE.json [--forward] [--seconds 60] [--part single grouped]

Gradients are timed, or outputs with ``--forward``, of cells that begin with 16 or, by ``--channels``, with 36
channels. ``--profile`` runs one launch of each of a few kernels,
for a profiler. On the emulator, ``--tiny`` shows that the script works.

    NXCORE_CUDA_EMULATOR=1 python benchmarks/planes.py --output FILE.json --tiny
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import torch
from foreach import OP, backward_of, timed
from nxcore_cuda import foreach_sep_conv2d_batch_norm as grouped_forward
from nxcore_cuda import foreach_sep_conv2d_batch_norm_backward as grouped
from nxcore_cuda import parts_forward, planes, planes_forward, sep_conv2d, sep_conv2d_backward
from nxcore_cuda.foreach import Group
from nxcore_cuda.parts_forward import Part
from nxcore_cuda.planes import Planes, Shape
from nxcore_cuda.planes_forward import Outputs
from nxcore_cuda.strided_planes_forward import Lines

import nxcore
from nxcore.plugin import Problem
from nxcore.store.encoding import encoded
from nxcore.trust.truth import agreement

FORWARD, SINGLE = "sep_conv2d", "sep_conv2d_backward"
MODULES = {FORWARD: sep_conv2d, SINGLE: sep_conv2d_backward, OP: grouped_forward, f"{OP}_backward": grouped}
SHAPES = {16: ((16, 32), (32, 16), (64, 8)), 36: ((36, 32), (72, 16), (144, 8))}
"""Channels and side of a search's cells, by the channels of the first."""
WINDOWS = ((3, 1), (5, 1), (3, 2), (5, 2))  # size, dilation
COUNTS = (16, 8, 4)

Case = tuple[str, str, tuple[Any, ...], list[Any]]
"""A name, an operator, a call and the tiles; the first is today's."""


def single(images: int, channels: int, side: int, size: int, dilation: int, device: str) -> tuple[Any, ...]:
    """Return the call of one convolution's gradients."""
    torch.manual_seed(size + 10 * dilation)
    shape = (images, channels, side, side)
    grad, x = (torch.randn(shape, device=device) for _ in range(2))
    filters = torch.randn(channels, 1, size, size, device=device) / size
    points = torch.randn(channels, channels, 1, 1, device=device) / channels**0.5
    return grad, x, filters, points, 1, (size - 1) * dilation // 2, dilation, True, (True,) * 3


def several(
    images: int,
    channels: int,
    side: int,
    count: int,
    windows: tuple[Any, ...],
    device: str,
    normed: bool = False,
) -> tuple[Any, ...]:
    """Return the call of convolutions of one tensor, of which all have norms or none."""
    each = [single(1, channels, side, *windows[i % len(windows)], device) for i in range(count)]
    x = torch.randn(images, channels, side, side, device=device)
    lists = zip(*(one[2:7] for one in each), strict=True)
    filters, points, strides, pads, dilations = lists
    return (x,) * count, filters, points, strides, pads, dilations, (normed,) * count, True, 1e-5


def single_case(
    images: int, shape: tuple[int, int], window: tuple[int, int], device: str, *, forward: bool
) -> Case:
    """Return a case of one convolution: today's tile, then those of planes."""
    given, op = single(images, *shape, *window, device), SINGLE
    if forward:
        given, op = given[1:-1], FORWARD
    tiles = list(MODULES[op].sweep(Problem.of(nxcore.op(op).spec, given)))
    own = [tile for tile in tiles if isinstance(tile, (Planes, Outputs, Part))]
    today = next(tile for tile in tiles if tile not in own)
    return f"{shape[0]}x{shape[1]} k{window[0]}d{window[1]}", op, given, [today, *own]


def grouped_case(
    images: int, shape: tuple[int, int], count: int, windows: tuple[Any, ...], device: str
) -> Case:
    """Return a case of several convolutions: apart as today, then by planes."""
    given = backward_of(several(images, *shape, count, windows, device))
    problem = Problem.of(nxcore.op(f"{OP}_backward").spec, given)
    first = replace(grouped.choose(problem), planes=None)
    known = len(list(planes.tiles(Shape(*windows[0], *shape))))
    all_numbers = ((), *(numbers for numbers in planes.numbers() if numbers[0] < known))
    tiles = [first, *(replace(first, planes=numbers) for numbers in all_numbers)]
    name = "mixed" if len(windows) > 1 else f"k{windows[0][0]}d{windows[0][1]}"
    return f"{shape[0]}x{shape[1]} {count} {name}", f"{OP}_backward", given, tiles


def forward_case(
    images: int,
    shape: tuple[int, int],
    count: int,
    windows: tuple[Any, ...],
    normed: bool,
    device: str,
) -> Case:
    """Return a case of the outputs of several convolutions: as today, then by planes."""
    given = several(images, *shape, count, windows, device, normed)
    first = replace(grouped_forward.choose(Problem.of(nxcore.op(OP).spec, given)), planes=None)
    known = len(planes_forward.TILES.get(shape) or parts_forward.TILES[*shape, 1])
    tiles = [first, *(replace(first, planes=(i,)) for i in range(known))]
    name = "mixed" if len(windows) > 2 else "second"
    return f"{shape[0]}x{shape[1]} {count} {name}{' normed' * normed}", OP, given, tiles


def forward_cases(
    parts: list[str], images: int, channels: int, device: str, *, tiny: bool
) -> Iterator[Callable[[], Case]]:
    """Yield what makes each case of the outputs, the most telling first: all windows, and second halves."""
    every = SHAPES[channels]
    shapes, windows = (every[2:], ((3, 1),)) if tiny else (every, (WINDOWS[0], WINDOWS[3]))
    halves = WINDOWS[:2]
    groups = ((16, WINDOWS, False), (16, WINDOWS, True), (8, WINDOWS, False), (4, WINDOWS, False))
    groups = ((4, WINDOWS, True),) if tiny else (*groups, (8, halves, False), (2, halves, False))
    if "grouped" in parts:
        for group in groups:
            for shape in shapes:
                yield lambda shape=shape, group=group: forward_case(images, shape, *group, device)
    if "single" in parts:
        for window in windows:
            for shape in shapes:
                yield lambda shape=shape, window=window: single_case(
                    images, shape, window, device, forward=True
                )


def cases(
    parts: list[str], images: int, channels: int, device: str, *, tiny: bool
) -> Iterator[Callable[[], Case]]:
    """Yield what makes each case, the most telling first."""
    shapes, windows = (SHAPES[channels][2:], ((3, 1),)) if tiny else (SHAPES[channels], WINDOWS)
    if "grouped" in parts:
        for shape in shapes:
            yield lambda shape=shape: grouped_case(images, shape, 4 if tiny else 16, WINDOWS, device)
    if "single" in parts:
        for shape in shapes:
            for window in windows:
                yield lambda shape=shape, window=window: single_case(
                    images, shape, window, device, forward=False
                )
    if "grouped" in parts and not tiny:
        for shape in shapes:
            for window in windows:
                yield lambda shape=shape, window=window: grouped_case(images, shape, 8, (window,), device)
        for count in COUNTS[1:]:
            for shape in shapes:
                yield lambda shape=shape, count=count: grouped_case(images, shape, count, WINDOWS, device)


def plan(op: str, given: tuple[Any, ...], tile: Any) -> Callable[..., Any]:
    """Return a call's launches."""
    return MODULES[op].plan(Problem.of(nxcore.op(op).spec, given), tile)


def spelt(tile: Any) -> str:
    """Return a tile's numbers."""
    if isinstance(tile, Group):
        if not tile.planes:
            return "today" if tile.planes is None else "planes as chosen"
        return f"planes {tile.planes[0]}" + "".join(f" items {items}" for items in tile.planes[1:])
    if isinstance(tile, (Outputs, Part, Lines)):
        return "planes " + " ".join(map(str, astuple(tile)))
    if isinstance(tile, Planes):
        return "planes " + " ".join(map(str, (tile.band, tile.threads, tile.over, tile.across, tile.splits)))
    return "today"


def row_of(case: Case, repeats: int) -> dict[str, Any]:
    """Check and time a case."""
    name, op, given, tiles = case
    calls: dict[str, Callable[[], Any]] = {}
    wrong = {}
    with ThreadPoolExecutor() as pool:  # nvcc compiles in processes of its own
        plans = list(pool.map(lambda tile: plan(op, given, tile), tiles))
    for tile, made in zip(tiles, plans, strict=True):
        found = agreement(made, nxcore.op(op).spec, given)
        again = [_tensors(made(*given)) for _ in range(2)]
        same = all(torch.equal(*pair) for pair in zip(*again, strict=True))
        if found.ok and same:
            calls[spelt(tile)] = lambda made=made: made(*given)
        else:
            wrong[spelt(tile)] = found.reason if not found.ok else "bits differ from call to call"
    us = {
        key: {"us": round(statistics.median(found), 2), "least_us": round(min(found), 2)}
        for key, found in timed(calls, repeats).items()
    }
    return {"case": name, "op": op, "wrong": wrong, "entrants": us}


def _tensors(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    return [tensor for each in found or () if each is not None for tensor in _tensors(each)]


def line(row: dict[str, Any]) -> str:
    """Return a row's line: today's, and the best three."""
    today = row["entrants"].get("today", {"us": float("nan")})["us"]
    own = sorted((us["us"], name) for name, us in row["entrants"].items() if name != "today")
    said = [f"{name} {us:.1f} ({today / us:.2f}x)" for us, name in own[:3]]
    wrong = f" | WRONG: {row['wrong']}"[:400] if row["wrong"] else ""
    return f"{row['case']:<16} today {today:7.1f} | {' | '.join(said)}{wrong}"


def profile(images: int, device: str, *, forward: bool) -> None:
    """Launch a few kernels once each, the first beside today's."""
    if forward:
        for shape in SHAPES[16]:
            _, op, given, (today, *own) = forward_case(images, shape, 8, WINDOWS, True, device)
            for tile in (*own, *(today for _ in range(shape == SHAPES[16][0]))):
                plan(op, given, tile)(*given)
        torch.cuda.synchronize()
        return
    for shape, window in (((16, 32), (3, 1)), ((16, 32), (5, 2)), ((32, 16), (3, 1)), ((64, 8), (5, 1))):
        _, op, given, (today, *own) = grouped_case(images, shape, 8, (window,), device)
        for tile in (own[0], *(today for _ in range(window == (3, 1) and shape == (16, 32)))):
            plan(op, given, tile)(*given)
        torch.cuda.synchronize()


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seconds", type=float, default=60, help="start no case after so many")
    parser.add_argument("--part", nargs="+", default=["single", "grouped"], choices=("single", "grouped"))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--channels", type=int, default=16, choices=tuple(SHAPES), help="of the first cells")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--forward", action="store_true", help="time outputs, not gradients")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--compile", action="store_true", help="compile all kernels, many at a time, and end")
    parser.add_argument("--tiny", action="store_true", help="small cases, to try the script")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not given.tiny:
        parser.error("needs a CUDA device; on the emulator, pass --tiny")
    images = 3 if given.tiny else given.images
    if given.profile:
        return profile(images, device, forward=given.forward)
    choose = forward_cases if given.forward else cases
    if given.compile:
        compile_all(choose(["single", "grouped"], images, given.channels, device, tiny=given.tiny))
        return None
    about = {"device": torch.cuda.get_device_name() if device == "cuda" else "emulator"}
    about |= {"torch": str(torch.__version__), "repeats": given.repeats, "images": images}
    ends, rows = time.monotonic() + given.seconds, []
    for make in choose(given.part, images, given.channels, device, tiny=given.tiny):
        if time.monotonic() >= ends:
            break
        rows.append(row_of(make(), given.repeats))
        print(line(rows[-1]), flush=True)
        if given.output:
            text = encoded({**about, "rows": rows}, indent=1)
            given.output.write_text(text + "\n", encoding="utf-8")
    return None


def compile_all(wanted: Iterator[Callable[[], Case]]) -> None:
    """Compile the kernels of all cases, many at a time."""
    made = [make() for make in wanted]
    work = [(op, args, tile) for _, op, args, tiles in made for tile in tiles]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: plan(*each), work))


if __name__ == "__main__":
    main()
