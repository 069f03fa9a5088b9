"""Compiling ahead: the kernels of many problems are compiled and verified by workers, before any call."""

from __future__ import annotations

import functools
import logging
import queue
from collections.abc import Callable, Iterable

from nxcore.choose.tuner import Tuner
from nxcore.choose.workers import Answer
from nxcore.spec.compiling import UncompiledError, on_disk_alone
from nxcore.spec.problem import Problem

_log = logging.getLogger(__name__)

SEVERAL = 2
"""The workers from which on waiting for them is shorter than compiling here: a start takes two seconds."""

Advance = Callable[[str, int, int], None]
"""Called with what is done, how many are done, and how many there are."""


def pays(tuner: Tuner) -> bool:
    """Return whether workers compile faster than this process does, even if it waits for them."""
    return tuner.workers is not None and tuner.workers.most >= SEVERAL


def uncompiled(tuner: Tuner, problem: Problem) -> list[str]:
    """Return the labels of kernels that must be compiled or verified before a call of ``problem``."""
    found = []
    for backend, kernel in tuner.taking_part(problem.op):
        if backend.name == "torch" or tuner.refusal(backend, kernel, problem):
            continue
        if tuner.registry.probe(backend, kernel).simulated:
            continue
        try:
            if not tuner.gate.knows(backend, kernel, problem):
                raise UncompiledError("it isn't verified")
            with on_disk_alone():
                tuner.enter(backend, kernel, problem, (), first=False)
        except UncompiledError:
            found.append(backend.label(kernel))
    return found


def compiled(tuner: Tuner, problems: Iterable[Problem], advance: Advance = lambda *_: None) -> None:
    """Have workers compile and verify the kernels of problems for the CPU; wait for them.

    What they can't do, a call does later.
    """
    if (workers := tuner.workers) is None:
        return
    wanted = [
        (problem, label)
        for problem in dict.fromkeys(problems)
        if problem.device.type == "cpu"
        for label in uncompiled(tuner, problem)
    ]
    answers = queue.SimpleQueue[tuple[str, Answer]]()

    def put(what: str, answer: Answer) -> None:
        answers.put((what, answer))

    for problem, label in wanted:
        workers.ask(problem, label, functools.partial(put, f"{label} of {problem.op}"))
    for done in range(len(wanted)):
        what, answer = answers.get()
        advance(what, done + 1, len(wanted))
        if answer.why:
            _log.warning("compile: %s: %s", what, answer.why)
    tuner.gate.quarantine.read()  # a kernel that ended a worker would end the program
