"""A node of autograd written by hand, beside ``softmax_sum`` with gradients: how near a claim is.

    python benchmarks/minimal_node.py [--output FILE] [NAME ...]

``minimal_node.cpp``, which this builds, has a node with the leaves of a claim's call. By its mode it returns
the same gradients in each pass or parts of one new allocation, launches a kernel that does nothing once each
way, and saves its inputs. No operator of one node that does these is faster. All take turns, as in
``claims.py``. On a CPU nothing is launched.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nxcore.store.encoding import encoded

if __name__ == "__main__":
    # As set: full speed is compared, after everything is measured.
    os.environ.setdefault("NXCORE_POLICY", "measure")

import torch
from torch import Tensor
from torch.utils import cpp_extension

import nxcore
from benchmarks.claims import CANDIDATES, emptied, stacked
from nxcore.measure.decision import interval
from nxcore.spec.device import describe

SOURCE = Path(__file__).with_suffix(".cpp")
ROUNDS, CALLS, FIRST = 25, 16, 64
PARTS, LAUNCHES, SAVES = 1, 2, 4
MODES = {
    "the same gradients": 0,
    "the same gradients, two launches": LAUNCHES,
    "parts of one allocation": PARTS,
    "parts, two launches": PARTS | LAUNCHES,
    "parts, two launches, saved inputs": PARTS | LAUNCHES | SAVES,
}
NOTHING = b""".version 8.0
.target sm_80
.address_size 64
.visible .entry nothing(.param .align 8 .b8 block[256]) { ret; }
"""
"""A kernel of PTX."""

Call = Callable[[], Any]


def kernel(device: str) -> int:
    """Return the handle of a kernel that does nothing; 0 on a CPU."""
    if device == "cpu":
        return 0
    torch.ones(1, device=device)  # which makes the context
    driver, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    failed = driver.cuModuleLoadData(ctypes.byref(module), NOTHING)
    if failed or driver.cuModuleGetFunction(ctypes.byref(function), module, b"nothing"):
        raise RuntimeError("the driver doesn't take the kernel")
    return function.value or 0


def calls(extension: Any, name: str, device: str) -> dict[str, Call]:
    """Return what is compared at a claim's shape."""
    n, batch, channels, side, _ = CANDIDATES[name]
    leaves = [torch.randn(batch, channels, side, side, device=device).requires_grad_() for _ in range(n)]
    leaves.append(torch.randn(n, device=device).requires_grad_())
    grad = torch.randn_like(leaves[0])
    stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else 0
    extension.setup(kernel(device), stream, [torch.empty_like(x) for x in leaves])

    def both(run: Callable[[list[Tensor], Tensor], Tensor]) -> Call:
        return lambda: torch.autograd.grad(run(leaves[:-1], leaves[-1]), leaves, grad)

    found = {"idiom": both(stacked), "nxcore": both(nxcore.op("softmax_sum"))}
    found["empty node"] = both(emptied(leaves[:-1], leaves[-1]))
    for title, mode in MODES.items():
        run = functools.partial(extension.run, mode, leaves)
        found[title] = lambda run=run: torch.autograd.grad(run(), leaves, grad)  # type: ignore[misc]  # a lambda's default
    return found


def wall_us(call: Call, count: int) -> float:
    """Return the clock's time of a call, of some in a row that are waited for at the end."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else int
    wait()
    began = time.perf_counter()
    for _ in range(count):
        call()
    wait()
    return (time.perf_counter() - began) / count * 1e6


def compared(sides: dict[str, Call]) -> dict[str, Any]:
    """Return the times of all, and those of the idiom in their units."""
    for call in sides.values():
        wall_us(call, FIRST)
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(ROUNDS):
        for side in list(sides)[:: 1 - 2 * (turn % 2)]:
            times[side].append(wall_us(sides[side], CALLS))
    rows = {}
    for side, us in times.items():
        found = interval([theirs / own for theirs, own in zip(times["idiom"], us, strict=True)])
        over = statistics.median(own - node for own, node in zip(us, times["empty node"], strict=True))
        rows[side] = {
            "us": statistics.median(us),
            "over_node_us": over,
            "ratio": (found.median, found.low, found.high),
        }
    return rows


def main() -> None:
    """Measure, print a line each, and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=[*CANDIDATES][::-1], metavar="NAME")
    parser.add_argument("--output", type=Path, help="write the rows to this file, as JSON")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    extension = cpp_extension.load("nxcore_minimal_node", [str(SOURCE)], extra_cflags=["-O2"])
    record = {"device": describe(device).to_dict() | {"torch": str(torch.__version__)}, "rows": {}}
    for name in given.names:
        rows = record["rows"][name] = compared(calls(extension, name, device))
        print(f"{name}: claimed {CANDIDATES[name][-1]} times the idiom's speed")
        for side, row in rows.items():
            median, low, high = row["ratio"]
            print(
                f"  {side:36}{row['us']:8.1f} us, over the node {row['over_node_us']:7.1f}, "
                f"{median:.2f} [{low:.2f}, {high:.2f}]",
                flush=True,
            )
        if given.output:
            given.output.write_text(encoded(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
