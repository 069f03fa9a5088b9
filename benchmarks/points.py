"""Time 1x1 convolutions of a DARTS search, forward and to each gradient, beside torch's (cuDNN without TF32).

Every tile is checked against float64 at all shapes of a search's cells, and timed in CUDA graphs, in turns.
Prints a line a case, writes all figures after each, and prints totals for a search step at the end.

    python benchmarks/points.py --output FILE.json [--seconds 45]

On the emulator, ``--tiny`` shows that the script works.

    NXCORE_CUDA_EMULATOR=1 python benchmarks/points.py --tiny
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from foreach import timed
from nxcore_cuda import points, pointwise_conv2d, pointwise_conv2d_backward

import nxcore
from nxcore.plugin import Problem
from nxcore.store.encoding import encoded
from nxcore.trust.truth import Truth, agreement

OP = "pointwise_conv2d"
PARTS = {"forward": None, "image": (True, False, False), "filters": (False, True, True)}

SHAPES = (
    # channels in and out, side, stride, and how often a search step of 8 cells has it
    (32, 32, 32, 2, 8),
    (64, 64, 16, 2, 8),
    (48, 16, 32, 1, 3),
    (64, 32, 32, 1, 2),
    (128, 32, 16, 1, 3),
    (128, 64, 16, 1, 2),
    (256, 64, 8, 1, 3),
    (64, 16, 32, 1, 1),
    (64, 32, 32, 2, 1),
    (128, 64, 16, 2, 1),
)

Shape = tuple[int, int, int, int, int]


def given_of(shape: Shape, part: str, images: int, device: str) -> tuple[Any, ...]:
    """Return the arguments of a call; with stride 2, of a reduction."""
    channels, made, side, stride, _ = shape
    torch.manual_seed(channels + made + side)
    x = torch.randn(images, channels, side, side, device=device)
    halves = (made,) if stride == 1 else (made // 2, made // 2)
    filters = [torch.randn(n, channels, 1, 1, device=device) / channels**0.5 for n in halves]
    weight, shifted = (*filters, None)[:2]
    if part == "forward":
        return x, weight, shifted, stride, True
    grad = torch.randn(images, made, side // stride, side // stride, device=device)
    return grad, x, weight, shifted, stride, True, PARTS[part]


def torchs(given: tuple[Any, ...], part: str) -> Callable[[], Any]:
    """Return torch's own way of a part, as autograd runs it."""
    spec = nxcore.op(OP if part == "forward" else f"{OP}_backward").spec
    if part == "forward":
        return lambda: spec.reference(*given)
    grad, x, weight, shifted, stride, *_ = given
    image, begin, pairs = torch.relu(x), 0, []  # kept from the forward pass
    for shift, filters in enumerate((weight, shifted)):
        if filters is not None:
            own = grad[:, begin : begin + filters.shape[0]]
            pairs.append((own, shift, filters))
            begin += filters.shape[0]
    mask = [part == "image", part == "filters", False]

    def call() -> Any:
        total, made = None, []
        for own, shift, filters in pairs:
            where = ([stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, mask)
            seen = image[:, :, 1:, 1:] if shift else image
            found = torch.ops.aten.convolution_backward(own, seen, filters, None, *where)
            if part == "filters":
                made.append(found[1])
                continue
            out = found[0]
            if shift:
                whole = torch.zeros_like(image)
                whole[:, :, 1:, 1:] = out
                out = whole
            total = out if total is None else total + out
        return made if total is None else torch.ops.aten.threshold_backward(total, image, 0)

    return call


def tiles_of(problem: Problem, part: str) -> list[Any]:
    """Return the tiles of a part, the chosen one first."""
    if part == "forward":
        return list(pointwise_conv2d.sweep(problem))
    each = [t for t in pointwise_conv2d_backward.sweep(problem) if (t.image is None) == (part == "filters")]
    if part == "filters":
        chosen = pointwise_conv2d_backward.Tiles(filters=pointwise_conv2d_backward.choose(problem))
        return list(dict.fromkeys((chosen, *(t for t in each if t.filters))))
    return each


def spelt(tile: Any) -> str:
    """Return a tile's numbers."""
    inner = tile if isinstance(tile, points.Tile) else tile.image or tile.filters
    return " ".join(map(str, astuple(inner)))


def cases(images: int, device: str, *, tiny: bool) -> Iterator[tuple[str, Shape, str, tuple[Any, ...]]]:
    """Yield each case: its name, its shape, its part and its arguments."""
    for shape in SHAPES[-1:] + SHAPES[6:7] if tiny else SHAPES:
        for part in PARTS:
            channels, made, side, stride, _ = shape
            name = f"{channels}-{made} {side}x{side}/{stride} {part}"
            yield name, shape, part, given_of(shape, part, images, device)


def module_of(part: str) -> Any:
    """Return the planner of a part."""
    return pointwise_conv2d if part == "forward" else pointwise_conv2d_backward


def row_of(case: tuple[str, Shape, str, tuple[Any, ...]], repeats: int, most: int | None) -> dict[str, Any]:
    """Check and time a case."""
    name, shape, part, given = case
    spec = nxcore.op(OP if part == "forward" else f"{OP}_backward").spec
    problem = Problem.of(spec, given)
    tiles = tiles_of(problem, part)[:most]
    calls: dict[str, Callable[[], Any]] = {"torch": torchs(given, part)}
    wrong, truth = {}, Truth.of(spec, given)
    for tile in tiles:
        made = module_of(part).plan(problem, tile)
        found = agreement(made, spec, given, truth)
        if found.ok:
            calls[spelt(tile)] = lambda made=made: made(*given)
        else:
            wrong[spelt(tile)] = found.reason
    us = {
        key: {"us": round(statistics.median(found), 2), "least_us": round(min(found), 2)}
        for key, found in timed(calls, repeats).items()
    }
    return {"case": name, "shape": shape, "part": part, "wrong": wrong, "chosen": spelt(tiles[0]), "us": us}


def line(row: dict[str, Any]) -> str:
    """Return a row's line: torch's, the chosen tile's, and the best three."""
    us = {name: found["us"] for name, found in row["us"].items()}
    own = sorted((value, name) for name, value in us.items() if name != "torch")
    said = [f"{name} {value:.1f}" for value, name in own[:3]]
    chosen = us.get(row["chosen"], float("nan"))
    wrong = f" | WRONG: {row['wrong']}"[:300] if row["wrong"] else ""
    return f"{row['case']:<24} torch {us['torch']:6.1f} | chosen {chosen:6.1f} | {' | '.join(said)}{wrong}"


def compile_all(images: int, device: str, *, tiny: bool, most: int | None) -> None:
    """Compile the kernels of all cases, many at a time."""
    work = []
    for _, _, part, given in cases(images, device, tiny=tiny):
        problem = Problem.of(nxcore.op(OP if part == "forward" else f"{OP}_backward").spec, given)
        work += [(module_of(part), problem, tile) for tile in tiles_of(problem, part)[:most]]
    with ThreadPoolExecutor() as pool:  # nvcc compiles in processes of its own
        list(pool.map(lambda each: each[0].plan(*each[1:]), work))


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seconds", type=float, default=45, help="start no case after so many")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--most", type=int, help="tiles of a case, the chosen one first")
    parser.add_argument("--tiny", action="store_true", help="few images, to try the script")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not given.tiny:
        parser.error("needs a CUDA device; on the emulator, pass --tiny")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    images, ends, rows = 2 if given.tiny else 64, time.monotonic() + given.seconds, []
    compile_all(images, device, tiny=given.tiny, most=given.most)
    print(f"compiled; {ends - time.monotonic():.0f} s are left", flush=True)
    about = {"device": torch.cuda.get_device_name() if device == "cuda" else "emulator"}
    about |= {"torch": str(torch.__version__), "repeats": given.repeats, "images": images}
    for case in cases(images, device, tiny=given.tiny):
        if time.monotonic() >= ends:
            print(f"not measured: {case[0]} and what follows", flush=True)
            break
        rows.append(row_of(case, given.repeats, given.most))
        print(line(rows[-1]), flush=True)
        if given.output:
            given.output.write_text(encoded({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    for part in PARTS:
        some = [row for row in rows if row["part"] == part and row["chosen"] in row["us"]]
        each = [
            sum(row["shape"][-1] * value(row) for row in some) / 1000
            for value in (
                lambda row: row["us"]["torch"]["us"],
                lambda row: row["us"][row["chosen"]]["us"],
                lambda row: min(us["us"] for name, us in row["us"].items() if name != "torch"),
            )
        ]
        print(f"{part} of a step, ms: torch {each[0]:.2f}, chosen {each[1]:.2f}, best tiles {each[2]:.2f}")


if __name__ == "__main__":
    main()
