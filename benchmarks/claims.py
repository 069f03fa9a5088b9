"""Speed-ups claimed elsewhere for such kernels, measured at the same shapes against torch's fastest idioms.

    python benchmarks/claims.py [--output claims.json] [--only REGEX] [--seconds N]

On a CUDA device, in float32. Both sides take turns and are timed by wall clock, including host time.
Kernels are chosen by measurement beforehand. ``first`` is the idiom of the claim, ``best`` the fastest
known idiom of torch. A claim is met if the whole interval of the ratio meets it.

Beside a call with gradients ``node`` is timed: a node of autograd with the same leaves, which allocates its
result and computes nothing. No operator of one node is faster than that, so that ``bound``, the idiom's time
over it, is the most that its ratio can be.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nxcore.store.encoding import encoded

if __name__ == "__main__":  # before the session is made; a block of this policy costs each call a little more
    # As set: full speed is claimed, after everything is measured.
    os.environ.setdefault("NXCORE_POLICY", "measure")

import torch
from torch import Tensor, nn

import nxcore
from nxcore import nas
from nxcore.errors import present
from nxcore.interop import native
from nxcore.interop.autograd import Differentiable
from nxcore.measure.decision import interval
from nxcore.spec.device import describe
from nxcore.spec.problem import Problem

sys.path.append(str(Path(__file__).parents[1]))
from tests.nas import darts  # plain operations, which are no part of the package

ROUNDS, ROUND_S = 25, 0.01
FIRST = 16  # untimed calls of each; a mixed operation is replayed by then
CANDIDATES = {  # operations, batch, channels, side, claimed
    "small": (6, 2, 16, 16, 0.64),
    "medium": (8, 4, 32, 32, 1.84),
    "large": (12, 8, 64, 32, 2.94),
    "xlarge": (16, 4, 96, 24, 2.07),
}
MIXED = {4: 1.5, 8: 2.0, 12: 2.4, 16: 2.8}
ADDS = {1_024: 1.0, 10_240: 1.0, 102_400: 1.0}
SUMS = {"all": None, "inner": -1, "(0, 1)": (0, 1)}

Call = Callable[[], Any]


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda")


@dataclass
class Claim:
    """One claim: its name, the calls to compare, and the claimed ratio to the first idiom.

    Attributes
    ----------
    name : str
    claimed : float
    ours : callable
    idioms : mapping of str to callable
        Torch's idioms; the first is that of the claim.
    node : callable, optional
        A call with the same leaves whose node of autograd computes nothing.
    """

    name: str
    claimed: float
    ours: Call
    idioms: Mapping[str, Call] = field(default_factory=dict)
    node: Call | None = None


def stacked(xs: Sequence[Tensor], logits: Tensor) -> Tensor:
    """Return the weighted sum as the claim's authors wrote it: it builds a stack first."""
    return (torch.stack(tuple(xs)) * torch.softmax(logits, 0).view(-1, 1, 1, 1, 1)).sum(0)


def emptied(
    xs: Sequence[Tensor], logits: Tensor, *, anew: bool = False
) -> Callable[[Sequence[Tensor], Tensor], Tensor]:
    """Return a weighted sum that computes nothing, both ways: what is left is torch's autograd.

    Its gradients are the same tensors in each pass, or made ``anew``.
    """
    spec = nxcore.op("softmax_sum").spec
    result, grads = torch.empty_like(xs[0]), tuple(torch.empty_like(x) for x in xs)
    of_logits = torch.empty_like(logits)
    made = Differentiable(
        spec,
        Problem.of(spec, (tuple(xs), logits)).args,
        present(spec.gradient, "gradient"),
        lambda *_: torch.empty_like(result),
        lambda *_: (tuple(map(torch.empty_like, grads)) if anew else grads, of_logits),
        lambda *_: (grads, of_logits),
    )
    extension = native.of(nxcore.op("softmax_sum"))
    return made if extension is None else made.compiled(extension)


def softmax_sums() -> list[Claim]:
    """Return the weighted sums of stacked and of listed candidates, forward, and with gradients."""
    found = []
    for name, (n, batch, channels, side, claimed) in CANDIDATES.items():
        xs, logits = [_randn(batch, channels, side, side) for _ in range(n)], _randn(n)
        ours = nxcore.op("softmax_sum")

        shape = f"{n} x ({batch}, {channels}, {side}, {side})"
        found.append(
            Claim(
                f"softmax_sum {name}, {shape}",
                claimed,
                lambda xs=xs, logits=logits, ours=ours: ours(xs, logits),
                {
                    "stacked": functools.partial(stacked, xs, logits),
                    "in place": functools.partial(ours.spec.idioms["in-place"], xs, logits),
                },
            )
        )
        leaves = [x.clone().requires_grad_() for x in (*xs, logits)]
        grad = _randn(batch, channels, side, side)

        node = emptied(leaves[:-1], leaves[-1])

        def stepped(run: Any, leaves: Any = leaves, grad: Any = grad) -> Any:
            return torch.autograd.grad(run(leaves[:-1], leaves[-1]), leaves, grad)

        found.append(
            Claim(
                f"softmax_sum {name} with gradients",
                claimed,
                lambda stepped=stepped, ours=ours: stepped(ours),
                {"stacked": lambda stepped=stepped, run=stacked: stepped(run)},
                lambda stepped=stepped, node=node: stepped(node),
            )
        )
    return found


class Loop(nn.Module):
    """A mixed operation as the claim's authors wrote it."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.ops = nn.ModuleList(darts.candidate(name, 16, 1) for name in names)

    def forward(self, x: Tensor, logits: Tensor) -> Tensor:
        """Add up the weighted operations one after another."""
        weights = torch.softmax(logits, 0)
        return sum(w * op(x) for w, op in zip(weights, self.ops, strict=True))  # type: ignore[return-value]  # int 0 + Tensor


def mixed(only: str = "") -> list[Claim]:
    """Return whole mixed operations, forward and backward, of such names: their graphs take seconds."""
    found = []
    x, grad = _randn(64, 16, 32, 32).requires_grad_(), _randn(64, 16, 32, 32)
    for n, claimed in MIXED.items():
        title = f"MixedOp of {n}, (64, 16, 32, 32), with gradients"
        if not re.search(only, title):
            continue
        names = tuple(itertools.islice(itertools.cycle(darts.PRIMITIVES), n))
        logits = _randn(n).requires_grad_()
        ours = nas.MixedOp(16, 1, names).to("cuda")

        loop = Loop(names).to("cuda")
        graphed = torch.cuda.make_graphed_callables(Loop(names).to("cuda"), (x, logits))

        def step(module: Any, logits: Tensor = logits) -> Any:
            return torch.autograd.grad(module(x, logits), [x, logits, *module.parameters()], grad)

        found.append(
            Claim(
                title,
                claimed,
                lambda ours=ours, step=step: step(ours),
                {
                    "loop": lambda loop=loop, step=step: step(loop),
                    "make_graphed_callables": lambda graphed=graphed, step=step: step(graphed),
                },
            )
        )
    return found


def pointwise_and_sums() -> list[Claim]:
    """Return small additions, which must not be slower, and sums of (4, 512, 896)."""
    found = []
    for n, claimed in ADDS.items():
        x, y = _randn(n), _randn(n)
        found.append(
            Claim(
                f"add of {n:,}",
                claimed,
                lambda x=x, y=y: nxcore.ops.add(x, y),
                {"torch": lambda x=x, y=y: torch.add(x, y)},
            )
        )
    z = _randn(4, 512, 896)
    for name, dim in SUMS.items():
        found.append(
            Claim(
                f"sum of (4, 512, 896), {name}",
                1.0,
                lambda dim=dim: nxcore.ops.sum(z, dim),
                {"torch": lambda dim=dim: torch.sum(z, dim)},
            )
        )
    return found


def compared(claim: Claim) -> dict[str, Any]:
    """Return the medians in us, and the ratio to the first idiom and to the best with intervals."""
    calls = {"ours": claim.ours, **claim.idioms} | ({"node": claim.node} if claim.node else {})
    for call in calls.values():
        _wall_s(call, FIRST)
    once = max(_wall_s(call, 1) for _ in range(3) for call in calls.values())
    count = max(1, min(1000, int(ROUND_S / once)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS):
        for name in list(calls) if turn % 2 else list(calls)[::-1]:
            times[name].append(_wall_s(calls[name], count) / count * 1e6)
    medians = {name: statistics.median(us) for name, us in times.items()}
    first = next(iter(claim.idioms))
    best = min(claim.idioms, key=medians.__getitem__)
    row: dict[str, Any] = {"name": claim.name, "claimed": claim.claimed, "us": medians, "calls": count}
    compare = {"first": (first, "ours"), "best": (best, "ours")}
    if claim.node:
        compare["bound"] = (first, "node")
    for what, (idiom, own) in compare.items():
        found = interval([theirs / ours for theirs, ours in zip(times[idiom], times[own], strict=True)])
        row[what] = {"idiom": idiom, "ratio": found.median, "interval": (found.low, found.high)}
    row["met"] = row["first"]["interval"][0] >= claim.claimed
    return row


def memory() -> list[dict[str, Any]]:
    """Return the peak bytes above the candidates of the large weighted sum: ours, and stacked."""
    rows = []
    for name, (n, batch, channels, side, _) in CANDIDATES.items():
        xs, logits = [_randn(batch, channels, side, side) for _ in range(n)], _randn(n)

        row: dict[str, Any] = {"name": name}
        for what, run in (("ours", nxcore.op("softmax_sum")), ("stacked", stacked)):
            run(xs, logits)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run(xs, logits)
            row[what] = torch.cuda.max_memory_allocated() - before
        row["saved"] = 1 - row["ours"] / row["stacked"]
        rows.append(row)
    return rows


def _wall_s(call: Call, count: int) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of text."""
    low, high = row["first"]["interval"]
    bound = f", at most {row['bound']['ratio']:.2f}" if "bound" in row else ""
    return (
        f"{row['name']}: claimed {row['claimed']}, got {row['first']['ratio']:.2f} "
        f"[{low:.2f}, {high:.2f}]{bound}, {row['best']['ratio']:.2f} of {row['best']['idiom']}; "
        f"{row['us']['ours']:.1f} us{'' if row['met'] else ': NOT met'}"
    )


def main() -> None:
    """Measure all claims, print a line each, and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="write the results to this file, as JSON")
    parser.add_argument("--only", default="", metavar="REGEX", help="only claims of such names")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no claim after so many")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    record: dict[str, Any] = {
        "device": describe("cuda").to_dict() | {"torch": str(torch.__version__)},
        "rows": [],
    }

    def write() -> None:
        if args.output:
            args.output.write_text(encoded(record, indent=1) + "\n", encoding="utf-8")

    end = time.monotonic() + args.seconds
    for claims in (softmax_sums, pointwise_and_sums, functools.partial(mixed, args.only)):
        if time.monotonic() > end:
            break
        for claim in claims():
            if time.monotonic() > end:
                print(f"{claim.name}: not measured", flush=True)
            elif re.search(args.only, claim.name):
                record["rows"].append(compared(claim))
                print(line(record["rows"][-1]), flush=True)
                write()
    if re.search(args.only, "memory"):
        record["memory"] = memory()
        for row in record["memory"]:
            print(
                f"memory {row['name']}: {row['ours']:,} of {row['stacked']:,} bytes, {row['saved']:.1%} saved"
            )
        write()


if __name__ == "__main__":
    main()
