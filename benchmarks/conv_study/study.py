"""The study as a record: first calls with fresh and with warm caches, then a race, each in its process."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.conv_study import blocks
from benchmarks.conv_study.entrants import BASELINE, Entrant
from benchmarks.conv_study.shapes import BATCH, CHANNELS, FILTER_COUNT, Shape
from nxcore import session as sessions
from nxcore.bench.head import clocks, versions
from nxcore.spec.device import describe
from nxcore.store.encoding import encoded

ROOT = Path(__file__).parents[2]
WORKER = (sys.executable, "-m", "benchmarks.conv_study.worker")

COMPILING = 0.65
"""The most of the budget that first calls may take: the race is what matters most."""

END_S = 7.5
"""Seconds of the budget's end in which no shape begins, so that one that was begun may end."""

TOOLKITS = ("nxcore", "inductor", "jax", "torch")
"""In their order: where the budget is too small, the last ones have no first calls."""

STATES = ("cold", "warm")
"""Of the disk caches at a first call."""

METHOD = (
    "Each toolkit compiles in two processes of its own, the second with the disk cache of the first. Then "
    "one process times all entrants in interleaved blocks, in random order, on inputs that stay in cache."
)

Line = dict[str, Any]


def run(
    device: torch.device,
    which: list[Entrant],
    shapes: list[Shape],
    *,
    effort: blocks.Effort = blocks.FULL,
    budget_s: float = 300.0,
    first_calls: bool = True,
    worker: Sequence[str] = WORKER,
) -> Line:
    """Return the record of a run, which ends when ``budget_s`` seconds are spent."""
    began = time.time()
    job = {"device": str(device), "shapes": [shape.key for shape in shapes]}
    found: dict[tuple[str, str], list[Line]] = {}
    notes = [] if first_calls else ["first calls were not requested"]
    with tempfile.TemporaryDirectory(prefix="nxcore-study-") as folder:
        for toolkit in TOOLKITS if first_calls else ():
            labels = [e.label for e in which if e.toolkit == toolkit]
            for state in STATES if labels else ():
                seconds = began + COMPILING * budget_s - time.time()
                first = job | {"what": "first", "entrants": labels}
                found[toolkit, state], ended = _lines(worker, first, seconds, folder)
                notes += [f"{toolkit} {state}: {ended}"] if ended else []
        until = began + budget_s
        race = job | {"what": "race", "entrants": [e.label for e in which]}
        race |= {"effort": [effort.blocks, effort.block_s], "until": until - END_S}
        raced, ended = _lines(worker, race, until - time.time(), folder)
    cells = [line["cell"] for line in raced if "cell" in line]
    left = [str(s) for s in shapes if s.key not in [cell["shape"] for cell in cells]]
    notes += [f"not raced: {'; '.join(left)}: {ended or 'the budget was spent'}"] if left else []
    for (_, state), lines in found.items():
        _put(cells, state, lines)
    absent = {line["label"]: line["absent"] for line in raced if "absent" in line}
    return {
        "record": "conv-study",
        "head": _head(device, began),
        "entrants": [
            {"label": e.label, "what": e.what, "promised": e.promised, "absent": absent.get(e.label, "")}
            for e in which
        ],
        "baseline": BASELINE,
        "starts": {
            f"{toolkit} {state}": line["start_s"]
            for (toolkit, state), lines in found.items()
            for line in lines
            if "start_s" in line
        },
        "cells": cells,
        "notes": notes,
    }


def _lines(worker: Sequence[str], job: Line, seconds: float, folder: str) -> tuple[list[Line], str]:
    """Return the lines that a process wrote, and what ended it before its end, if anything."""
    spent = "not measured: the budget was spent"
    if seconds <= 0:
        return [], spent
    print(job["what"], *job["entrants"], file=sys.stderr)
    command = [*worker, encoded(job | {"began": time.time()})]
    ended = ""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=seconds, env=_environment(folder), cwd=ROOT, check=False
        )
        text = done.stdout
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            ended = f"its process ended with status {done.returncode}: {' '.join(said)}"
    except subprocess.TimeoutExpired as late:
        text, ended = late.stdout or b"", spent
    lines = []
    for line in text.decode().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # a line that the end cut off
            lines.append(json.loads(line))
    return lines, ended


def _environment(folder: str) -> dict[str, str]:
    """Return the variables of a process: caches of this run alone, and no memory taken in advance."""
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",
        "NXCORE_CACHE": "nxcore",
        "JAX_COMPILATION_CACHE_DIR": "jax",
    }
    return {
        **os.environ,
        **{name: str(Path(folder) / cache) for name, cache in caches.items()},
        "NXCORE_POLICY": "measure",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


def _put(cells: list[Line], state: str, lines: list[Line]) -> None:
    """Put the times of first calls into the rows of the race."""
    known = {(line["label"], *line["shape"]): line["first_s"] for line in lines if "first_s" in line}
    for cell in cells:
        for row in cell["rows"]:
            if (seconds := known.get((row["label"], *cell["shape"]))) is not None:
                row[f"{state}_s"] = seconds


def _head(device: torch.device, began: float) -> Line:
    installed = {}
    for name in ("jax", "jaxlib", "triton"):
        with contextlib.suppress(PackageNotFoundError):
            installed[name] = version(name)
    return {
        "device": describe(device).to_dict(),
        "versions": versions(sessions.default().registry) | installed,
        "cuda": torch.version.cuda,
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
        "clocks": clocks(device),
        "convolution": {
            "batch": BATCH,
            "channels": CHANNELS,
            "filters": FILTER_COUNT,
            "dtype": "float32",
        },
        "method": METHOD,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "seconds": round(time.time() - began, 1),
    }
