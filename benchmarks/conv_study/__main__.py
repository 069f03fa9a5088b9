"""One small convolution by im2col, Inductor, JAX, cuDNN or oneDNN, and nxcore, all on one device.

``python -m benchmarks.conv_study`` from a clone writes a record and prints its page. The exit status is 1 if
a result is wrong, or if nothing was timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.conv_study import blocks, facts, shapes, study
from benchmarks.conv_study.entrants import BASELINE, ENTRANTS
from nxcore.spec.device import available
from nxcore.store.encoding import encoded

RESULTS = Path(__file__).parents[1] / "results"
MACHINES = {
    "amd-epyc-2-cores": "AMD EPYC, 2 cores",
    "nvidia-h100": "NVIDIA H100 80GB HBM3",
    "nvidia-h200": "NVIDIA H200",
}


def beside() -> list[str]:
    """Return the table of ``docs/performance/conv2d.md``: the recorded machines beside each other."""
    # One of a few shapes, as 2026-11-25-128-conv-study.json, comes before that of the day's whole run.
    paths = {name: sorted((RESULTS / folder).glob("*-conv-study.json")) for folder, name in MACHINES.items()}
    return facts.beside({name: [facts.read(path) for path in found] for name, found in paths.items()})


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conv_study", description=__doc__)
    parser.add_argument("--input-size", type=int, nargs="+", choices=shapes.SIDES, help="of images")
    parser.add_argument("--kernel-size", type=int, nargs="+", choices=shapes.FILTERS, help="of filters")
    known = [entrant.label for entrant in ENTRANTS]
    parser.add_argument("--entrants", nargs="+", choices=known, help=f"only these, and {BASELINE}")
    parser.add_argument("--fast", action="store_true", help="three shapes, fewer blocks")
    parser.add_argument("--device", help="cpu or cuda; by default cuda if available")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of the whole run")
    parser.add_argument("--no-first-calls", action="store_true", help="leave out most of a run's time")
    parser.add_argument("--output", type=Path, default=Path("conv-study.json"), help="the record's file")
    parser.add_argument("--from", type=Path, dest="source", help="measure nothing: print this record's page")
    parser.add_argument("--beside", action="store_true", help="measure nothing: print the recorded machines")
    asked = parser.parse_args(words)
    if asked.beside:
        print("\n".join(beside()))
        return 0
    if asked.source:
        record = facts.read(asked.source)
    else:
        whole = shapes.shapes(asked.input_size or shapes.SIDES, asked.kernel_size or shapes.FILTERS)
        record = study.run(
            available(asked.device),
            [e for e in ENTRANTS if not asked.entrants or e.label in (BASELINE, *asked.entrants)],
            shapes.few() if asked.fast else whole,
            effort=blocks.FAST if asked.fast else blocks.FULL,
            budget_s=asked.budget,
            first_calls=not asked.no_first_calls,
        )
        asked.output.write_text(encoded(record), encoding="utf-8")
    print(facts.markdown(record))
    return int(facts.wrong(record) or not facts.labels(record))


if __name__ == "__main__":
    sys.exit(main())
