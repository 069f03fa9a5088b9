"""amax beside sum on the CPU, by Numba and by torch, in turns: the least and the median of many rounds.

    python benchmarks/folds.py [--threads 1 2] > record.txt

The last column is the median over the rounds of Numba's amax over its sum in the same round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import nxcore

SHAPES: dict[str, tuple[tuple[int, ...], int | tuple[int, ...] | None]] = {
    "(4, 512, 896), all": ((4, 512, 896), None),
    "(4, 512, 896), inner": ((4, 512, 896), -1),
    "(4, 512, 896), (0, 2)": ((4, 512, 896), (0, 2)),
    "(4, 512, 896), middle": ((4, 512, 896), 1),
    "1,048,576, all": ((1 << 20,), None),
    "(512, 200), inner": ((512, 200), -1),
}
ROUNDS, CALLS = 60, 5


def calls(x: torch.Tensor, dim: int | tuple[int, ...] | None) -> dict[str, Callable[[], torch.Tensor]]:
    """Return each way, by its name."""
    found: dict[str, Callable[[], torch.Tensor]] = {}
    for name in ("sum", "amax"):
        ours, theirs = nxcore.op(name, backend="numba"), getattr(torch, name)
        how = () if dim is None else (dim,)
        found[f"numba {name}"] = lambda ours=ours, how=how: ours(x, *how)
        found[f"torch {name}"] = lambda theirs=theirs, how=how: theirs(x, *how)
    return found


def measured(ways: dict[str, Callable[[], torch.Tensor]]) -> dict[str, list[float]]:
    """Return the microseconds of a call of each, a value a round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for call in ways.values():
        call()
    for _ in range(ROUNDS):
        for name, call in ways.items():
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - began) / CALLS * 1e6)
    return times


def main() -> None:
    """Print a line a shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    for threads in given.threads:
        # As set: the table is by the number of threads.
        torch.set_num_threads(threads)
        for name, (shape, dim) in SHAPES.items():
            times = measured(calls(torch.randn(shape), dim))
            told = ", ".join(f"{k} {min(v):.1f} ({statistics.median(v):.1f})" for k, v in times.items())
            pairs = zip(times["numba amax"], times["numba sum"], strict=True)
            ratio = statistics.median(amax / total for amax, total in pairs)
            print(f"{threads} threads, {name}: {told}, amax/sum {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
