"""Random trees on every printer, against float64: how many agree, by printer, and each tree that fails.

    python benchmarks/random_trees.py --output FILE.txt [--trees cuda=6000 cupy=6000 triton=5000 ...]
                                      [--processes 14] [--seconds 240]

The trees are those of ``tests/plugins/test_random_trees.py``, by number. Each process takes its share of
every printer's trees, twenty to a kernel, the printers in turns, so that a run that is ended at ``--seconds``
has some of each. ``torch`` is torch's printer on the device, ``inductor`` that printer by ``torch.compile``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nxcore.spec.device import available, describe
from nxcore.store.encoding import encoded

ROOT = Path(__file__).parent.parent
TREES = ("cuda=11000", "triton=4200", "cupy=3400", "torch=1300", "inductor=100")
CHUNK = 40
"""Trees of one printer in a row: two kernels, or three."""


def chunks(wanted: dict[str, int], number: int, count: int) -> Iterator[tuple[str, range]]:
    """Yield a process's chunks of each printer, in the order of the share of its trees that are done."""
    mine: list[tuple[float, str, range]] = []
    start = 0
    for printer, trees in wanted.items():
        of = [range(i, min(i + CHUNK, trees)) for i in range(0, trees, CHUNK)][number::count]
        mine += [(i / len(of), printer, range(start + r.start, start + r.stop)) for i, r in enumerate(of)]
        start += trees  # no tree is any other printer's
    yield from ((printer, seeds) for _, printer, seeds in sorted(mine, key=lambda c: c[0]))


def run(wanted: dict[str, int], number: int, count: int, device: torch.device, path: Path) -> None:
    """Compare a process's trees; write a line a chunk."""
    sys.path.insert(0, str(ROOT))
    trees = importlib.import_module("tests.plugins.test_random_trees")
    # As set: results are compared, not times, and its processes fill the cores.
    torch.set_num_threads(1)
    with path.open("a", encoding="utf-8") as lines:
        for printer, seeds in chunks(wanted, number, count):
            row: dict[str, Any] = {"printer": printer, "trees": len(seeds)}
            try:
                agreed, ill, failed = trees.judged(printer, seeds, device)
                row |= {"agreed": agreed, "ill": ill, "failed": failed}
            except Exception as error:  # noqa: BLE001  the others go on
                row |= {"error": f"{printer}, trees {seeds.start} to {seeds.stop - 1}: {error!r}"[:2000]}
            lines.write(encoded(row) + "\n")
            lines.flush()


def table(wanted: dict[str, int], rows: list[dict[str, Any]]) -> list[str]:
    """Return a line a printer, then a line a tree that fails."""
    told = []
    for printer, trees in wanted.items():
        of = [r for r in rows if r["printer"] == printer]
        whole = [r for r in of if "error" not in r]
        agreed, ill = (sum(r[name] for r in whole) for name in ("agreed", "ill"))
        failed = sum(len(r["failed"]) for r in whole)
        done, lost = sum(r["trees"] for r in whole), sum(r["trees"] for r in of if "error" in r)
        missing = f", {lost} not compared after an error" if lost else ""
        told.append(
            f"{printer}: {done} of {trees} trees: {agreed} agree, {ill} too ill-conditioned to compare, "
            f"{failed} fail{missing}"
        )
    return (
        told
        + [line for r in rows for line in r.get("failed", [])]
        + [r["error"] for r in rows if "error" in r]
    )


def main() -> None:
    """Start the processes, wait, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", help="cpu or cuda; by default cuda if available")
    parser.add_argument("--trees", nargs="+", default=TREES, help="printers, each with its number of trees")
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--part", type=int, nargs=2, help="compare this part of so many, and end")
    given = parser.parse_args()
    wanted = {name: int(trees) for name, _, trees in (of.partition("=") for of in given.trees)}
    device = available(given.device)
    if given.part:
        run(wanted, *given.part, device, given.output)
        return
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp())
    parts = [folder / f"{i}.jsonl" for i in range(given.processes)]
    started = []
    for i, path in enumerate(parts):
        part = ["--output", str(path), "--part", str(i), str(given.processes)]
        started.append(subprocess.Popen([sys.executable, *sys.argv, *part]))  # the last --output counts
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(began + given.seconds - time.monotonic(), 0.1))
        process.kill()
    ended = sum(process.wait() != 0 for process in started)
    rows = [
        json.loads(line) for p in parts if p.exists() for line in p.read_text(encoding="utf-8").splitlines()
    ]
    spent = f"{given.processes} processes, {time.monotonic() - began:.0f} s"
    head = [f"{describe(device).name}, torch {torch.__version__}, {spent}"]
    if ended:
        head.append(f"{ended} processes were ended at {given.seconds:.0f} s, or failed")
    text = "\n".join(head + table(wanted, rows)) + "\n"
    given.output.write_text(text, encoding="utf-8")
    print(text[:6000], end="")


if __name__ == "__main__":
    main()
