"""Trial: a kernel is verified and run in a process of its own, since a process ended in it before.

``python -m`` this module does it. It writes a line when it begins, and one when it has ended.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import torch

from nxcore.registry import made
from nxcore.registry.interpreter import command
from nxcore.settings import Settings
from nxcore.spec.device import synchronize
from nxcore.spec.problem import Problem
from nxcore.store.encoding import encoded
from nxcore.store.files import Store
from nxcore.store.problems import arguments, described
from nxcore.store.wisdom import key
from nxcore.trust.suspect import Doubt

LIMIT_S = 180.0
"""Seconds after which a kernel counts as hung: a compiler on a busy machine needs fewer."""

BEGUN, ENDED, ABSENT, LOST = "begun", "ended", "absent", "lost"
"""The lines of a trial: it begins; the kernel left the process alive; it isn't there; the context is lost."""

FAULTS = tuple(
    getattr(signal, name).value
    for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGSYS", "SIGTRAP")
    if hasattr(signal, name)
)
"""The signals by which a process ends itself; others come from outside."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended; no mark is set where it was ended from outside.

    It ``passed`` where the kernel left the process alive, and is ``impossible`` where the kernel can't be
    tried in another process. ``why`` is the reason, as a part of a sentence.
    """

    passed: bool = False
    crashed: bool = False
    impossible: bool = False
    why: str = ""


def call(problem: Problem) -> Mapping[str, Any]:
    """Return the call of a problem as plain data, by which another process finds it."""
    found: dict[str, Any] = {"op": problem.op, "problem": key(problem)}
    return found | ({"expression": made.plain(problem.spec)} if problem.spec.expression else {})


def held(doubt: Doubt, store: Store, limit: float = LIMIT_S) -> Outcome:
    """Try a kernel in a process of its own, and wait for that."""
    suspect, kept = doubt.suspect, store.folder
    if not doubt.call or kept is None or not sys.executable or getattr(sys, "frozen", False):
        return Outcome(impossible=True, why="it can't be tried in another process")
    _log.warning(
        "%s of %s: %s; it is tried in a process of its own first", suspect.kernel, suspect.op, doubt.reason
    )
    environment = {name: value for name, value in os.environ.items() if name != "NXCORE_LOCK"}
    environment |= {"NXCORE_CACHE": str(kept.parent), "NXCORE_WORKERS": "0", "NXCORE_POLICY": "frozen"}
    task = encoded({"kernel": suspect.kernel, "threads": torch.get_num_threads(), **doubt.call})
    with tempfile.TemporaryFile() as said:
        try:
            child = subprocess.Popen(
                (*command("nxcore.trust.trial"), task),
                stdin=subprocess.PIPE,  # it ends where this process does
                stdout=said,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        except OSError as error:
            return Outcome(why=f"its trial couldn't be started: {error}")
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            return Outcome(crashed=True, why=f"it didn't end in {limit:g} s when it was tried")
        finally:
            child.kill()
            child.wait()
            if child.stdin:
                child.stdin.close()
        return _judged(status, _lines(said))


def _lines(said: IO[bytes]) -> list[str]:
    said.seek(0)
    return said.read().decode(errors="replace").splitlines()


def _judged(status: int, lines: list[str]) -> Outcome:
    if ENDED in lines:
        return Outcome(passed=True)
    if ABSENT in lines:
        return Outcome(impossible=True, why="it can't be tried in another process")
    if LOST in lines:
        return Outcome(crashed=True, why="it ended the CUDA context when it was tried")
    if BEGUN in lines and (-status in FAULTS or status >= 0):
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return Outcome(crashed=True, why=f"it ended its process by {how} when it was tried")
    return Outcome(why="its trial was ended from outside; it is tried again later")


def main(text: str) -> None:
    """Try a kernel as a task says, and end the process."""
    from nxcore.errors import FOREIGN, DeviceLostError, NxcoreError
    from nxcore.interop import native
    from nxcore.registry.discovery import installed
    from nxcore.trust.gate import Gate

    def leave() -> None:
        sys.stdin.read()
        os._exit(0)  # the program has ended

    with os.fdopen(os.dup(1), "w", buffering=1) as lines:
        os.dup2(2, 1)  # what toolkits print is no outcome
        threading.Thread(target=leave, daemon=True).start()
        task, settings = json.loads(text), Settings.from_environment()
        if settings.native:
            native.found()  # verdicts of one path of calls don't count on the other
        torch.set_num_threads(task["threads"])
        registry = installed(settings)
        gate = Gate(registry, Store(settings.cache))
        gate.quarantine.journal = False
        try:
            made.restore(registry, task.get("expression"))
            problem = described(registry.spec(task["op"]), task["problem"])
            backend, kernel = next(
                (b, k) for b, k in registry.kernels(problem.op) if b.label(k) == task["kernel"]
            )
        except (NxcoreError, StopIteration):
            lines.write(f"{ABSENT}\n")
            return
        lines.write(f"{BEGUN}\n")
        try:
            if not gate.verify(backend, kernel, problem).refusal and kernel.takes(problem):
                kernel.plan(problem)(*arguments(problem))
                synchronize(problem.device)
        except DeviceLostError:
            lines.write(f"{LOST}\n")
            return
        except FOREIGN as error:  # it left the process alive, which is all that was in doubt
            _log.info("trial: %s raised %s", task["kernel"], error)
        lines.write(f"{ENDED}\n")


if __name__ == "__main__":
    main(sys.argv[1])
