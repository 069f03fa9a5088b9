"""Measure what a device needs to be known: operators' real workloads, and the problems of whole models.

    python benchmarks/record.py [NAME ...] [--device cuda] [--budget SECONDS] [--output build/record]

A name is that of a file in ``workloads``, or ``samples`` for the operators' own; all of them by default.
The problems that matter most to these workloads are first. Those that the folder already holds are skipped,
so a run that was ended early, by its budget or by a signal, continues. A line every ten seconds tells what
the time is spent on. The file is one of ``nxcore wisdom export``, written at any end. The figures of a device
that many people have can be shipped with the package.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from pathlib import Path

WORKLOADS = Path(__file__).parent / "workloads"

GRACE_S = 3.0
"""Seconds beyond the budget that a measurement under way may take."""


def _end(_signal: int, _frame: object) -> None:
    from nxcore.cli.tune import Ended

    raise Ended


def main() -> int:
    """Measure, and write the file; return the status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", help="cpu or cuda; by default cuda if available")
    parser.add_argument("--budget", type=float, help="start no measurement after this many seconds")
    parser.add_argument("--output", type=Path, default=Path("build") / "record")
    names = [*sorted(p.stem for p in WORKLOADS.glob("*.jsonl")), "samples"]
    parser.add_argument("names", nargs="*", default=names, metavar="NAME", help=f"of {', '.join(names)}")
    given = parser.parse_args()
    if unknown := set(given.names) - set(names):
        parser.error(f"no workload is named {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    # As set: the record is written there.
    os.environ["NXCORE_CACHE"] = str(given.output.resolve())  # before the first session reads it

    sys.path.append(str(Path(__file__).parents[1]))
    from benchmarks import order
    from nxcore import session
    from nxcore.cli import interruption, tables, tune
    from nxcore.offline import ahead
    from nxcore.spec.device import available, describe
    from nxcore.store import transfer

    device, registry = available(given.device), session.default().registry
    traces = [
        ahead.of_samples(registry, device)
        if name == "samples"
        else ahead.of_trace(registry, WORKLOADS / f"{name}.jsonl", device)
        for name in given.names
    ]
    name = re.sub(r"[^a-z0-9]+", "-", describe(device).name.lower()).strip("-")
    file = given.output / f"{device.type}-{name}.json"
    for ending in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(ending, _end)
    if given.budget is not None:  # a kernel that compiles or runs for long is left for the next run
        signal.setitimer(signal.ITIMER_REAL, given.budget + GRACE_S)
    try:
        wanted = order.by_worth(registry, traces)
        found = tune.tuned(wanted, again=False, budget=given.budget, effort=ahead.IN_A_ROW)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        document = transfer.exported(session.default().wisdom.store)
        transfer.write(file, document)
        print(f"{sum(len(e['entries']) for e in document['environments'])} problems written to {file}")
    tables.tune(found)
    return interruption.STATUS if found["stopped"] == "interrupted" else 0


if __name__ == "__main__":
    raise SystemExit(main())
