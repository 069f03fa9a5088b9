"""Kernels that are wrong by rule, and right ones, used as a user would: what reaches a caller.

    python -m tests.hostile [--seed N] [--json FILE] [--part SHARE] [--calls N] [--workers N]

The seed is drawn anew where none is given. ``grammar`` has the kernels, and what is promised of each.
"""

import argparse
import json
import os
import platform
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from tests.hostile.grammar import GATE, KEY, LATE, RATE
from tests.hostile.orders import ORDERS, SUMS
from tests.hostile.suite import CONDITION, MUTANT, RIGHT, Recipe, outcomes
from tests.hostile.use import Used

WRONG = 110
"""The kernels of each of both rules that are used, of those that are wrong at all."""


def table(found: Sequence[tuple[Recipe, Used]]) -> Iterator[str]:
    """Yield the lines of a table: a row a rule and promise."""
    yield f"{'kernels':34}{'number':>7}{'gate':>6}{'call':>6}{'never':>6}{'seen/wrong':>14}{'beyond':>8}"
    labels = {
        (MUTANT, RATE): "mutations of the syntax",
        (CONDITION, GATE): "wrong when the gate tries it",
        (CONDITION, KEY): "wrong on some problems",
        (CONDITION, LATE): "wrong from some call on",
        (CONDITION, RATE): "wrong in a share of the calls",
        (RIGHT, KEY): "right, in other orders",
    }
    for (rule, promise), label in labels.items():
        some = [u for r, u in found if (r.rule, u.promise) == (rule, promise)]
        by = Counter(u.by for u in some)
        seen, wrong = sum(u.seen for u in some), sum(u.wrong for u in some)
        beyond = sum(u.seen > u.most for u in some)
        yield (
            f"{label:34}{len(some):7}{by['gate']:6}{by['call']:6}{by['']:6}{f'{seen}/{wrong}':>14}{beyond:8}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Make kernels, use them, and print what reached a caller; 1 if that is more than promised."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--json", type=Path, help="where to write every kernel's outcome")
    parser.add_argument("--part", type=float, default=1.0, help="the share of the kernels")
    parser.add_argument("--calls", type=int, default=400, help="of each program")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    wanted = {MUTANT: WRONG, CONDITION: WRONG, RIGHT: len(SUMS) * len(ORDERS)}
    wanted = {rule: max(1, round(n * given.part)) for rule, n in wanted.items()}
    began, found = time.monotonic(), []
    for one in outcomes(wanted, given.seed, given.calls, given.workers):
        found.append(one)
        if given.json:
            with given.json.open("a") as file:
                file.write(json.dumps({**one[0]._asdict(), **asdict(one[1])}) + "\n")
        done = f"{len(found)} of {sum(wanted.values())}, {time.monotonic() - began:.0f} s"
        bar = "#" * (40 * len(found) // sum(wanted.values()))
        if sys.stderr.isatty():
            print(f"\r{bar:40} {done}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    wrong = [u for r, u in found if r.rule != RIGHT]
    beyond = [u for u in wrong if u.seen > u.most]
    convicted = [u for r, u in found if r.rule == RIGHT and u.by]
    for line in table(found):
        print(line)
    for u in (*beyond, *convicted):
        print(
            f"{u.op}, {u.name}: {u.seen} of {u.wrong} seen, {u.most} promised; {u.by or 'never'} {u.reason}"[
                :300
            ]
        )
    print(
        f"seed {given.seed}, {given.calls} calls each, {time.monotonic() - began:.0f} s, "
        f"torch {torch.__version__}, {platform.machine()}, {given.workers} workers: "
        f"{len(beyond)} of {len(wrong)} wrong kernels beyond their share, "
        f"{len(convicted)} of {len(found) - len(wrong)} right ones convicted"
    )
    return 1 if convicted or len(beyond) > 0.02 * len(wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
