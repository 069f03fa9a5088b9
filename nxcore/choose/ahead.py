"""Compiling ahead: workers compile the kernels of problems before a call or a race waits for them."""

from __future__ import annotations

import functools
import logging
import queue
from collections.abc import Callable, Collection, Hashable, Iterable

import torch

from nxcore.choose.contenders import Candidacy, Contender
from nxcore.choose.process import Answer
from nxcore.choose.tuner import Tuner
from nxcore.choose.workers import Workers
from nxcore.errors import FOREIGN
from nxcore.observe.bar import Advance, told
from nxcore.spec.compiling import UncompiledError, on_disk_alone
from nxcore.spec.composed import taken_apart
from nxcore.spec.device import current
from nxcore.spec.kernel import Backend, Kernel
from nxcore.spec.problem import Problem
from nxcore.trust.gate import brief

_log = logging.getLogger(__name__)

Name = tuple[str, Hashable]
"""A kernel's label, and the problem, or the operator, dtype and name of a sample."""
Tasks = dict[Name, tuple[Problem, str, str]]
"""Tasks by name: problem, kernel's label, and sample."""


def pays(tuner: Tuner) -> bool:
    """Return whether workers compile faster than this process does, even if it waits for them.

    The start of one takes two seconds.
    """
    return tuner.workers is not None and tuner.workers.most > 1


def uncompiled(tuner: Tuner, problem: Problem) -> list[str]:
    """Return the labels of kernels that must be compiled or verified before a call of ``problem``."""
    others = (c for c in tuner.candidacies(problem) if c.backend.name != "torch")
    return [c.label for c in others if c.able and not on_disk(tuner, c, problem)]


def on_disk(tuner: Tuner, of: Candidacy, problem: Problem) -> bool:
    """Return whether a kernel is verified, and nothing must be compiled for ``problem``."""
    if not tuner.gate.knows(of.backend, of.kernel, problem):
        return False
    if problem.device.type == "cuda" and not of.kernel.announces:
        return False  # only its toolkit knows
    try:
        with on_disk_alone():
            with_code(tuner.ready(of, problem), problem)
    except UncompiledError:
        return False
    return True


def from_disk(tuner: Tuner, of: Candidacy, problem: Problem) -> Contender | None:
    """Verify and plan a kernel if nothing must be compiled for that, which takes milliseconds; else None.

    A kernel that doesn't announce what it compiles needs no compiler only if it was verified before.
    """
    if not of.kernel.announces and not on_disk(tuner, of, problem):
        return None
    try:
        with on_disk_alone():
            return with_code(tuner.ready(of, problem), problem)
    except UncompiledError:
        return None


def with_code(entry: Contender, problem: Problem) -> Contender:
    """Return a kernel whose code for ``problem`` is on disk, as far as its backend can find that.

    Some toolkits compile at a launch, so that planning a kernel finds nothing missing.

    Raises
    ------
    UncompiledError
        If the code isn't on disk, or its backend fails to find out.
    """
    if entry.call is None:
        return entry
    try:
        with on_disk_alone():
            compiled_ahead(entry.backend, entry.kernel, problem)
    except UncompiledError:
        raise
    except FOREIGN as error:
        raise UncompiledError(brief(error)) from error
    return entry


def compiled_ahead(backend: Backend, kernel: Kernel, problem: Problem) -> None:
    """Compile to disk what a kernel needs on a GPU of this machine; see ``Backend.ahead``."""
    if problem.device.type == "cuda" and backend.ahead:
        major, minor = torch.cuda.get_device_capability(problem.device)
        with current(problem.device):
            for half, part in taken_apart(kernel, problem):
                backend.ahead(half, part, (major, minor))


def compilable(backend: Backend, problem: Problem) -> bool:
    """Return whether workers can compile a backend's kernels: those of a GPU need ``Backend.ahead``."""
    return problem.device.type == "cpu" or backend.ahead is not None


def steps(tuner: Tuner, backend: Backend, kernel: Kernel, problem: Problem) -> list[str]:
    """Return what workers compile for a kernel: samples by name, and the problem, which has none.

    A worker verifies a kernel of the CPU itself. One for a GPU is verified by the program, on samples that
    workers compile, each on its own; none can be if its backend needs the device.
    """
    if problem.device.type == "cpu":
        return [""]
    return [*tuner.gate.samples(backend, kernel, problem), ""] if compilable(backend, problem) else []


def announce(op: str, tasks: int, most: int) -> None:
    """Say that workers compile in the background: in the log each time, in a terminal once a process."""
    where = f"in the background by up to {most} {'process' if most == 1 else 'processes'}"
    _log.info("compile: %s: %d kernels and samples, %s", op, tasks, where)
    _told_once(f"nxcore: kernels are compiled {where}; torch serves until then, and the next run finds them")


@functools.cache
def _told_once(line: str) -> None:
    told(line)


def compiled(
    tuner: Tuner,
    problems: Iterable[Problem],
    advance: Advance = lambda *_: None,
    *,
    labels: Callable[[Problem], Collection[str]] | None = None,
    several: bool = False,
    missing: Callable[[Problem], Collection[str]] | None = None,
) -> None:
    """Have workers compile kernels of problems, and verify those of the CPU; wait for them.

    A call does later what they can't do. With ``several`` nothing is done for a single task.

    Parameters
    ----------
    tuner : Tuner
    problems : iterable of Problem
    advance : callable
        Called after each task.
    labels : callable, optional
        Returns the kernels of a problem; all by default.
    several : bool
    missing : callable, optional
        Returns the kernels of a problem that must be compiled, if that is known; see ``uncompiled``.
    """
    if (workers := tuner.workers) is None:
        return
    wanted: Tasks = {}
    for problem in dict.fromkeys(problems):
        needed = uncompiled(tuner, problem) if missing is None else missing(problem)
        chosen = needed if labels is None else labels(problem)
        lacking = without_code(tuner, problem, [label for label in needed if label in chosen])
        for name, task in tasks(tuner, problem, lacking).items():
            wanted.setdefault(name, task)
    if len(wanted) <= several:
        return
    orders = Orders(workers)
    orders.place(wanted)
    while orders.open:
        advance(orders.take() or "", orders.done, orders.placed)
    tuner.gate.quarantine.read()  # a kernel that ended a worker would end the program


def without_code(tuner: Tuner, problem: Problem, labels: Collection[str]) -> list[str]:
    """Return the kernels that a compiler is needed for.

    On a GPU the program verifies kernels itself: in milliseconds, where a wheel has their images. On a
    CPU workers verify them.
    """
    if problem.device.type == "cpu":
        return list(labels)
    known = {c.label: c for c in tuner.candidacies(problem)}
    return [label for label in labels if from_disk(tuner, known[label], problem) is None]


def _by_label(tuner: Tuner, op: str) -> dict[str, tuple[Backend, Kernel]]:
    return {backend.label(kernel): (backend, kernel) for backend, kernel in tuner.taking_part(op)}


def tasks(tuner: Tuner, problem: Problem, labels: Iterable[str]) -> Tasks:
    """Return what workers are to compile of kernels of a problem; see ``uncompiled``."""
    owned = _by_label(tuner, problem.op)
    found: Tasks = {}
    for label in labels:
        for step in steps(tuner, *owned[label], problem):
            of = (problem.op, problem.dtype, step) if step else problem  # problems share samples
            found[label, of] = problem, label, step
    return found


class Orders:
    """Tasks for workers, each of them once, and which are still open.

    Parameters
    ----------
    workers : Workers

    Attributes
    ----------
    open : set
        The names of tasks without an answer.
    placed, done : int
        The number of tasks, and of those that were answered.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers, self._answers = workers, queue.SimpleQueue[tuple[Name, str, Answer]]()
        self._placed: set[Name] = set()
        self.open: set[Name] = set()
        self.done = 0

    @property
    def placed(self) -> int:
        """The number of tasks so far."""
        return len(self._placed)

    def place(self, wanted: Tasks) -> None:
        """Have workers do those of the tasks that they weren't given yet."""
        for name, (problem, label, step) in wanted.items():
            if name in self._placed:
                continue
            self._placed.add(name)
            self.open.add(name)
            answered = functools.partial(self._put, name, f"{label} of {problem.op}")
            self._workers.ask(problem, label, answered, sample=step)

    def take(self, timeout: float | None = None) -> str | None:
        """Wait for an answer; return what was compiled, None if there is no answer in so many seconds."""
        try:
            name, what, answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            return None
        self.open.discard(name)
        self.done += 1
        if answer.why:
            _log.warning("compile: %s: %s", what, answer.why)
        return what

    def _put(self, name: Name, what: str, answer: Answer) -> None:
        self._answers.put((name, what, answer))
