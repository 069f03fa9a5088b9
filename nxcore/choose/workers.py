"""Workers: processes that compile and verify kernels, while the program goes on.

A worker is a Python of its own, started by a command: a program's main module is never run again. It reads
one task a line and answers with one line; what it compiled and verified lies on disk, where the program finds
it. It ends when its standard input does, so it never outlives the program.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nxcore.choose.process import Answer, Heard, Process, Task
from nxcore.registry.interpreter import command
from nxcore.registry.made import plain
from nxcore.settings import Settings
from nxcore.spec.device import properties
from nxcore.spec.problem import Problem
from nxcore.store.wisdom import key

MOST = 8
"""The most workers of a process, and the cores from which on one that only calls has several."""

BESIDE = 0.02
"""The share of a worker's processor time that is taken to delay the program: an assumption."""

FULL_S = 12.0
"""Seconds of processor time for which workers have the program's priority: two kernels from an empty cache.

Beside a program with as many threads as cores a process of low priority gets no processor: what it was to
compile within seconds isn't there after minutes.
"""

LOW, LOWEST = 10, 19
"""The niceness of workers after that, a tenth of a core that the program wants; and of one that measures."""

VISIBLE = "CUDA_VISIBLE_DEVICES"

PATIENCE_S = 600.0
"""Seconds after which a worker that doesn't answer is ended."""

IDLE_S = 10.0
"""Seconds after which a worker without a task is ended, which holds memory."""

LEAVING_S = 1.0
"""Seconds that workers together have for the steps that they are in, once the program ends."""

POLL_S = 0.05
"""Seconds between two looks at the program."""


class Workers:
    """Starts workers where there are tasks, and ends them.

    Parameters
    ----------
    command, environment
        Starts a worker, with these environment variables.
    most : int
        The most workers at once.
    patience, idle, affords
        See ``PATIENCE_S`` and ``IDLE_S``; ``affords()`` is whether another task may begin now.
    full, low
        See ``FULL_S`` and ``LOW``.

    Attributes
    ----------
    heard : callable
        Called with what a worker says besides its answers, as ``nxcore.choose.turns`` does.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        most: int,
        *,
        patience: float = PATIENCE_S,
        idle: float = IDLE_S,
        affords: Callable[[], bool] = lambda: True,
        full: float = FULL_S,
        low: int = LOW,
    ) -> None:
        self._spent, self._full, self._low = 0.0, full, low
        self._command, self._environment, self.most = tuple(command), dict(environment), most
        self._patience, self._idle_s, self.affords = patience, idle, affords
        self._lock, self._tasks, self._workers = threading.Lock(), list[Task](), list[Process]()
        self._last = time.monotonic()
        self.thread: threading.Thread | None = None
        self.heard: Heard = lambda *_: None

    def ask(
        self,
        problem: Problem,
        kernel: str,
        answered: Callable[[Answer], None],
        heat: float = 0.0,
        sample: str = "",
    ) -> None:
        """Have the kernel of that label compiled and verified for ``problem``; call ``answered`` later.

        For a GPU it is compiled alone, for ``problem`` or for a ``sample`` of its operator.
        """
        request: dict[str, Any] = {"kernel": kernel, "threads": torch.get_num_threads()}
        if problem.device.type == "cuda":
            request |= {"sample": sample, "device": properties(problem.device)}
        self.give(problem, request, answered, heat)

    def give(
        self,
        problem: Problem,
        request: Mapping[str, Any],
        answered: Callable[[Answer], None],
        heat: float = 0.0,
    ) -> None:
        """Have a worker do a task of ``problem``; call ``answered`` later."""
        request = {"op": problem.op, "problem": key(problem)} | dict(request)
        if problem.spec.expression is not None:  # the worker may not know the operator
            request["expression"] = plain(problem.spec)
        self.add(Task(request, answered, heat))

    def add(self, task: Task) -> None:
        """Have a worker do a task."""

        def answered(answer: Answer) -> None:
            self._spent += answer.seconds
            task.answered(answer)

        with self._lock:
            self._tasks.append(replace(task, answered=answered))
            if self.thread is None and threading.main_thread().is_alive():
                self.thread = threading.Thread(target=self._work, name="nxcore's workers")
                self.thread.start()

    @property
    def busy(self) -> bool:
        """Whether a worker is at work."""
        return any(worker.task for worker in list(self._workers))

    @property
    def nice(self) -> int:
        """The niceness of a worker now, relative to the program's."""
        return self._low if self._spent >= self._full else 0

    def withdrawn(self) -> bool:
        """Drop all tasks, unless one was begun; return whether they are."""
        with self._lock:
            if not (begun := any(w.task for w in self._workers)):
                self._tasks.clear()
        return not begun

    def after_fork(self) -> None:
        """Have no workers in a forked child: those of the parent answer the parent."""
        for worker in self._workers:
            worker.disown()
        self.most, self._lock, self._tasks, self._workers, self.thread = 0, threading.Lock(), [], [], None

    def _work(self) -> None:
        try:
            while threading.main_thread().is_alive():
                if self._idle():
                    return
                self._hand_out()
                waiting = {w.answers: w for w in self._workers}
                ready, _, _ = select.select([*waiting], [], [], POLL_S)
                for worker in (waiting[r] for r in ready):
                    worker.read(self.heard)
                for worker in list(self._workers):
                    worker.check(self._patience)
                    if worker.over:
                        self._workers.remove(worker)
        except BaseException:
            self._end()
            raise
        self._end()

    def _idle(self) -> bool:
        """Return whether there has been nothing to do for long; then no worker is left."""
        if self._tasks or any(w.task for w in self._workers):
            self._last = time.monotonic()
            return False
        if time.monotonic() - self._last <= self._idle_s:
            return False
        self._end()
        with self._lock:
            if not self._tasks:
                self.thread = None
            return not self._tasks

    def _end(self) -> None:
        for worker in self._workers:
            worker.leave()  # all of them, before one is waited for
        by = time.monotonic() + LEAVING_S
        while self._workers:
            self._workers.pop().end(by)

    def _hand_out(self) -> None:
        """Give each free worker the hottest task; start another worker where there are more.

        Of equals, one of an operator that it has had is first, then one that no other worker has had: to
        verify an operator's kernels takes longer than to race a problem.
        """
        while True:
            with self._lock:
                free = next((w for w in self._workers if w.task is None), None)
                if not self._tasks or (free is None and len(self._workers) >= self.most):
                    return
                if not self.affords():
                    return
                known = free.ops if free else set[str]()
                others = set[str]().union(*(w.ops for w in self._workers if w is not free))
                task = max(self._tasks, key=functools.partial(_rank, known, others))
                self._tasks.remove(task)
            if free is None:
                try:
                    free = Process((*self._command, str(self.nice)), self._environment)
                except OSError as error:
                    task.answered(Answer(f"no worker could be started: {error}"))
                    continue
                self._workers.append(free)
            free.give(replace(task, request={**task.request, "nice": self.nice}))


def _rank(known: set[str], others: set[str], task: Task) -> tuple[float, bool, bool]:
    op = task.request.get("op", "")
    return task.heat, op in known, op not in others


def cores() -> int:
    """Return the cores that this process may use, of those of its container and beside other ranks."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        found = min(found, int(quota) // int(period))
    return max(1, found // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def allowed(settings: Settings) -> int:
    """Return how many workers a process may have; 0 if it must start no process.

    That is so if nothing is kept on disk or compiled, in the child of a process that splits its own work (a
    loader of data, a worker of tests), and in a program that is frozen into one file.
    """
    split = multiprocessing.parent_process() is not None or "PYTEST_XDIST_WORKER" in os.environ
    if (
        os.name != "posix"
        or settings.cache is None
        or not settings.jit
        or split
        or getattr(sys, "frozen", False)
        or not sys.executable
    ):
        return 0
    if settings.workers is not None:
        return settings.workers
    found = cores()
    return 0 if found < 2 else 1 if found < MOST else min(MOST, found // 2)


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables of a worker: the same cache, and no GPU."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("NXCORE_LO")}
    # Threads that wait for others would hold processors which the program wants.
    found = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"} | found
    found |= {
        VISIBLE: "",
        "NXCORE_WORKERS": "0",
        "NXCORE_CACHE": str(settings.cache),
    }
    if settings.backends is not None:
        found["NXCORE_BACKENDS"] = ",".join(settings.backends)
    return found | {"NXCORE_DISABLE": ",".join(settings.disable)}


def of(settings: Settings, module: str) -> Workers | None:
    """Return the workers of a session, which run ``module`` and look for modules where the program does.

    None if it must have none.
    """
    most = allowed(settings)
    return Workers(command(module), environment(settings), most) if most else None


def measuring(settings: Settings, module: str) -> Workers | None:
    """Return two workers that have the program's GPUs, and workers of their own; None where cores are few."""
    most = allowed(settings)
    if most <= 1 or not settings.measure:
        return None
    visible = {name: os.environ[name] for name in (VISIBLE,) if name in os.environ}
    given = {name: value for name, value in environment(settings).items() if name != VISIBLE}
    own = given | visible | {"NXCORE_WORKERS": str(most)}
    return Workers(command(module), own, 2, full=0.0, low=LOWEST)
