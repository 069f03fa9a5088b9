"""The study as a record: compile times with fresh and with warm caches, then a race, each in its process."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from nxcore import session as sessions
from nxcore.bench.head import clocks, versions
from nxcore.bench.study import blocks
from nxcore.bench.study.entrants import BASELINE, Entrant, entrants
from nxcore.bench.study.shapes import BATCH, CHANNELS, FILTER_COUNT, Shape, shapes
from nxcore.spec.device import describe
from nxcore.store.encoding import encoded

BUDGETS = {False: 300.0, True: 60.0}
"""Seconds of a whole run and of a fast one."""

GRACE_S = 5.0
"""Seconds of the budget's end in which no shape begins, so that one that was begun may end."""

PAGES_S = 3.0
"""Of these, seconds that are kept for the command's own start and its pages."""

RACE_S = {False: 2.5, True: 1.5}
"""Seconds of the race that are kept for each shape."""

START_S = {False: 12.0, True: 6.0}
"""Seconds that are kept for the start of the race's process."""

COMPILING = {False: 0.65, True: 0.75}
"""The most of the budget that first calls may take: the race is what matters most."""

SPARE_CORES = {False: 8, True: 2}
"""With as many, toolkits compile side by side: each has cores of its own, in a fast run a core."""

ORDER = ("nxcore", "inductor", "jax", "torch")
"""The toolkits as they compile: where the budget is too small, the last ones go without.

Of those that compile side by side the one that takes longest begins first.
"""

STATES = ("cold", "warm")
"""Of the disk caches at a first call."""

WORKER = (sys.executable, "-m", "nxcore.bench.study.worker")

METHOD = (
    "Each toolkit compiles in two processes of its own, the second with the disk cache of the first. Then "
    "one process times all entrants in interleaved blocks, in random order, on inputs that stay in cache."
)

Advance = Callable[[str, int, int], None]
Line = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """The shapes and entrants of a run, and its limits.

    Attributes
    ----------
    sides, filters : tuple of int
        Only these; all if empty.
    labels : tuple of str
        Only these entrants and the baseline; all if empty.
    fast : bool
        Fewer shapes and blocks; toolkits compile side by side where two cores are.
    budget_s : float, optional
        Seconds of the whole run, by default those of ``BUDGETS``.
    first_calls : bool
        Whether first calls are timed, which takes most of a run. The race's own process compiles if not.
    """

    sides: tuple[int, ...] = ()
    filters: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    fast: bool = False
    budget_s: float | None = None
    first_calls: bool = True


def run(device: torch.device, wanted: Wanted, advance: Advance = lambda *_: None) -> Line:
    """Return the record of a run.

    Raises
    ------
    InvalidInputError
        If a size, a filter or an entrant is unknown.
    """
    which, measured = entrants(wanted.labels), shapes(wanted.sides, wanted.filters, few=wanted.fast)
    budget = BUDGETS[wanted.fast] if wanted.budget_s is None else wanted.budget_s
    with tempfile.TemporaryDirectory(prefix="nxcore-study-") as folder:
        made = _Run(device, which, measured, wanted.fast, budget, Path(folder), advance)
        return made.record(first_calls=wanted.first_calls)


class _Run:
    """One run: its processes, its deadline and its progress."""

    def __init__(
        self,
        device: torch.device,
        which: Sequence[Entrant],
        measured: Sequence[Shape],
        fast: bool,
        budget_s: float,
        folder: Path,
        advance: Advance,
    ) -> None:
        self.device, self.which, self.shapes, self.fast = device, which, measured, fast
        self.folder, self.advance, self.budget_s = folder, advance, budget_s
        self.began = time.time()
        self.done, self.steps = 0, (2 * len(which) + 1) * len(measured)
        self.lock = threading.Lock()

    def record(self, *, first_calls: bool) -> Line:
        used = {e.toolkit for e in self.which}
        toolkits = [t for t in ORDER if t in used]
        if not first_calls:
            unasked: dict[str, list[Line]] = {
                f"{toolkit} {state}": [] for toolkit in toolkits for state in STATES
            }
            record = self._joined(unasked, list(self._raced()), beside=False)
            return record | {"notes": ["first calls were not requested", *record["notes"]]}
        left = self.budget_s - GRACE_S - START_S[self.fast] - RACE_S[self.fast] * len(self.shapes)
        left = min(left, COMPILING[self.fast] * self.budget_s)
        cores = os.cpu_count() or 1
        beside = cores >= SPARE_CORES[self.fast]
        found: dict[str, list[Line]] = {}
        # nxcore measures at a first call, so in a whole run nothing is beside it. In a fast one that would
        # leave no time for the race; one process beside it disturbs it less than candidates differ.
        alone = [t for t in toolkits if not beside or (t == "nxcore" and not self.fast)]
        for toolkit in alone:
            found.update(self._compiled(toolkit, left))
        with ThreadPoolExecutor(max(1, min(len(toolkits) - len(alone), cores))) as pool:
            for lines in pool.map(lambda t: self._compiled(t, left), [t for t in toolkits if t not in alone]):
                found.update(lines)
        race = list(self._raced())
        return self._joined(found, race, beside)

    def _compiled(self, toolkit: str, left: float) -> dict[str, list[Line]]:
        """Return the lines of a toolkit's two processes: with fresh caches, then with those of the first."""
        job: Line = {"what": "first", "entrants": [e.label for e in self.which if e.toolkit == toolkit]}
        job["shapes"] = [shape.key for shape in self.shapes]
        found = {}
        for state in STATES:
            name, seconds = f"{toolkit} {state}", self.began + left - time.time()
            found[name] = list(self._lines(name, job, seconds))
        return found

    def _raced(self) -> Iterator[Line]:
        effort = blocks.FAST if self.fast else blocks.FULL
        job = {
            "what": "race",
            "shapes": [shape.key for shape in self.shapes],
            "entrants": [e.label for e in self.which],
            "effort": [effort.blocks, effort.block_s],
            "until": self.began + self.budget_s - GRACE_S - RACE_S[self.fast],
        }
        return self._lines("race", job, self.began + self.budget_s - PAGES_S - time.time())

    def _lines(self, title: str, job: Line, seconds: float) -> Iterator[Line]:
        """Yield the lines of a process; its last one says what ended it, unless it came to its end."""
        if seconds <= 0:
            yield {"ended": f"not measured: the budget of {self.budget_s:g} s was spent"}
            return
        whole = job | {
            "device": str(self.device),
            "began": time.time(),
        }
        command = [*WORKER, encoded(whole)]
        over = threading.Event()
        with (
            tempfile.TemporaryFile(dir=self.folder) as errors,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=self._environment(), encoding="utf-8"
            ) as process,
        ):

            def stop() -> None:
                over.set()
                process.kill()

            timer = threading.Timer(seconds, stop)
            timer.start()
            try:
                for text in process.stdout or ():
                    with contextlib.suppress(json.JSONDecodeError):  # a line that the end cut off
                        line = json.loads(text)
                        self._tell(title, line)
                        yield line
            except BaseException:
                process.kill()
                raise
            finally:
                timer.cancel()
            if process.wait() == 0:
                return
            if over.is_set():
                yield {"ended": f"not measured: the budget of {self.budget_s:g} s was spent"}
                return
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()[-1:]
            yield {"ended": f"its process ended with status {process.returncode}: {' '.join(said)}"}

    def _tell(self, title: str, line: Line) -> None:
        with self.lock:
            self.done += "first_s" in line or "cell" in line
            self.advance(title, self.done, self.steps)

    def _environment(self) -> dict[str, str]:
        """Return the variables of a process: caches of this run alone, and no memory taken in advance."""
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": "inductor",
            "TRITON_CACHE_DIR": "triton",
            "NXCORE_CACHE": "nxcore",
            "JAX_COMPILATION_CACHE_DIR": "jax",
        }
        return {
            **os.environ,
            **{name: str(self.folder / folder) for name, folder in caches.items()},
            "NXCORE_POLICY": "measure",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }

    def _joined(self, found: dict[str, list[Line]], race: list[Line], beside: bool) -> Line:
        """Return the record: the cells of the race, with the times of first calls in their rows."""
        absent = {line["label"]: line["absent"] for line in race if "absent" in line}
        ended = [line["ended"] for line in race if "ended" in line]
        cells = [line["cell"] for line in race if "cell" in line]
        for state in STATES:
            for e in self.which:
                of_toolkit = found[f"{e.toolkit} {state}"]
                known = {
                    tuple(line["shape"]): line["first_s"]
                    for line in of_toolkit
                    if line.get("label") == e.label and "first_s" in line
                }
                for cell in cells:
                    row = next((r for r in cell["rows"] if r["label"] == e.label), None)
                    if row is not None:
                        row[f"{state}_s"] = known.get(tuple(cell["shape"]))
        starts = {
            f"{toolkit} {state}": line["start_s"]
            for (toolkit, state), lines in ((name.split(), lines) for name, lines in found.items())
            for line in lines
            if "start_s" in line
        }
        notes = [f"{k}: {li['ended']}" for k, lines in found.items() for li in lines if "ended" in li]
        measured = [tuple(cell["shape"]) for cell in cells]
        left_out = [str(s) for s in self.shapes if tuple(s.key) not in measured]
        why = ended[0] if ended else f"the budget of {self.budget_s:g} s was spent"
        if left_out:
            notes.append(f"not raced: {'; '.join(left_out)}: {why}")
        return {
            "record": "conv-study",
            "head": self._head(beside),
            "entrants": [
                {"label": e.label, "what": e.what, "promised": e.promised, "absent": absent.get(e.label, "")}
                for e in self.which
            ],
            "baseline": BASELINE,
            "starts": starts,
            "cells": cells,
            "notes": notes,
        }

    def _head(self, beside: bool) -> Line:
        return {
            "device": describe(self.device).to_dict(),
            "versions": versions(sessions.default().registry) | _versions(),
            "cuda": torch.version.cuda,
            "machine": {
                "system": platform.platform(),
                "cores": os.cpu_count(),
                "threads": torch.get_num_threads(),
            },
            "clocks": clocks(self.device),
            "convolution": {
                "batch": BATCH,
                "channels": CHANNELS,
                "filters": FILTER_COUNT,
                "dtype": "float32",
            },
            "fast": self.fast,
            "beside": beside,
            "method": METHOD,
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "seconds": round(time.time() - self.began, 1),
        }


def _versions() -> dict[str, str]:
    found = {}
    for name in ("jax", "jaxlib", "triton"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
