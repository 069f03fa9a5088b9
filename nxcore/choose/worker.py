"""A worker: compiles and verifies kernels for the process that started it; see ``nxcore.choose.workers``.

``python -m`` this module reads one task a line from its standard input, and ends when that does. One that has
a GPU measures problems; see ``nxcore.choose.survey``.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nxcore.choose import workers
from nxcore.choose.families import Families
from nxcore.choose.prune import Pruner
from nxcore.choose.recall import Recall
from nxcore.choose.survey import ROOM, adopt
from nxcore.choose.tuner import Tuner
from nxcore.choose.turns import Turn
from nxcore.interop import native
from nxcore.measure import race
from nxcore.registry import made
from nxcore.registry.discovery import installed
from nxcore.settings import Settings
from nxcore.spec.busy import busy
from nxcore.spec.composed import taken_apart
from nxcore.spec.device import current, pretend
from nxcore.spec.kernel import Backend, Kernel
from nxcore.spec.problem import Problem
from nxcore.spec.tally import seconds, tally
from nxcore.store import transfer
from nxcore.store.encoding import encoded
from nxcore.store.files import Store
from nxcore.store.problems import arguments, described, moved
from nxcore.store.wisdom import Wisdom
from nxcore.trust.gate import Gate, brief


class Niceness:
    """The niceness of this process, relative to the program's; it only grows."""

    def __init__(self) -> None:
        self._now = 0

    def raise_to(self, wanted: int) -> None:
        """Have at least this niceness from now on."""
        if wanted > self._now:
            os.nice(wanted - self._now)
            self._now = wanted


def done(tuner: Tuner, task: dict[str, Any]) -> str:
    """Compile and verify a kernel, and keep that on disk; return why it can't be done here, empty if it can.

    A refusal is a result too: the program finds it as the worker did.
    """
    torch.set_num_threads(task["threads"])  # code for one thread is another than for several
    made.restore(tuner.registry, task.get("expression"))
    problem = described(tuner.registry.spec(task["op"]), task["problem"])
    owned = [(b, k) for b, k in tuner.taking_part(problem.op) if b.label(k) == task["kernel"]]
    if not owned:
        return f"{task['kernel']} isn't installed where the worker looks for it"
    if "device" in task:
        _for_absent(*owned[0], _sampled(problem, task["sample"]), task["device"])
    else:
        tuner.enter(*owned[0], problem, (), first=False)
    return ""


class Surveyor:
    """Measures problems, and keeps what it finds on disk.

    Parameters
    ----------
    tuner : Tuner
        Verifies and races kernels.

    Attributes
    ----------
    busy : float, optional
        The share of the time in which the device was at work before the first problem.
    """

    def __init__(self, tuner: Tuner) -> None:
        self.tuner, self.busy, self._looked = tuner, None, False
        # It reads the package's record at its first task, which tells where that is.
        self.pruner = Pruner(Families(Recall(tuner, Wisdom(tuner.gate.store, transfer.shipped))))

    def measured(self, task: dict[str, Any]) -> str:
        """Race the kernels of a problem as its call would under ``measure``.

        Return why torch serves it if there was no race; empty if what was found is on disk.
        """
        transfer.SHIPPED = Path(task["shipped"])
        adopt(task["modes"])
        made.restore(self.tuner.registry, task.get("expression"))
        problem = described(self.tuner.registry.spec(task["op"]), task["problem"])
        if problem.device.type == "cuda":
            problem = moved(problem, torch.device("cuda", task["index"]))
            self._look(task["index"])
        with current(problem.device):
            choice = self.pruner.measured(problem, arguments(problem))
        free_much(problem.device)
        raced = self.pruner.families.recall.wisdom.read(problem) is not None
        return "" if raced else choice.decision.reason

    def prepare(self, index: int) -> None:
        """Have torch's libraries load what they need on a device, before there is a problem."""
        if torch.cuda.is_available():
            self._look(index)
            x = torch.ones(1, 1, 8, 8, device=torch.device("cuda", index), requires_grad=True)
            torch.nn.functional.conv2d(x, x.detach()[..., :3, :3], padding=1).sum().backward()
            torch.cuda.synchronize(index)
            torch.cuda.empty_cache()

    busy: float | None

    def _look(self, index: int) -> None:
        """Find how busy the device is, once, before this process has any work for it."""
        if not self._looked:
            self.busy, self._looked = busy(index), True


def free_much(device: torch.device) -> None:
    """Give memory of a device back to the program, if it is more than a part of what it leaves.

    To free and allocate memory for each problem waits for the device, which the program uses.
    """
    if device.type == "cuda" and torch.cuda.memory_reserved(device) > ROOM // 16:
        torch.cuda.empty_cache()


def _sampled(problem: Problem, name: str) -> Problem:
    """Return the problem of a sample on the same device, ``problem`` itself without a name."""
    if not name:
        return problem
    spec = problem.spec
    sample = next(s for s in spec.samples if s.name == name)
    return moved(Problem.of(spec, sample.build(spec, "cpu", problem.dtype)), problem.device)


def _for_absent(backend: Backend, kernel: Kernel, problem: Problem, facts: dict[str, Any]) -> None:
    """Compile a kernel for a GPU that this process doesn't have; of a composed one each part."""
    if backend.ahead:
        pretend(facts)
        for half, part in taken_apart(kernel, problem):
            backend.ahead(half, part, (facts["major"], facts["minor"]))


def _spent_s() -> float:
    """Return the processor time of this process and of the compilers that it has waited for."""
    return sum(os.times()[:4])


def _answered(task: dict[str, Any], tuner: Tuner, surveyor: Surveyor, turn: Turn) -> dict[str, Any]:
    """Do a task; return how it ended and what it took, for the program."""
    surveys = "modes" in task or "prepare" in task
    if surveys:
        race.ALONE = turn.alone
    clock: Callable[[], float] = time.monotonic if surveys else _spent_s
    began, compiled, raced, waited = clock(), tally().compilations, seconds()["timing"], turn.waited
    why = stays = ""
    try:
        if "prepare" in task:
            surveyor.prepare(task["prepare"])
        elif surveys:
            stays = surveyor.measured(task)
        else:
            why = done(tuner, task)
    except Exception as error:  # noqa: BLE001  the next task may be done
        why = brief(error)
    waited = turn.waited - waited
    return {
        "why": why,
        "stays": stays,
        "busy": surveyor.busy,
        "seconds": clock() - began - waited,
        "waited": waited,
        "compilations": tally().compilations - compiled,
        "raced": seconds()["timing"] - raced,
    }


def main() -> int:
    """Do tasks until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the program that is interrupted
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # what toolkits print is no answer
        niceness = Niceness()
        niceness.raise_to(int(sys.argv[1]))
        settings = Settings.from_environment()
        if settings.native:
            native.found()  # verdicts of one path of calls don't count on the other
        registry = installed(settings)
        gate = Gate(registry, Store(settings.cache))
        gate.quarantine.work_for(os.getppid())
        tuner = Tuner(registry, gate, workers=workers.of(settings, "nxcore.choose.worker"))
        tasks, surveyor = queue.SimpleQueue[Any](), Surveyor(tuner)
        turn = Turn(lambda word: answers.write(encoded(word) + "\n"))

        def read() -> None:
            for line in sys.stdin:
                if isinstance(said := json.loads(line), str):
                    turn.heard(said)
                else:
                    tasks.put(said)
            gate.quarantine.withdraw(os.getpid())  # to end in the middle of a step is no kernel's fault
            os._exit(0)

        threading.Thread(target=read, daemon=True).start()
        while True:
            task = tasks.get()
            niceness.raise_to(task["nice"])
            answers.write(encoded(_answered(task, tuner, surveyor, turn)) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
