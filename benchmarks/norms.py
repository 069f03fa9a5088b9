"""Time norms and sums of norms of a search step in CUDA graphs: whole calls, their kernels, and other tiles.

    python benchmarks/norms.py --output FILE.json [--seconds 60] [--chosen] [--cases 16x32 ...] [--loads 1 2]

For each sum of a search's cells (2 to 5 edges of seven operations, four of which end with a norm), for each
norm and for each group of convolutions with norms, forward and backward: microseconds of a call, in turns,
the bytes that both kernels must move over that time, and of the chosen tile, microseconds of each kernel.
Calls of a graph take turns at copies of the arguments, so that the cache doesn't keep them from one call to
the next. Each tile is checked against float64 before it is timed. Other tiles than the chosen one are timed
for norms, and for sums of 5 and of 3 edges; with ``--chosen`` for none. ``--loads`` has the kernels of norms
and groups load as ``channel.cuh`` numbers it: the first of a pair, and the second or only one.

On the emulator, ``--tiny`` runs small cases to show that the script works; its times say nothing.

    NXCORE_CUDA_EMULATOR=1 python benchmarks/norms.py --output FILE.json --tiny
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import foreach
import torch
from nxcore_cuda import batch_norm, batch_norm_sum, channel

import nxcore
from nxcore.plugin import Problem
from nxcore.store.encoding import encoded
from nxcore.trust.truth import Truth, agreement

SUM, NORM, GROUP = "batch_norm_sum", "batch_norm", "foreach_sep_conv2d_batch_norm"
MODULES = {SUM: batch_norm_sum, NORM: batch_norm}
EDGE = (False, False, False, True, True, True, True)
CACHE = 150e6  # bytes that copies of the arguments have together, three times the cache of an H100
COPIES, LEAST = 8, 8  # of the arguments, at most; calls of a graph, at least
MOST = 512  # threads of a norm's block, too many
EPS = 1e-5

Args = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """A call of an operator.

    Attributes
    ----------
    op : str
    images, channels, side : int
        The shape of each image.
    edges : int
        Of a node that is a sum; 0 where the operator is none.
    backward : bool
    """

    op: str
    images: int
    channels: int
    side: int
    edges: int
    backward: bool

    @property
    def name(self) -> str:
        """Channels and side, operator, and number of edges."""
        what = f"sum of {self.edges}" if self.edges else "norm" if self.op == NORM else "group"
        return f"{self.channels}x{self.side} {what} {'backward' if self.backward else 'forward'}"

    @property
    def spec(self) -> Any:
        """The operator's."""
        return nxcore.op(self.op + "_backward" * self.backward).spec

    @property
    def planes(self) -> int:
        """How many images both kernels must read and write, if none stays in the cache."""
        count, norms = max(7 * self.edges, 1), max(4 * self.edges, 1)
        return 2 * count + norms + 2 if self.backward else count + norms + 1

    @property
    def nbytes(self) -> int:
        """Bytes of one image."""
        return 4 * self.images * self.channels * self.side**2

    def arguments(self, device: str, seed: int) -> Args:
        """Return one copy of the arguments."""
        torch.manual_seed(seed)
        shape = (self.images, self.channels, self.side, self.side)
        if self.op == GROUP:
            given = foreach.Group(self.images, self.channels, self.side, 16).arguments(device)
            return foreach.backward_of(given) if self.backward else given
        xs = tuple(torch.randn(shape, device=device) for _ in range(7 * self.edges or 1))
        grad = torch.randn(shape, device=device)
        if self.op == NORM:
            if not self.backward:
                return xs[0], None, None, EPS
            _, mean, var = nxcore.op(NORM).spec.reference(xs[0])
            return grad, xs[0], mean, var, None, EPS, (True, False, False)
        weights, normed = torch.randn(len(xs), device=device), EDGE * self.edges
        if not self.backward:
            return xs, weights, normed, EPS
        _, mean, var = nxcore.op(SUM).spec.reference(xs, weights, normed)
        return grad, xs, weights, mean, var, normed, EPS, None

    def plan(self, args: Args, tile: Any = None) -> Callable[..., Any]:
        """Return the kernel, in a tile."""
        problem = Problem.of(self.spec, args)
        if self.op == GROUP:
            return foreach.MODULES[self.spec.name].plan(problem)  # type: ignore[no-any-return]
        module = MODULES[self.op]
        return (module.plan_backward if self.backward else module.plan)(problem, tile)

    def tiles(self, args: Args) -> list[Any]:
        """Return the tiles worth timing, the chosen one first."""
        if self.op == GROUP or self.edges % 2 == 0 < self.edges:
            return [None]
        module = MODULES[self.op]
        found = (module.sweep_backward if self.backward else module.sweep)(Problem.of(self.spec, args))
        # Blocks of 512 threads are other kernels, which no image has.
        return [tile for tile in found if self.op == SUM or tile.whole or tile.threads < MOST]


def cases(tiny: bool) -> Iterator[Case]:
    """Yield all cases."""
    shapes = [(2, 4, 6)] if tiny else [(64, 16, 32), (64, 32, 16), (64, 64, 8)]
    for op, edges in ((SUM, 5), (NORM, 0), (GROUP, 0), (SUM, 3), (SUM, 4), (SUM, 2)):
        if tiny and edges > 3:
            continue
        for shape in shapes:
            yield from (Case(op, *shape, edges, backward) for backward in (False, True))


def captured(plan: Callable[..., Any], copies: list[Args], side: Any) -> tuple[Callable[[], Any], int]:
    """Return the replay of a graph of calls, captured on a stream, and their number."""
    calls = math.ceil(LEAST / len(copies)) * len(copies)
    with torch.cuda.stream(side):
        for args in copies:
            plan(*args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):  # torch.cuda.graph would empty the allocator's cache for every graph
        graph.capture_begin()
        kept = [plan(*copies[i % len(copies)]) for i in range(calls)]
        graph.capture_end()
    return lambda: (graph.replay(), kept)[0], calls


def timed(replays: dict[str, tuple[Callable[[], Any], int]], repeats: int) -> dict[str, float]:
    """Return the median microseconds of a call of each, in turns."""
    events: dict[str, list[Any]] = {name: [] for name in replays}
    for turn in range(repeats + 2):  # two turns warm up
        for name, (replay, _) in replays.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            replay()
            end.record()
            if turn > 1:
                events[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: round(statistics.median(1000 * s.elapsed_time(e) / replays[name][1] for s, e in found), 2)
        for name, found in events.items()
    }


def kernels(replay: Callable[[], Any], calls: int) -> dict[str, float]:
    """Return the microseconds of each kernel in a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        replay()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    return {
        e.key[:80]: round(e.self_device_time_total / calls, 2)
        for e in profile.key_averages()
        if e.device_type == cuda and "norm" in e.key
    }


def spelt(tile: Any) -> str:
    """Return a tile's name: of each pass a thread's vectors, those in flight, and how they are loaded."""
    if tile is None or not hasattr(tile, "first"):
        return (
            "chosen"
            if tile is None
            else f"{tile.span // tile.threads} of {tile.threads}" + " whole" * tile.whole
        )
    passes = (f"{p.span // p.threads}/{p.unroll}/{p.loads}" for p in (tile.first, tile.second))
    return f"{' '.join(passes)} of {tile.first.threads}"


def row_of(case: Case, device: str, chosen: bool, repeats: int) -> dict[str, Any]:
    """Check and time a case in each tile."""
    args = case.arguments(device, 0)
    tiles = [None] if chosen else case.tiles(args)
    with ThreadPoolExecutor() as pool:  # nvcc compiles in processes of its own
        plans = list(pool.map(lambda tile: case.plan(args, tile), tiles))
    truth = Truth.of(case.spec, args)
    found: dict[str, Any] = {"case": case.name, "bytes": case.planes * case.nbytes, "wrong": {}, "us": {}}
    right = {}
    for tile, plan in zip(tiles, plans, strict=True):
        judged = agreement(plan, case.spec, args, truth)
        if judged.ok:
            right[spelt(tile)] = plan
        else:
            found["wrong"][spelt(tile)] = judged.reason
    if device == "cuda":
        number = min(COPIES, math.ceil(CACHE / (case.planes * case.nbytes)))
        copies = [args, *(case.arguments(device, i) for i in range(1, number))]
        side = torch.cuda.Stream()
        replays = {name: captured(plan, copies, side) for name, plan in right.items()}
        found["us"] = timed(replays, repeats)
        found["kernels"] = kernels(*next(iter(replays.values()))) if replays else {}
    return found


def line(row: dict[str, Any]) -> str:
    """Return a row's line: the chosen tile with its kernels, the best, and how many are wrong."""
    said = [f"{row['case']:<24}"]
    if row["us"]:
        name, us = next(iter(row["us"].items()))
        best = min(row["us"], key=row["us"].get)
        said.append(f"{us:7.1f} us {row['bytes'] / us / 1e3:5.0f} GB/s {name} |")
        said.append(" ".join(f"{key.split('__')[0][-14:]} {us:.1f}" for key, us in row["kernels"].items()))
        if best != name:
            said.append(f"| best {row['us'][best]:.1f} {best}")
        others = {n: us for n, us in row["us"].items() if n.endswith("whole")}
        said.append(" ".join(f"| {n.split()[-1]} {us:.1f}" for n, us in others.items()))
    return " ".join(said) + (f" | {len(row['wrong'])} WRONG" if row["wrong"] else "")


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60, help="start no case after so many")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cases", nargs="+", default=(), help="only those whose names begin so")
    parser.add_argument("--chosen", action="store_true", help="no other tiles")
    parser.add_argument("--loads", nargs=2, type=int)
    parser.add_argument("--tiny", action="store_true", help="small cases, to try the script")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not given.tiny:
        parser.error("needs a CUDA device; on the emulator, pass --tiny")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if given.loads:
        channel.LOADS = tuple(given.loads)
    about = {"device": torch.cuda.get_device_name() if device == "cuda" else "emulator"}
    about |= {"torch": str(torch.__version__), "loads": str(channel.LOADS)}
    ends, rows = time.monotonic() + given.seconds, []
    wanted = [c for c in cases(given.tiny) if not given.cases or c.name.startswith(tuple(given.cases))]
    with ThreadPoolExecutor() as pool:  # nvcc compiles in processes of its own
        list(pool.map(lambda case: case.plan(case.arguments(device, 0)), wanted))
    for case in wanted:
        if time.monotonic() >= ends:
            print("out of time", flush=True)
            return
        rows.append(row_of(case, device, given.chosen, given.repeats))
        print(line(rows[-1]), flush=True)
        # Written at once: a run that is ended keeps its rows.
        given.output.write_text(encoded({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
