"""Measure what a device needs to be known: operators' real workloads, and the problems of whole models.

    python benchmarks/record.py [NAME ...] [--device cuda] [--budget SECONDS] [--output build/record]

A name is that of a file in ``workloads``, or ``samples`` for the operators' own; all of them by default.
Problems that the folder already holds are skipped, so an interrupted run continues. The file is one of
``nxcore wisdom export``. The figures of a device that many people have can be shipped with the package.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

WORKLOADS = Path(__file__).parent / "workloads"


def main() -> None:
    """Measure, and write the file."""
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
    os.environ["NXCORE_CACHE"] = str(given.output.resolve())  # before the first session reads it

    from nxcore import session
    from nxcore.cli import measured, tune
    from nxcore.offline import ahead
    from nxcore.spec.device import available, describe
    from nxcore.store import transfer

    device, registry = available(given.device), session.default().registry
    wanted = []
    for name in given.names:
        own = name == "samples"
        path = WORKLOADS / f"{name}.jsonl"
        wanted += ahead.of_samples(registry, device) if own else ahead.of_trace(registry, path, device)
    measured.tune(tune.collect(wanted, again=False, budget=given.budget))
    name = re.sub(r"[^a-z0-9]+", "-", describe(device).name.lower()).strip("-")
    file = given.output / f"{device.type}-{name}.json"
    document = transfer.exported(session.default().wisdom.store)
    transfer.write(file, document)
    print(f"{sum(len(e['entries']) for e in document['environments'])} problems written to {file}")


if __name__ == "__main__":
    main()
