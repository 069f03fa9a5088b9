"""Calls forward and backward beside torch's own with autograd, in turns.

    python benchmarks/pairs.py [--rounds 30] [--seconds 8] [--json FILE] [NAME ...]

nxcore's side is called for the seconds first, so that a choice is made under the policy of the environment.
A round's ratio is torch's time over nxcore's, of as many calls as take 20 ms. The time is the clock's, of
calls in a row that are waited for at the end.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import nxcore
from nxcore.store.encoding import encoded

ROUND_S = 0.02
Call = Callable[..., Tensor]


def image(device: str) -> tuple[Tensor, ...]:
    """Return the images of the largest maximum pool of a search network."""
    return (torch.randn(64, 16, 32, 32, device=device, requires_grad=True),)


def two(device: str) -> tuple[Tensor, ...]:
    """Return two short tensors, one of which needs a gradient."""
    return torch.randn(1024, device=device, requires_grad=True), torch.randn(1024, device=device)


PAIRS: dict[str, tuple[Call, Call, Callable[[str], tuple[Tensor, ...]]]] = {
    "max_pool2d": (
        lambda x: functional.max_pool2d(x, 3, 1, 1),
        lambda x: nxcore.ops.max_pool2d(x, 3, 1, 1),
        image,
    ),
    "max_pool2d, stride 2": (
        lambda x: functional.max_pool2d(x, 3, 2, 1),
        lambda x: nxcore.ops.max_pool2d(x, 3, 2, 1),
        image,
    ),
    "avg_pool2d": (
        lambda x: functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        lambda x: nxcore.ops.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        image,
    ),
    "add": (torch.add, nxcore.ops.add, two),
}
"""Name -> torch's call, nxcore's, and what makes the arguments."""


def seconds_of(call: Call, args: tuple[Tensor, ...], made: Tensor, times: int) -> float:
    """Return the seconds of a call with its gradient."""
    if made.is_cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        call(*args).backward(made)
        args[0].grad = None
    if made.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def compared(name: str, device: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the times of both sides, microseconds a call, and the ratios of the rounds."""
    theirs, ours, build = PAIRS[name]
    args = build(device)
    made = torch.randn_like(theirs(*args))
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        seconds_of(ours, args, made, 20)
    usual = min(seconds_of(theirs, args, made, 20) for _ in range(3))
    times = max(1, round(ROUND_S / usual))
    pairs = []
    for at in range(rounds):
        sides = [(theirs, ours), (ours, theirs)][at % 2]
        found = {side: seconds_of(side, args, made, times) for side in sides}
        pairs.append((1e6 * found[theirs], 1e6 * found[ours]))
    ratios = [theirs_us / ours_us for theirs_us, ours_us in pairs]
    return {
        "name": name,
        "torch_us": [a for a, _ in pairs],
        "own_us": [b for _, b in pairs],
        "ratios": ratios,
    }


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    low, middle, high = statistics.quantiles(row["ratios"], n=4)
    torchs, own = (statistics.median(row[side]) for side in ("torch_us", "own_us"))
    return f"{row['name']:22} {torchs:8.1f} {own:8.1f} us  {middle:.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    """Print a line a pair, and the problems that this process met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=[*PAIRS], metavar="NAME", help=f"of {', '.join(PAIRS)}")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for name in given.names:
        rows.append(compared(name, device, given.rounds, given.seconds))
        print(line(rows[-1]), flush=True)
    print(nxcore.status())
    if given.json:
        given.json.write_text(encoded(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
