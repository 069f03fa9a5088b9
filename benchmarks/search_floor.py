"""The kernels of a captured search step by group, beside the time that the group's bytes or arithmetic need.

    python benchmarks/search_floor.py RECORD [--network patched] [--bandwidth 4.8] [--multiply-adds 33.5]

RECORD is a file of ``benchmarks/search_step.py``. A group needs the larger of two times: its tensors at the
bandwidth (TB/s), each read once by an operator and each result written once, and its multiply-adds at the
peak of float32 (in 1e12 a second); by default those of an H200. What a cache saves, and
what several passes over a tensor cost, isn't in it. Operators are those that a captured patched step has: a
state's convolutions together, the norms that end an edge's operations with the sum of the node, pools once a
state.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GROUPS: dict[str, tuple[str, ...]] = {
    "gradients of separable convolutions, stride 1": (
        "foreach_sep_conv2d_planes_backward",
        "foreach_sep_conv2d_backward",
    ),
    "their outputs": ("foreach_sep_conv2d_planes__", "foreach_sep_conv2d_parts", "foreach_sep_conv2d__"),
    "both at stride 2": ("foreach_sep_conv2d_strided_",),
    "sums of norms": ("batch_norm_sum_",),
    "other norms": ("foreach_batch_norm_", "batch_norm_"),
    "sums of several tensors": ("softmax_sum", "CUDAFunctor_add<float>"),
    "1x1 convolutions": ("pointwise_conv2d",),
    "pools": ("max_pool2d", "avg_pool2d"),
    "sums of weights' gradients": ("column_sums",),
    "all else": ("",),
}
"""Group -> what the names of its kernels contain; the first that holds counts."""

FILTERS = (3, 5, 3, 5)
"""Of an edge: two separable convolutions, whose second halves are as large, and two dilated ones."""


class Need(NamedTuple):
    """What a group moves and computes."""

    bytes: float = 0.0
    multiply_adds: float = 0.0

    def __add__(self, other: object) -> Need:
        assert isinstance(other, Need)  # a tuple's own sum takes any tuple
        return Need(self.bytes + other.bytes, self.multiply_adds + other.multiply_adds)

    def ms(self, bandwidth: float, peak: float) -> float:
        """Return the larger time, in milliseconds."""
        return max(self.bytes / bandwidth, self.multiply_adds / peak) * 1e-9


class Shape(NamedTuple):
    """A cell: whether it reduces, whether the one before does, channels and side of its output."""

    reduction: bool
    previous: bool
    channels: int
    side: int


def group(kernel: str) -> str:
    """Return the group of a kernel."""
    return next(name for name, parts in GROUPS.items() if any(part in kernel for part in parts))


def cells(channels: int, layers: int = 8, side: int = 32) -> Iterator[Shape]:
    """Yield the cells of a network."""
    previous = False
    for i in range(layers):
        reduction = i in (layers // 3, 2 * layers // 3)
        channels, side = (2 * channels, side // 2) if reduction else (channels, side)
        yield Shape(reduction, previous, channels, side)
        previous = reduction


def separable(values: float, channels: int, size: int, larger: float = 1.0) -> tuple[Need, Need]:
    """Return what outputs and gradients of a separable convolution with so many output values need.

    The gradients make the depthwise result again, and read the image and the gradient. ``larger`` is the
    input's pixels over the output's.
    """
    depthwise, point = values * size * size, values * channels
    forward = Need(4 * values, depthwise + point)  # the image is counted once a state
    backward = Need(4 * values * (1 + 2 * larger), 3 * depthwise + 2 * point)
    return forward, backward


def needs(channels: int, batch: int, layers: int = 8, steps: int = 4, side: int = 32) -> dict[str, Need]:
    """Return what each group of a step needs."""
    found = dict.fromkeys(GROUPS, Need())

    def add(name: str, *more: Need) -> None:
        found[name] = sum(more, found[name])

    gradients, outputs, strided, sums, norms, several, points, pools, *_ = GROUPS
    for cell in cells(channels, layers, side):
        values = batch * cell.channels * cell.side**2
        tensor = 4.0 * values
        # Readers of each state: the two inputs have as many as there are nodes.
        readers = [steps, steps, *range(steps - 1, 0, -1)]
        for place, edges in enumerate(readers):
            halves = cell.reduction and place < 2
            larger = 4.0 if halves else 1.0
            first = [separable(values, cell.channels, size, larger) for size in FILTERS]
            second = [separable(values, cell.channels, size) for size in FILTERS[:2]]
            image = Need(larger * tensor)
            ahead, back = (sum((pair[k] for pair in first), Need()) for k in (0, 1))
            ahead, back = (Need(edges * n.bytes, edges * n.multiply_adds) for n in (ahead, back))
            add(strided if halves else outputs, ahead, image)
            add(strided if halves else gradients, back)
            for forward, backward in second:
                add(outputs, Need(edges * (forward.bytes + tensor), edges * forward.multiply_adds))
                add(gradients, Need(edges * backward.bytes, edges * backward.multiply_adds))
            # Norms between two halves: outputs take them as they read; a gradient reads two, writes one.
            add(norms, Need(2 * edges * 3 * tensor))
            # Both pools of a state, once, and their norms in both directions.
            add(pools, Need(2 * 2 * (larger + 1) * tensor))
            add(norms, Need(2 * 5 * tensor))
            # Gradients of a state: four convolutions an edge, two pools, the nodes' skips as one; the sum.
            add(several, Need((4 * edges + 4) * larger * tensor))
            if halves:  # skips of a reduction are two 1x1 convolutions and a norm
                add(
                    points,
                    Need(edges * (5 * larger * tensor / 2 + 3 * tensor), edges * 3 * values * cell.channels),
                )
                add(norms, Need(edges * 5 * tensor))
        edges = sum(readers)
        # A node reads two pools, four convolutions and a skip of each edge; gradients of all are written.
        add(sums, Need((7 * edges + steps) * tensor), Need((2 * 7 * edges + steps) * tensor))
        add(points, *entries(cell, batch, steps))
        add(norms, Need(2 * 5 * tensor * (4.0 if cell.reduction else 1.0)))
    return found


def entries(cell: Shape, batch: int, steps: int) -> Iterator[Need]:
    """Yield what the 1x1 convolutions need that make a cell's inputs of the two cells before it."""
    side = 2 * cell.side if cell.reduction else cell.side
    narrow = cell.channels // 2 if cell.reduction else cell.channels
    for older in (True, False):
        larger = 2 if older and cell.previous else 1  # before a reduction: half the channels, twice the side
        read = steps * narrow // larger
        image = 4.0 * batch * read * (larger * side) ** 2
        out = batch * cell.channels * side**2
        # Outputs read the image; gradients read it and the result's gradient, and write the image's.
        yield Need(3 * image + 2 * 4.0 * out, 3.0 * out * read)


def table(
    record: dict[str, object], network: str, bandwidth: float, peak: float
) -> list[tuple[str, float, int, float]]:
    """Return group, milliseconds, launches and the needed milliseconds."""
    channels, batch = int(str(record.get("channels", 16))), int(str(record.get("batch", 64)))
    rows: dict[str, tuple[float, int]] = dict.fromkeys(GROUPS, (0.0, 0))
    kernels = record["rows"][network]["kernels"]  # type: ignore[index]  # of a file
    for kernel in kernels:
        ms, count = rows[group(kernel["kernel"])]
        rows[group(kernel["kernel"])] = ms + kernel["ms"], count + kernel["count"]
    need = needs(channels, batch)
    return [(name, *rows[name], need[name].ms(bandwidth, peak)) for name in GROUPS]


def main() -> int:
    """Print the table of a record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path)
    parser.add_argument("--network", default="patched")
    parser.add_argument("--bandwidth", type=float, default=4.8, help="TB/s")
    parser.add_argument("--multiply-adds", type=float, default=33.5, help="1e12 a second")
    given = parser.parse_args()
    record = json.loads(given.record.read_text(encoding="utf-8"))
    rows = table(record, given.network, given.bandwidth, given.multiply_adds)
    for name, ms, count, need in rows:
        print(f"| {name} | {ms:.2f} | {count} | {need:.2f} |")
    print(
        f"| all | {sum(r[1] for r in rows):.2f} | {sum(r[2] for r in rows)} | {sum(r[3] for r in rows):.2f} |"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
