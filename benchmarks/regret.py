"""Regret on unmeasured sizes: measure some sizes of each family, choose for others, then measure those.

    python benchmarks/regret.py --output FILE.json [--device cuda] [--policy estimate] [--minutes 9]

The wisdom is in a folder next to FILE, and each held-out problem is a line in FILE.jsonl, so that a run
that ended early continues where it stopped, family by family. At the end it writes FILE and prints a table.
Held-out problems are measured in two rounds: one determines the best kernel, the other its time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch
from sizes import families

from nxcore.measure.race import Effort
from nxcore.offline import audit
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.device import available, describe
from nxcore.store.encoding import encoded

LEARN = Effort(looks=(12, 20, 40), warm_s=0.05, budget_s=1.0)
JUDGE = Effort(looks=(20,), warm_s=0.05, budget_s=1.0)
QUICK_LEARN = Effort(looks=(12, 20, 40), warm_s=0.02, budget_s=0.5)
QUICK_JUDGE = Effort(looks=(20,), warm_s=0.02, budget_s=0.5)


def main() -> int:
    """Learn, choose, measure; return 1 if problems are left for another run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", help="cpu or cuda; by default cuda if available")
    parser.add_argument("--policy", default="estimate", help="the policy that decides the held-out problems")
    parser.add_argument("--op", action="append", default=[], help="only these operators")
    parser.add_argument(
        "--learn", type=int, default=20, help="sizes to learn in each family, besides its corners"
    )
    parser.add_argument("--held", type=int, default=8, help="sizes to hold out in each family")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="stop after so many minutes; run again to continue"
    )
    parser.add_argument("--quick", action="store_true", help="fewer blocks")
    parser.add_argument("--threads", type=int, help="number of threads of torch and of the kernels")
    given = parser.parse_args()
    # As set: on request alone.
    if given.threads:
        torch.set_num_threads(given.threads)
    learn, judge = (QUICK_LEARN, QUICK_JUDGE) if given.quick else (LEARN, JUDGE)
    ends = time.monotonic() + 60 * given.minutes
    device = available(given.device)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    folder, lines = given.output.with_suffix(".wisdom"), given.output.with_suffix(".jsonl")
    session = Session(Settings(cache=folder.resolve()), effort=learn)
    rows = _read(lines)
    done = {r["sample"] for r in rows}
    left = 0
    for family in families(large=device.type == "cuda"):
        if given.op and family.op not in given.op:
            continue
        spec = session.registry.spec(family.op)
        held = [s for s in family.held(given.held) if f"{family.op} {s.name}" not in done]
        for sample in family.learnt(given.learn) if held else ():
            if time.monotonic() < ends:
                audit.learn(session, family.op, sample.build(spec, device, family.dtype))
        if time.monotonic() >= ends:
            left += len(held)
            continue
        calls = [sample.build(spec, device, family.dtype) for sample in held]
        for sample, row in zip(
            held, audit.hold_out(session, family.op, calls, given.policy, judge), strict=True
        ):
            kept = {"sample": f"{family.op} {sample.name}", "row": asdict(row) if row else None}
            rows.append(kept)
            with lines.open("a", encoding="utf-8") as stream:
                stream.write(encoded(kept) + "\n")
            print(_line(row) if row else f"{kept['sample']}: torch alone", flush=True)
    found = [audit.Row(**r["row"]) for r in rows if r["row"]]
    table = audit.summary(found)
    document = {
        "device": describe(device).to_dict(),
        "torch": torch.__version__,
        "policy": given.policy,
        "learnt": given.learn,
        "summary": table,
        "rows": [asdict(r) for r in found],
    }
    given.output.write_text(encoded(document, indent=1) + "\n", encoding="utf-8")
    report(table)
    if left:
        print(f"{left} problems are left: run it again")
    return int(left > 0)


def _read(path: Path) -> list[dict]:
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    )


def _line(row: audit.Row) -> str:
    mark = " SLOWER" if row.slower else ""
    return (
        f"{row.regret:6.3f} {row.rule:<10}{row.chosen:<14} best {row.best:<14}"
        f"{row.ratio[0]:6.2f}x torch  {row.problem}{mark}"
    )


def report(table: list[dict]) -> None:
    """Print one line for each operator."""
    print(f"{'operator':<20}{'problems':>9}{'p50':>8}{'p95':>8}{'max':>8}{'slower':>8}  not torch, rules")
    for r in table:
        figures = "".join(f"{r[n]:8.3f}" if r[n] is not None else f"{'':8}" for n in ("p50", "p95", "max"))
        rules = ", ".join(f"{n} {rule}" for rule, n in r["rules"].items())
        print(f"{r['op']:<20}{r['problems']:>9}{figures}{r['slower']:>8}  {r['others']}; {rules}")


if __name__ == "__main__":
    sys.exit(main())
