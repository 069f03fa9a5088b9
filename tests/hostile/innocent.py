"""Right kernels on a machine that lacks something at one moment of their lives: none is convicted.

python -m tests.hostile.innocent [CASES [SEED]]
"""

from __future__ import annotations

import errno
import inspect
import random
import sys
import warnings
from typing import Any

import torch

from tests.hostile.plain import Dice
from tests.null import fakes
from tests.null.fakes import SPECS

PLACES = ("accepts", "planner", "run")
NUMBERS = ("ENOSPC", "EROFS", "EDQUOT", "EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "EIO", "ESTALE", "EACCES")
OTHERS = (
    lambda: MemoryError(),
    lambda: torch.OutOfMemoryError("CUDA out of memory"),
    lambda: ImportError("cannot import name 'x' from partially initialized module 'y'"),
    lambda: RuntimeError("unit.o: No space left on device"),
    lambda: RuntimeError("can't start new thread"),
    lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory"),
)
"""What a machine raises that lacks disk, files, memory or threads, or was interrupted in an import."""


def lacking(dice: Dice) -> BaseException:
    """Return an error of the machine, from which up to two others arose, as in a compiler."""
    kind = dice.choice((*NUMBERS, *OTHERS))
    error: BaseException = OSError(getattr(errno, kind), kind) if isinstance(kind, str) else kind()
    for _ in range(dice.randrange(3)):
        outer = RuntimeError("it can't be compiled")
        outer.__cause__ = error
        error = outer
    return error


def deep(call: Any, left: int) -> Any:
    """Call from a recursion that leaves few frames."""
    return call() if left <= 0 else deep(call, left - 1)


def convicted(seed: int) -> str:
    """Provoke a case, and let the machine recover; return why the kernel is convicted, or wrong."""
    dice = random.Random(seed)
    op, place, after = dice.choice(("add", "sum")), dice.choice(PLACES), dice.randrange(40)
    recursion, counts, error = dice.random() < 0.2, dict.fromkeys(PLACES, 0), lacking(dice)

    def meet(where: str) -> None:
        counts[where] += 1
        due = counts[where] > (after if where == "run" else after % 3)
        if not recursion and where == place and due and left:
            left.pop()
            raise error

    def run(*args: Any) -> Any:
        meet("run")
        return SPECS[op].reference(*args)

    def plan(problem: Any) -> Any:
        meet("planner")
        return run

    def accepts(problem: Any) -> Any:
        meet("accepts")
        return fakes.YES

    left = [0] * dice.choice((1, 2, 8))
    session = fakes.session(fakes.backend("innocent", fakes.kernel(op, planner=plan, accepts=accepts)))
    x = torch.randn(3, 40)
    args = (x, x) if op == "add" else (x, 1)
    right = SPECS[op].reference(*SPECS[op].bind(*args))
    with warnings.catch_warnings(), session.use("innocent"):
        warnings.simplefilter("ignore")
        for step in range(6):
            try:
                frames = sys.getrecursionlimit() - len(inspect.stack(0)) - dice.randrange(20, 150)
                call = lambda: session.op(op)(*args)  # noqa: E731  called at two depths
                result = deep(call, frames) if recursion and step < 2 else call()
            except RecursionError:
                continue  # the caller's own
            if not torch.allclose(result, right):
                return f"seed {seed}: a wrong result after {error!r}"
    entries = list(session.gate.quarantine)
    return f"seed {seed}: {entries[0]} after {error!r}" if entries else ""


def main() -> int:
    """Provoke cases, of a number and a seed that may be given, and print how many kernels are convicted."""
    given = list(map(int, sys.argv[1:]))
    count, seed = (*given, *(1000, random.SystemRandom().randrange(1 << 30))[len(given) :])
    found = [why for i in range(count) if (why := convicted(seed + i))]
    print(*found[:10], f"seed {seed}: {len(found)} of {count} innocent kernels convicted or wrong", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
