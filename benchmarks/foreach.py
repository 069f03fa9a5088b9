"""Time separable convolutions on lists: the groups of a search's cell in few launches, and one by one.

For each group that leaves a state of a cell, forward and with gradients, each configuration of the sweep is
checked against float64 and timed in a CUDA graph, in turns with the kernels of single convolutions. Prints a
line a group, writes all figures after each.

    python benchmarks/foreach.py --output FILE.json [--seconds 300] [--groups 16x32]

On the emulator, ``--tiny`` runs small groups to show that the script works; its times say nothing.

    NXCORE_CUDA_EMULATOR=1 python benchmarks/foreach.py --output FILE.json --tiny
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from conv2d import CALLS, captured
from nxcore_cuda import batch_norm, sep_conv2d_backward, sep_conv2d_batch_norm
from nxcore_cuda import foreach_sep_conv2d_batch_norm as forward
from nxcore_cuda import foreach_sep_conv2d_batch_norm_backward as backward

import nxcore
from nxcore.plugin import Problem
from nxcore.store.encoding import encoded
from nxcore.trust.truth import agreement

OP = "foreach_sep_conv2d_batch_norm"
MODULES = {OP: forward, f"{OP}_backward": backward}
EDGE = ((3, 1, 1), (5, 2, 1), (3, 2, 2), (5, 4, 2))  # size, padding, dilation
EPS = 1e-5

Call = Callable[[], Any]


@dataclass(frozen=True)
class Group:
    """Convolutions of a cell that depend on nothing of each other.

    Attributes
    ----------
    images, channels, side : int
        The shape of each image.
    count : int
    stride : int
    second : bool
        Whether these are the second halves of separable convolutions, each of an image of its own.
    """

    images: int
    channels: int
    side: int
    count: int
    stride: int = 1
    second: bool = False

    @property
    def name(self) -> str:
        """Channels and side, number, and what is special."""
        more = " second" * self.second + " reduction" * (self.stride > 1)
        return f"{self.channels}x{self.side} {self.count}{more}"

    def arguments(self, device: str) -> tuple[Any, ...]:
        """Return the call that computes the group."""
        torch.manual_seed(self.count)
        windows = [EDGE[i % 2 if self.second else i % 4] for i in range(self.count)]
        shape = (self.images, self.channels, self.side, self.side)
        xs = [torch.randn(shape, device=device) for _ in range(self.count if self.second else 1)]
        sizes, paddings, dilations = zip(*windows, strict=True)
        filters = tuple(torch.randn(self.channels, 1, k, k, device=device) / k for k in sizes)
        points = tuple(torch.randn(self.channels, self.channels, 1, 1, device=device) for _ in windows)
        images = tuple(xs) if self.second else tuple(xs * self.count)
        strides = (self.stride,) * self.count
        return images, filters, points, strides, paddings, dilations, None, True, EPS


def groups() -> Iterator[Group]:
    """Yield the groups of a search's cells: of 4, 3, 2 edges and of one from a state, and second halves."""
    for channels, side in ((16, 32), (32, 16), (64, 8)):
        for edges in (4, 3, 2, 1):
            yield Group(64, channels, side, 4 * edges)
            yield Group(64, channels, side, 2 * edges, second=True)
        if channels > 16:
            yield Group(64, channels, 2 * side, 16, stride=2)


def backward_of(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the call of the gradients."""
    *tensors, normed, relu, eps = given
    outs, ys, mean, var = nxcore.op(OP).spec.reference(*given)
    grads = tuple(torch.randn_like(out) for out in outs)
    return grads, *tensors[:3], ys, *tensors[3:], mean, var, normed, relu, eps, None


def one_by_one(given: tuple[Any, ...]) -> Call:
    """Return the call of single kernels for each convolution."""
    calls = []
    op = nxcore.op
    if len(given) == len(op(OP).spec.params):
        *lists, _, relu, eps = given
        for one in zip(*lists, strict=True):
            args = (*one, relu, None, None, eps)
            plan = sep_conv2d_batch_norm.plan(Problem.of(op("sep_conv2d_batch_norm").spec, args))
            calls.append((plan, args))
        return lambda: [plan(*args) for plan, args in calls]
    grads, xs, filters, points, ys, *windows, mean, var, _, relu, eps, _ = given
    kept = zip(ys, mean.clone().unbind(), var.clone().unbind(), strict=True)
    pairs = []
    for grad, *one, statistics_of in zip(grads, xs, filters, points, *windows, kept, strict=True):
        # Clones: a row of the statistics needn't lie where vectors may begin.
        y, *each = statistics_of
        norm = (grad, y, *(t.clone() for t in each), None, eps, (True, False, False))
        tail = (*one, relu, (True,) * 3)
        first = batch_norm.plan_backward(Problem.of(op("batch_norm_backward").spec, norm))
        second = sep_conv2d_backward.plan(Problem.of(op("sep_conv2d_backward").spec, (grad, *tail)))
        pairs.append((first, norm, second, tail))
    return lambda: [second(first(*norm)[0], *tail) for first, norm, second, tail in pairs]


def timed(calls: dict[str, Call], repeats: int) -> dict[str, list[float]]:
    """Return each entrant's microseconds of a call: in graphs, in turns; on the emulator, of one call."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    if not torch.cuda.is_available():
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            found[name].append(1e6 * (time.perf_counter() - start))
        return found
    replays, events = {name: captured(call) for name, call in calls.items()}, []
    for turn in range(2 * repeats):  # half of the turns warm up
        for name, replay in replays.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            replay()
            end.record()
            if turn >= repeats:
                events.append((name, start, end))
    torch.cuda.synchronize()
    for name, start, end in events:
        found[name].append(1000 * start.elapsed_time(end) / CALLS)
    return found


def row_of(
    group: Group, op: str, given: tuple[Any, ...], repeats: int, most: int | None = None
) -> dict[str, Any]:
    """Check and time a group: one by one, and in each configuration, or in the first ones."""
    spec, module = nxcore.op(op).spec, MODULES[op]
    problem = Problem.of(spec, given)
    tiles = list(itertools.islice(module.sweep(problem), most))
    with ThreadPoolExecutor() as pool:  # nvcc compiles in processes of its own
        plans = list(pool.map(lambda tile: module.plan(problem, tile), tiles))
    refused, calls = {}, {"one by one": one_by_one(given)}
    for tile, plan in zip(tiles, plans, strict=True):
        name = f"{'together' if tile.together else 'apart'} {tile.memory} {tile.threads}"
        found = agreement(plan, spec, given)
        if found.ok:
            calls[name] = lambda plan=plan: plan(*given)
        else:
            refused[name] = found.reason
    times = timed(calls, repeats)
    entrants = {
        name: {"us": round(statistics.median(us), 2), "least_us": round(min(us), 2)}
        for name, us in times.items()
    }
    return {"group": group.name, **asdict(group), "op": op, "wrong": refused, "entrants": entrants}


def line(row: dict[str, Any]) -> str:
    """Return a row's line: one by one, the chosen configuration and the best."""
    alone, *own = ((name, found["us"]) for name, found in row["entrants"].items())
    head = f"{row['group']:<20} {'backward' if row['op'] != OP else 'forward':<8} one by one {alone[1]:8.1f}"
    wrong = f" | {len(row['wrong'])} WRONG" if row["wrong"] else ""
    if not own:
        return f"{head}{wrong}"
    best, first = min(own, key=lambda pair: pair[1]), own[0]
    said = [f"{n} {us:8.1f} {alone[1] / us:5.2f}x" for n, us in (first, best)]
    return f"{head} | chosen {said[0]} | best {said[1]}{wrong}"


def main() -> None:
    """Measure all groups."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=300, help="start no group after so many")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--groups", nargs="+", default=(), help="only those whose names begin so")
    parser.add_argument("--tiny", action="store_true", help="few and small, to try the script")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not given.tiny:
        parser.error("needs a CUDA device; on the emulator, pass --tiny")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    wanted = [Group(2, 4, 6, 4), Group(2, 4, 6, 2, second=True)] if given.tiny else list(groups())
    wanted = [group for group in wanted if not given.groups or group.name.startswith(tuple(given.groups))]
    about = {"device": torch.cuda.get_device_name() if device == "cuda" else "emulator"}
    about |= {"torch": str(torch.__version__), "repeats": given.repeats}
    ends, rows = time.monotonic() + given.seconds, []
    for group in wanted:
        args = group.arguments(device)
        for op, call in ((OP, args), (f"{OP}_backward", backward_of(args))):
            if time.monotonic() >= ends:
                return
            rows.append(row_of(group, op, call, given.repeats, 4 if given.tiny else None))
            print(line(rows[-1]), flush=True)
            # Written at once: a run that is ended keeps its rows.
            given.output.write_text(encoded({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
