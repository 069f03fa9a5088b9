"""Process: one worker, which reads a task a line from its standard input and answers with a line."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from nxcore.spec import tally
from nxcore.store.encoding import encoded

Heard = Callable[[str, Callable[[str], object]], object]
"""A function that takes a worker's word, and a function that sends it an answer."""


@dataclass(frozen=True)
class Answer:
    """The result of a task.

    Attributes
    ----------
    why : str
        Why there is no result on disk; empty if there is.
    seconds : float
        The processor time that it took; of a measurement the seconds.
    compilations : int
        How much was compiled.
    stays : str
        Why torch serves a problem that was to be measured: no kernel could be raced. Empty otherwise.
    raced : float
        Those of the seconds that a race took.
    waited : float
        Seconds that it has waited for a turn on the device besides.
    busy : float, optional
        The share of the time in which the device was at work before; None where that isn't known.
    """

    why: str = ""
    seconds: float = 0.0
    compilations: int = 0
    stays: str = ""
    raced: float = 0.0
    busy: float | None = None
    waited: float = 0.0


@dataclass(frozen=True)
class Task:
    """Work for a worker: to compile and verify a kernel for a problem, or to measure the problem.

    Attributes
    ----------
    request : Mapping
        The line that the worker reads.
    answered : callable
        Called with the answer, in the thread of the workers.
    heat : float
        The hottest is first.
    """

    request: Mapping[str, Any]
    answered: Callable[[Answer], None]
    heat: float = 0.0


class Process:
    """One process.

    Attributes
    ----------
    ops : set of str
        The operators of its tasks, whose kernels it has verified, mostly.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  it is closed with the process
        try:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(environment),
            )
        except OSError:
            self._errors.close()
            raise
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("both are pipes")
        self._tasks, self.answers = self._process.stdin, self._process.stdout
        self.task: Task | None = None
        self.ops = set[str]()
        self.over, self._text, self._since = False, b"", 0.0

    def give(self, task: Task) -> None:
        """Let it do a task."""
        self.task, self._since = task, time.monotonic()
        self.ops.add(task.request.get("op", ""))
        self.say(task.request)

    def say(self, what: Mapping[str, Any] | str) -> None:
        """Send it a task, or a word."""
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has ended, which its answers will tell
            self._tasks.write(encoded(what).encode() + b"\n")

    def read(self, heard: Heard) -> None:
        """Read what it answered or said, or that it has ended."""
        found = os.read(self.answers.fileno(), 1 << 16)
        *lines, self._text = (self._text + found).split(b"\n")
        for said in map(json.loads, lines):
            if isinstance(said, str):
                heard(said, self.say)
                continue
            answer = Answer(**said)
            tally.compiled(answer.compilations)
            self._tell(answer)
        if not found:
            status = self._process.wait()
            self._fail(f"the worker that compiled it ended with status {status}{self._last_words()}")

    def check(self, patience: float) -> None:
        """End it if it has taken too long."""
        if self.task and not self.over and time.monotonic() - self._since > patience:
            self._process.kill()
            self._process.wait()
            self._fail(f"the worker that compiled it gave no answer for {patience:.0f} s")

    def leave(self) -> None:
        """Have it end: at once, or after the step that it is in."""
        self._tasks.close()

    def end(self, by: float) -> None:
        """End it, and wait for that until then."""
        self.leave()
        try:
            self._process.wait(max(0.0, by - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close()

    def disown(self) -> None:
        """Close a forked child's ends of its pipes."""
        self._process.returncode = 0  # it is no child of this process
        self._tasks.close()
        self._close()

    def _fail(self, why: str) -> None:
        self.over = True
        self._tasks.close()
        self._close()
        self._tell(Answer(why))

    def _tell(self, answer: Answer) -> None:
        task, self.task = self.task, None
        if task:
            task.answered(answer)

    def _last_words(self) -> str:
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f": {last}" if last else ""

    def _close(self) -> None:
        self.answers.close()
        self._errors.close()
