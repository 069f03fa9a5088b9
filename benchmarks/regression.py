"""Is a kernel slower than at the parent commit? Both are measured on the CPU, paired, in one job.

    python benchmarks/regression.py [--against COMMIT] [--seconds 120]

Two processes, one for each tree, take turns: a block of one, a block of the other, in random order, each on
one thread. A block is the ratio of a kernel's time to torch's, on new memory. A kernel is slower if the
paired log ratios show it beyond 10% (the signed-rank test of ``nxcore.measure.decision``, Holm over all
cells), and two new processes confirm it, because each process has a bias. A cell whose median after eight
blocks is within half of the margin isn't slower, and gets no further block.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MARGIN, SIGNIFICANCE = 0.10, 0.01
BLOCKS, LEAST, EARLY = 20, 14, 8
SAMPLE_S, LONGEST_S = 2e-4, 20e-3
SIZES = 1  # of each operator, the smallest: each is compiled twice, and the job has three minutes
COMPOSED = ("sep_conv2d_batch_norm", "sep_conv2d_batch_norm_backward")
"""Operators that are omitted, because their kernels are calls of other kernels."""

RUNS = ("nxcore", "plugins/numba")  # backends that run on the CPU without a request

# Threads wait for each other wherever something else has a core, for milliseconds.
# As set: paired kernels of two trees; no user is promised these times.
ALONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

Cell = str
Ratios = dict[Cell, list[float]]


def main() -> int:
    """Compare; return 1 if a kernel has become slower."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", help="by default the parent; HEAD if there are uncommitted changes")
    parser.add_argument("--seconds", type=float, default=120.0, help="start no block after this time")
    parser.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        return work(options.worker)
    until = time.monotonic() + options.seconds
    against = options.against or ("HEAD" if _git("status", "--porcelain", *RUNS) else "HEAD^")
    commit = _git("rev-parse", "--verify", "--quiet", f"{against}^{{commit}}")
    if not commit:
        why = "a shallow clone, or the first commit"
        print(f"regression: there is no {against} here ({why}): nothing to compare")
        return 0
    if not _git("diff", "--name-only", commit, "--", *RUNS):
        print(f"regression: nothing that runs differs from {against}")
        return 0
    with tempfile.TemporaryDirectory(prefix="nxcore-parent-") as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        return compare(Path(folder), ROOT, until, f"{against} ({commit[:10]})")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def compare(old: Path, new: Path, until: float, name: str) -> int:
    """Measure both trees, measure slower cells again, and print the result."""
    ratios = measured(old, new, until)
    if ratios is None:
        print(f"regression: {name} can't be measured by this commit's benchmark: nothing to compare")
        return 0
    slower, changes = verdicts(ratios)
    if not changes:
        print(f"regression: fewer than {LEAST} blocks in the given time: no result")
    for cell, change in sorted(changes.items(), key=lambda item: -item[1])[:5]:
        print(f"regression: {cell}: {change:+.1%}")
    if slower:
        print(f"regression: {', '.join(slower)} seem slower; measured again in two new processes")
        again = measured(old, new, until + 40.0, only=slower) or {}
        slower = verdicts(again)[0]
    blocks = max((len(b) for b in ratios.values()), default=0)
    told = f"{len(slower)} slower beyond {MARGIN:.0%}"
    print(f"regression: {len(changes)} cells, {blocks} blocks against {name}: {told}")
    for cell in slower:
        print(f"regression: SLOW {cell}")
    return int(bool(slower))


def verdicts(ratios: Ratios) -> tuple[list[Cell], dict[Cell, float]]:
    """Return the significantly slower cells, and the change of each cell.

    ``ratios`` holds new over old, one value for each pair of blocks. A cell that ended early counts as one
    more comparison.
    """
    from nxcore.measure.decision import signed_rank

    enough = {cell: values for cell, values in ratios.items() if _is_as_fast(values) or len(values) >= LEAST}
    p = dict.fromkeys(enough, 1.0)
    for cell, values in enough.items():
        if not _is_as_fast(values):
            p[cell] = signed_rank([math.log1p(MARGIN) - math.log(value) for value in values])
    slower: list[Cell] = []
    for i, cell in enumerate(sorted(p, key=lambda c: p[c])):
        if p[cell] >= SIGNIFICANCE / (len(p) - i):
            break
        slower.append(cell)
    return slower, {cell: statistics.median(values) - 1 for cell, values in enough.items()}


def _is_as_fast(values: Sequence[float]) -> bool:
    """Return whether the first blocks show a cell within half of the margin; later ones can't change it."""
    return len(values) >= EARLY and statistics.median(values[:EARLY]) <= 1 + MARGIN / 2


def measured(old: Path, new: Path, until: float, only: Sequence[Cell] = ()) -> Ratios | None:
    """Return new over old for each cell that both trees have; None if the old tree can't be measured."""
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(worker(tree, only)) for tree in (old, new)]
        there = [_read(process) for process in both]  # both compile at the same time
        if there[1] is None:
            raise RuntimeError("this commit can't be measured: its worker ended, see above")
        if there[0] is None:
            return None
        cells = [c for c, seconds in there[1].items() if max(seconds, there[0].get(c, 1.0)) <= LONGEST_S]
        ratios: Ratios = {cell: [] for cell in cells}
        for _ in range(BLOCKS):
            for cell in [cell for cell in cells if not _is_as_fast(ratios[cell])]:
                if time.monotonic() > until:
                    return ratios
                found = {}
                for process in random.sample(both, 2):
                    found[process.pid] = _asked(process, cell)
                ratios[cell].append(found[both[1].pid] / found[both[0].pid])
    return ratios


@functools.cache
def _shared(tree: Path) -> str:
    """Return the folder with the tests' machine code of the tree's kernels, empty if they test others."""
    sys.path.append(str(ROOT))
    from tests import machine_code

    alike = machine_code.digest(tree) == machine_code.digest(ROOT)
    return str(machine_code.folder(ROOT)) if alike else ""


@contextlib.contextmanager
def worker(tree: Path, only: Sequence[Cell]) -> Iterator[subprocess.Popen[str]]:
    """Start a process that measures ``tree`` with this file."""
    paths = [str(tree), *(str(p) for p in sorted((tree / "plugins").glob("*/src")))]
    # As set: see ALONE; both trees compile anew.
    environment = os.environ | {"NXCORE_CACHE": "off"} | ALONE
    if shared := _shared(tree):  # Numba finds machine code by the path of its source
        paths.insert(0, str(ROOT / "plugins" / "numba" / "src"))
        environment["NUMBA_CACHE_DIR"] = shared
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, __file__, "--worker", *only]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=tree, env=environment, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _read(process: subprocess.Popen[str]) -> Any:
    assert process.stdout
    line = process.stdout.readline()
    return json.loads(line) if line else None


def _asked(process: subprocess.Popen[str], cell: Cell) -> float:
    assert process.stdin
    process.stdin.write(cell + "\n")
    process.stdin.flush()
    answer = _read(process)
    if answer is None:
        raise RuntimeError(f"the process that measured {cell} ended")
    return float(answer)


def work(only: Sequence[Cell]) -> int:
    """Run as the process: write the list of cells, then measure a block of each requested cell."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a kernel prints goes elsewhere
    cells = {lane.name: lane for lane in _lanes(only)}
    print(json.dumps({name: max(lane.each) for name, lane in cells.items()}), file=channel, flush=True)
    for line in sys.stdin:
        print(_block(cells[line.rstrip("\n")]), file=channel, flush=True)
    return 0


@dataclass
class Lane:
    """A cell in a worker: torch's call, the kernel's call, and the time of each."""

    name: Cell
    calls: tuple[Callable[..., Any], Callable[..., Any]]
    args: tuple[Any, ...]
    each: list[float]


def _lanes(only: Sequence[Cell]) -> Iterator[Lane]:
    """Yield the cells of this tree, using only interfaces that both commits have.

    Kernels are called directly: the tests have verified them, which compiles for every smoke sample. A call
    through the operator is one cell for each operator, on torch's own.
    """
    import torch

    import nxcore
    from nxcore.registry.discovery import discover
    from nxcore.spec.problem import Problem

    registry = discover()
    for spec in registry.ops.values():
        if spec.name in COMPOSED:
            continue
        built = {
            sample.name: sample.build(spec, torch.device("cpu"), torch.float32)
            for sample in spec.tagged("bench")
            if "huge" not in sample.tags
        }
        smallest = sorted(built, key=lambda name: spec.cost(*built[name]).bytes)[:SIZES]
        for i, size in enumerate(smallest):
            args = built[size]
            problem = Problem.of(spec, args)
            plans: dict[Cell, Callable[[], Callable[..., Any]]] = {}
            for backend, kernel in registry.kernels(spec.name):
                machine = registry.probe(backend, kernel)
                timed = machine and not (machine.simulated or backend.on_request or backend.name == "torch")
                if timed and not problem.view and kernel.takes(problem):
                    name = f"{spec.name} {size} {backend.label(kernel)}"
                    plans[name] = functools.partial(kernel.plan, problem)
            if not i and not any(p.keyword for p in spec.params):
                name = f"{spec.name} {size} dispatch"
                plans[name] = functools.partial(nxcore.op, spec.name, backend="torch")
            for name in [n for n in plans if not only or n in only]:
                calls = (spec.reference, plans[name]())
                yield Lane(name, calls, args, [_seconds(call, args) for call in calls])


def _elsewhere(value: Any) -> Any:
    """Return a copy at another address each time, so that the address causes no bias."""
    import torch

    if isinstance(value, tuple):
        return tuple(_elsewhere(v) for v in value)
    if not isinstance(value, torch.Tensor):
        return value
    filler = torch.empty(random.randrange(1, 1 << 16), dtype=torch.uint8)
    found = value.clone()
    del filler
    return found


def _seconds(call: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Return the shortest time of three calls after the one that compiles."""
    call(*args)
    found = []
    for _ in range(3):
        started = time.perf_counter()
        call(*args)
        found.append(time.perf_counter() - started)
    return min(found)


def _block(lane: Lane) -> float:
    """Return the time of a call over torch's: medians of samples taken in turns."""
    args = _elsewhere(lane.args)
    repeats = [math.ceil(SAMPLE_S / max(seconds, 1e-7)) for seconds in lane.each]
    samples: list[list[float]] = [[], []]
    for call in lane.calls:
        call(*args)
    for _ in range(5 if max(lane.each) < 1e-3 else 3 if max(lane.each) < 5e-3 else 1):
        for call, times, taken in zip(lane.calls, repeats, samples, strict=True):
            started = time.perf_counter()
            for _ in range(times):
                call(*args)
            taken.append((time.perf_counter() - started) / times)
    torchs, ours = map(statistics.median, samples)
    return ours / torchs


if __name__ == "__main__":
    sys.exit(main())
