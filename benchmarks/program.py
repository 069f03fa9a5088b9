"""A program of half a minute, as a user runs it: what the default policy costs it, and when it gains.

Each step calls ``softmax_sum`` and ``sum`` over the outer dimension. Plain torch and nxcore run in processes
of their own, one after the other, in pairs, with as many threads as torch takes by itself. A run counts its
steps, and notes when each operator's kernel served. ``--compile`` begins with an empty cache; without it, the
kernels are verified and on disk, and nothing has been measured. ``--busy`` has other processes at work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from nxcore.store.encoding import encoded

SECONDS, LOSS = 30.0, 0.03
ON_DISK_S, COMPILED_S = 5.0, 15.0
"""Seconds until the kernels serve, if they are on disk and if they must be compiled."""

Step = tuple[str, tuple[Any, ...]]


def steps() -> list[Step]:
    """Return the operators' names and arguments."""
    xs = tuple(torch.randn(64, 16, 32, 32) for _ in range(8))
    return [("softmax_sum", (xs, torch.randn(8))), ("sum", (torch.randn(4096, 2048), 0))]


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
    threads : int
        Torch's threads.
    since : dict
        Operator -> seconds from the first call until a kernel other than torch's served.
    served : dict
        Operator -> the kernel that serves at the end, and why.
    """

    steps: int
    threads: int = 0
    since: dict[str, float] = field(default_factory=dict)
    served: dict[str, str] = field(default_factory=dict)

    def note(self, session: Any, passed: float) -> None:
        """Note what has changed since the last step."""
        for (problem, *_), choice in list(session.chooser.choices.items()):
            if choice.decision.rule == "measured":
                self.since.setdefault(problem.op, passed)


def run(seconds: float, *, with_nxcore: bool) -> Run:
    """Do steps for so many seconds, in this process."""
    made, found = steps(), Run(0, torch.get_num_threads())
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
    if session is not None:
        for name, args in made:
            decision = session.explain(name, *args, decide=False).decision
            found.served[name] = f"{decision.chosen}: {decision.reason}"
    return replace(found, steps=count)


def process(folder: Path, *arguments: str) -> Run:
    """Run this file in another process, with its caches in a folder."""
    # As set: the cache alone, since whether it is empty is what is measured.
    env = os.environ | {"NXCORE_CACHE": str(folder / "cache")}
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

    @property
    def line(self) -> str:
        """The pair as text."""
        since = ", ".join(f"{op} {s:.1f} s" for op, s in self.nxcore.since.items()) or "none"
        return (
            f"{self.torch.steps} steps with torch, {self.nxcore.steps} with nxcore ({-self.loss:+.1%}), "
            f"{self.nxcore.threads} threads; kernels serve: {since}; load {os.getloadavg()[0]:.1f}"
        )


@contextlib.contextmanager
def beside(busy: int) -> Iterator[None]:
    """Have so many other processes at work within this block."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def pairs(count: int, seconds: float = SECONDS, *, compiling: bool = False, busy: int = 0) -> Iterator[Pair]:
    """Run so many pairs, in alternating order, and yield each."""
    common = ("--seconds", str(seconds))
    with tempfile.TemporaryDirectory(prefix="nxcore-program-") as name:
        folder = Path(name)
        for i in range(count):
            if compiling:
                shutil.rmtree(folder / "cache", ignore_errors=True)
            else:
                prepare(folder)
            todo: list[Callable[[], Run]] = [
                lambda: process(folder, *common, "--torch"),
                lambda: process(folder, *common),
            ]
            with beside(busy):
                runs = {at: todo[at]() for at in ((0, 1) if i % 2 == 0 else (1, 0))}
            yield Pair(runs[0], runs[1])


def prepare(folder: Path) -> None:
    """Have the kernels verified and on disk, and nothing measured."""
    process(folder, "--prepare")
    for measured in (folder / "cache" / "v1").glob("*/entries"):
        shutil.rmtree(measured)


def verified() -> Run:
    """Verify and compile the kernels, in this process."""
    import nxcore

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
    parser.add_argument("--busy", type=int, default=0, help="other processes that are at work")
    parser.add_argument("--compile", action="store_true", help="begin with an empty cache")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        found = verified() if options.prepare else run(options.seconds, with_nxcore=not options.torch)
        print(encoded(asdict(found)))
        return 0
    made = []
    for pair in pairs(options.pairs, options.seconds, compiling=options.compile, busy=options.busy):
        print(pair.line, flush=True)
        for op, why in pair.nxcore.served.items():
            print(f"    {op}: {why}", flush=True)
        made.append(pair)
    most = COMPILED_S if options.compile else ON_DISK_S
    late = any(len(p.nxcore.since) < len(steps()) or max(p.nxcore.since.values()) > most for p in made)
    return int(late or statistics.median(p.loss for p in made) > LOSS)


if __name__ == "__main__":
    raise SystemExit(main())
