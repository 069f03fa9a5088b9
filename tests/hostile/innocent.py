"""Right kernels on a machine that lacks something, or ends their process, at one moment: none is convicted.

python -m tests.hostile.innocent [CASES [SEED]]
"""

import errno
import inspect
import os
import random
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from tests import fresh
from tests.hostile.plain import Dice
from tests.null import fakes
from tests.null.fakes import SPECS
from tests.null.trust.test_trial import plug

KILLS = 40
"""One case in so many is that of a process that is killed."""

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


KILLED = """
import os, sys, nxcore, torch
from nxcore.trust.gate import Gate
def counted(*args, run=Gate._run, left=list(range({moment}))):
    sys.setprofile(lambda *_: left.pop() if left else os.kill(os.getpid(), {signal}))
    return run(*args)
Gate._run = counted
nxcore.op("add", backend="innocent")(torch.ones(3, 5), torch.ones(3, 5))
"""
"""A process that is ended at some moment of a verification, counted in calls of functions and their ends."""

USED = """
import nxcore, torch
from nxcore.cli import app
x = torch.ones(3, 5)
assert torch.equal(nxcore.op("add", backend="innocent")(x, x), 2 * x)
app(["doctor"])
"""
"""A later process: the plugin's kernel serves, or it raises, and ``doctor`` finds nothing broken."""

MOMENTS = 30_000
"""The most moments: a verification has about as many."""


def killed(seed: int) -> str:
    """End a process in which a kernel is verified from outside; return what a later one misses."""
    dice = random.Random(seed)
    how = dice.choice((signal.SIGKILL, signal.SIGTERM))
    with tempfile.TemporaryDirectory() as folder:
        plug(Path(folder))
        env = os.environ | {
            "PYTHONPATH": folder,
            "NXCORE_BACKENDS": "innocent",
            "NXCORE_CACHE": f"{folder}/cache",
        }
        code = KILLED.format(moment=dice.randrange(MOMENTS), signal=int(how))
        first = fresh.run("-c", code, env=env).returncode
        done = fresh.run("-c", USED, env=env)
    ended = "" if first in (0, -how) else f"it ended by {first}"
    return f"seed {seed}: {ended}{done.stderr}" if ended or done.returncode else ""


def main() -> int:
    """Provoke cases, of a number and a seed that may be given, and print how many kernels are convicted."""
    given = list(map(int, sys.argv[1:]))
    count, seed = (*given, *(1000, random.SystemRandom().randrange(1 << 30))[len(given) :])
    cases = [(killed if i % KILLS == 0 else convicted)(seed + i) for i in range(count)]
    found = list(filter(None, cases))
    print(*found[:10], f"seed {seed}: {len(found)} of {count} innocent kernels convicted or wrong", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
