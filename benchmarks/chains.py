"""Chains of pointwise functions on one core, by the thread's own CPU time: eager torch beside Numba's kernel.

    python benchmarks/chains.py [--elements 1024 65536 1048576] [--seconds 1.5] > record.json

Other work on the machine delays a thread, and its CPU time hardly counts that. Both take turns in pairs; the
record has the minimum of each and the median of the pairs' ratios. Inputs are where the calls leave them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from pointwise import CHAINS

import nxcore
from nxcore.spec.device import describe
from nxcore.store.encoding import encoded

ELEMENTS = 400_000
"""The elements of one timing: calls of fewer are repeated."""


def timed(call: Callable[..., Any], args: tuple[torch.Tensor, ...], repeats: int) -> float:
    """Return the CPU time of a call in microseconds."""
    start = time.thread_time_ns()
    for _ in range(repeats):
        call(*args)
    return (time.thread_time_ns() - start) / repeats / 1e3


def paired(text: str, elements: int, seconds: float) -> dict[str, Any]:
    """Return the row of one chain and size."""
    spec = nxcore.pointwise(text).spec
    args = tuple(torch.randn(elements) for _ in spec.expression.tensors)
    eager, numba = CHAINS[text], nxcore.op(spec.name, backend="numba")
    torch.testing.assert_close(numba(*args), eager(*args))
    repeats = max(1, min(100, ELEMENTS // elements))
    pairs, ends = [], time.monotonic() + seconds
    while time.monotonic() < ends or len(pairs) < 5:
        pairs.append((timed(eager, args, repeats), timed(numba, args, repeats)))
    least = [min(times) for times in zip(*pairs, strict=True)]
    return {
        "expression": text,
        "elements": elements,
        "eager_us": round(least[0], 2),
        "numba_us": round(least[1], 2),
        "gain": round(least[0] / least[1], 3),
        "gain_of_pairs": round(statistics.median(e / n for e, n in pairs), 3),
        "pairs": len(pairs),
    }


def main() -> None:
    """Print the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, nargs="+", default=[1024, 65536, 1 << 20])
    parser.add_argument("--seconds", type=float, default=1.5)
    given = parser.parse_args()
    # As set: one thread: two ways of the host's work are compared, and waits of threads would be noise.
    torch.set_num_threads(1)
    rows = [paired(text, elements, given.seconds) for text in CHAINS for elements in given.elements]
    head = {"device": describe(torch.device("cpu")).name, "torch": str(torch.__version__), "threads": 1}
    print(encoded({**head, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
