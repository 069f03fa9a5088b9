"""A program of half a minute, as a user runs it: what the default policy costs it, and when it gains.

Each step calls ``softmax_sum`` and ``sum`` over the outer dimension. Plain torch and nxcore run in processes
of their own, one after the other, in pairs. A run counts its steps, and notes when each operator's kernel
took its first turn, and when it served. ``--compile`` begins with an empty cache; without it, the kernels
are verified and on disk, and nothing has been measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from nxcore.choose.learn.exploration import exploration
from nxcore.store.encoding import encoded

SECONDS, LOSS = 30.0, 0.03
ON_DISK_S, COMPILED_S = 5.0, 15.0
"""Seconds until the kernels serve, if they are on disk and if they must be compiled."""

Step = tuple[str, tuple[Any, ...]]


def steps() -> list[Step]:
    """Return the operators' names and arguments."""
    xs = tuple(torch.randn(64, 16, 32, 32) for _ in range(8))
    return [("softmax_sum", (xs, torch.randn(8))), ("sum", (torch.randn(4096, 1024), 0))]


def plain(xs: tuple[torch.Tensor, ...], logits: torch.Tensor, x: torch.Tensor) -> None:
    """Do a step as a program without nxcore does: what the operators' references do, without a look-up."""
    weights = torch.softmax(logits, 0)
    out = xs[0] * weights[0]
    for other, weight in zip(xs[1:], weights[1:], strict=True):
        out = torch.addcmul(out, other, weight)
    x.sum(0)


@dataclass(frozen=True)
class Run:
    """What a process counted.

    Attributes
    ----------
    steps : int
        The steps that it did.
    turns, since : dict
        Operator -> seconds from the first call until a kernel took its first turn, and until one other than
        torch's served.
    """

    steps: int
    turns: dict[str, float] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)

    def note(self, session: Any, passed: float) -> None:
        """Note what has changed since the last step."""
        for (problem, *_), choice in list(session.chooser.choices.items()):
            explored = exploration(choice.call)
            if explored is None or explored.engaged:
                self.turns.setdefault(problem.op, passed)
            if choice.decision.rule == "measured":
                self.since.setdefault(problem.op, passed)


def run(seconds: float, *, threads: int, with_nxcore: bool) -> Run:
    """Do steps for so many seconds, in this process."""
    torch.set_num_threads(threads)
    made, found = steps(), Run(0)
    (_, (xs, logits)), (_, (x, dim)) = made
    if with_nxcore:
        from nxcore.session import default

        session = default()
        ops = [session.op(name) for name, _ in made]

        def step() -> None:
            ops[0](xs, logits)
            ops[1](x, dim)

    else:
        session = None

        def step() -> None:
            plain(xs, logits, x)

    step()
    began, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        step()
        count += 1
        if session is not None and len(found.since) < len(made):
            found.note(session, passed)
    return replace(found, steps=count)


def process(folder: Path, *arguments: str) -> Run:
    """Run this file in another process, with its caches in a folder."""
    env = os.environ | {"NXCORE_CACHE": str(folder / "cache"), "NXCORE_POLICY": "online"}
    env.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, __file__, "--alone", *arguments],
        env=env,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return Run(**json.loads(done.stdout))


@dataclass(frozen=True)
class Pair:
    """Plain torch and nxcore, one after the other."""

    torch: Run
    nxcore: Run

    @property
    def loss(self) -> float:
        """The share of plain torch's steps that nxcore's run did less; negative if it did more."""
        return 1 - self.nxcore.steps / self.torch.steps


def pairs(count: int, seconds: float = SECONDS, *, threads: int = 1, compiling: bool = False) -> list[Pair]:
    """Run so many pairs, in alternating order."""
    common = ("--seconds", str(seconds), "--threads", str(threads))
    found = []
    with tempfile.TemporaryDirectory(prefix="nxcore-program-") as name:
        folder = Path(name)
        for i in range(count):
            if compiling:
                shutil.rmtree(folder / "cache", ignore_errors=True)
            else:
                prepare(folder, threads)
            todo: list[Callable[[], Run]] = [
                lambda: process(folder, *common, "--torch"),
                lambda: process(folder, *common),
            ]
            order = (0, 1) if i % 2 == 0 else (1, 0)
            runs = {at: todo[at]() for at in order}
            found.append(Pair(runs[0], runs[1]))
    return found


def prepare(folder: Path, threads: int) -> None:
    """Have the kernels verified and on disk, and nothing measured."""
    process(folder, "--prepare", "--threads", str(threads))
    for measured in (folder / "cache" / "v1").glob("*/entries"):
        shutil.rmtree(measured)


def verified(threads: int) -> Run:
    """Verify and compile the kernels, in this process."""
    import nxcore

    torch.set_num_threads(threads)
    for name, arguments in steps():
        with nxcore.policy("measure"):
            nxcore.op(name)(*arguments)
    return Run(0)


def main() -> int:
    """Print a line for each pair; 1 if the kernels come late, or the run loses more than it may."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--threads", type=int, default=1, help="torch's")
    parser.add_argument("--compile", action="store_true", help="begin with an empty cache")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        found = (
            verified(options.threads)
            if options.prepare
            else run(options.seconds, threads=options.threads, with_nxcore=not options.torch)
        )
        print(encoded(asdict(found)))
        return 0
    most = COMPILED_S if options.compile else ON_DISK_S
    made = pairs(options.pairs, options.seconds, threads=options.threads, compiling=options.compile)
    for pair in made:
        turns, since = (
            ", ".join(f"{op} {s:.1f} s" for op, s in times.items()) or "none"
            for times in (pair.nxcore.turns, pair.nxcore.since)
        )
        print(
            f"{pair.torch.steps} steps with torch, {pair.nxcore.steps} with nxcore ({-pair.loss:+.1%}); "
            f"turns: {turns}; kernels serve: {since}; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    late = any(len(p.nxcore.since) < len(steps()) or max(p.nxcore.since.values()) > most for p in made)
    return int(late or statistics.median(p.loss for p in made) > LOSS)


if __name__ == "__main__":
    raise SystemExit(main())
