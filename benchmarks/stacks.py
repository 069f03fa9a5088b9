"""Stacks: what a program does, by the stacks of its threads, looked at a hundred times a second.

A look counts for the phases that are on the stack, from the outermost to the innermost, such as
``gate > compile, triton``. Where several threads are at work, that counts which isn't the main one: backward
passes run in a thread of torch's.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import FrameType
from typing import Any, Self

EVERY_S = 0.01
"""Seconds between two looks."""

PHASES = (
    ("nxcore/choose/pairs.py", "measure", "pair"),
    ("nxcore/measure/lane.py", "warm_up", "warm up"),
    ("nxcore/measure/lane.py", "require_current_stream", "warm up"),
    ("nxcore/measure/lane.py", "cuda_block", "blocks"),
    ("nxcore/measure/lane.py", "cpu_block", "blocks"),
    ("nxcore/measure/race.py", "race", "race"),
    ("nxcore/choose/ahead.py", "compiled", "wait for workers"),
    ("nxcore/choose/prune.py", "shortlist", "prune"),
    ("nxcore/choose/tuner.py", "enter", "enter"),
    ("nxcore/choose/recall.py", "", "record"),
    ("nxcore/trust/gate.py", "built", "truth"),
    ("nxcore/trust/gate.py", "_run", "gate"),
    ("nxcore/choose/learn/watch.py", "inspected", "audit"),
    ("nxcore/choose/learn/watch.py", "_copies", "copies"),
    ("nxcore/choose/learn/watch.py", "_reference", "reference"),
    ("nxcore/trust/distance.py", "strays", "distance"),
    ("nxcore_cuda/machine/load.py", "kernel", "load"),
    ("nxcore/trust/identity.py", "", "identity"),
    ("nxcore/trust/closure.py", "", "identity"),
    ("nxcore/store/", "", "store"),
    ("nxcore/graphs/capture.py", "_tried", "trial"),
    ("nxcore/graphs/capture.py", "_record", "recording"),
    ("nxcore/graphs/outcome.py", "check", "check"),
    ("nxcore/graphs/capture.py", "_compared", "comparison"),
    ("nxcore/graphs/capture.py", "_replayed", "replay"),
    ("nxcore/graphs/capture.py", "__init__", "capture"),
    ("nxcore/graphs/snapshot.py", "__init__", "state"),
    ("nxcore/graphs/reads.py", "", "state"),
    ("nxcore/nn/steps.py", "_step", "watch"),
    ("nxcore/nas/patch.py", "patch", "patch"),
    ("nxcore_cuda/machine/compile.py", "", "compile, cuda"),
    ("nxcore_cupy/compile.py", "", "compile, cupy"),
    ("triton/compiler/", "", "compile, triton"),
    ("numba/core/", "", "compile, numba"),
    ("numba_cuda/numba/", "", "compile, numba-cuda"),
    ("importlib._bootstrap", "_find_and_load", "import"),
)
"""Part of a file's path, a function or none, and the phase."""


class Stacks:
    """Counts phases, operators and backends on the stacks of this process's threads.

    Attributes
    ----------
    phases, operators, backends : Counter
        Looks by phases; by the operator and the backend that is looked at in nxcore's choice.
    lines : Counter
        Looks at lines of captures, each the innermost one of the stack.
    functions : Counter
        Looks at functions of nxcore in the thread at work, each the innermost one of the stack.
    """

    def __init__(self) -> None:
        self.phases, self.operators, self.backends = Counter[str](), Counter[str](), Counter[str]()
        self.lines, self.functions = Counter[str](), Counter[str]()
        self._ends = threading.Event()
        self._main = threading.main_thread().ident
        self._thread = threading.Thread(target=self._watch, daemon=True, name="stacks")
        self._looks, self._began = 0, time.perf_counter()

    def __enter__(self) -> Self:
        """Begin to look."""
        self._began = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look no more."""
        self._ends.set()
        self._thread.join()

    def table(self, most: int = 40) -> dict[str, dict[str, float]]:
        """Return the seconds by phases, by operators and by backends, the longest first."""
        each_s = (time.perf_counter() - self._began) / max(self._looks, 1)
        named = {
            "phases": self.phases,
            "operators": self.operators,
            "backends": self.backends,
            "lines": self.lines,
            "functions": self.functions,
        }
        return {
            name: {what: round(n * each_s, 2) for what, n in counts.most_common(most)}
            for name, counts in named.items()
        }

    def _watch(self) -> None:
        own = threading.get_ident()
        while not self._ends.wait(EVERY_S):
            frames = sys._current_frames()  # noqa: SLF001  there is no other way to see all stacks
            busy = [_seen(frame) for ident, frame in frames.items() if ident not in (own, self._main)]
            main = _seen(frames.get(self._main or 0))
            at_work = (found for found in busy if found[1] or "audit" in found[0])
            phases, operator, backend, _, function = next(at_work, main)
            if "capture" in main[0]:
                phases = phases if phases.startswith("capture") else f"capture > backward > {phases}"
                others = (frame for ident, frame in frames.items() if ident not in (own, self._main))
                self.lines[next((_line(frame) for frame in others if _differentiates(frame)), main[3])] += 1
            self._looks += 1
            self.functions[function] += 1
            self.phases[phases or "else"] += 1
            self.operators[operator or "none"] += 1
            self.backends[backend or "none"] += 1


def _seen(frame: FrameType | None) -> tuple[str, str, str, str, str]:
    """Return the phases on a stack, operator and backend of its choice, the innermost line and function."""
    phases: list[str] = []
    innermost = _function(frame)
    line = "" if frame is None else _line(frame)
    operator = backend = ""
    while frame is not None:
        code = frame.f_code
        path, function = code.co_filename, code.co_name
        for part, name, phase in PHASES:
            if part in path and name in ("", function):
                if not phases or phases[-1] != phase:
                    phases.append(phase)
                break
        if path.endswith("nxcore/choose/tuner.py") and function == "enter" and not backend:
            backend = _named(frame.f_locals.get("backend"), "name")
        if path.endswith(("nxcore/choose/chooser.py", "nxcore/choose/pairs.py")) and not operator:
            operator = _named(frame.f_locals.get("problem"), "op")
            if pair := frame.f_locals.get("pair"):
                operator = f"{pair.problem.op} with gradient"
        frame = frame.f_back
    phases.reverse()
    if "import" in phases:
        del phases[phases.index("import") + 1 :]  # a module may import and compile anything
    return " > ".join(phases), operator, backend, line, innermost


def _line(frame: FrameType) -> str:
    """Return the innermost line of a stack, and the innermost of nxcore."""
    own, inner = _place(frame), frame.f_back
    if "nxcore" in own:
        return own
    while inner is not None and "/nxcore" not in inner.f_code.co_filename:
        inner = inner.f_back
    return own if inner is None else f"{_place(inner)} > {own}"


def _function(frame: FrameType | None) -> str:
    """Return the innermost function of nxcore on a stack, and the operation of torch that it waits for."""
    own = "none" if frame is None else frame.f_code.co_name
    while frame is not None and "/nxcore" not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return own
    name, inner = "/".join(frame.f_code.co_filename.split("/")[-2:]), frame.f_code.co_name
    return f"{name} {inner}" + f" > {own}" * (own != inner)


def _place(frame: FrameType) -> str:
    """Return the end of a file's path, the line, and the function."""
    name = "/".join(frame.f_code.co_filename.split("/")[-3:])
    return f"{name}:{frame.f_lineno} {frame.f_code.co_name}"


def _differentiates(frame: FrameType | None) -> bool:
    """Return whether a stack is that of a backward pass."""
    while frame is not None and not frame.f_code.co_filename.endswith("torch/autograd/function.py"):
        frame = frame.f_back
    return frame is not None


def _named(value: Any, attribute: str) -> str:
    return str(getattr(value, attribute, ""))
