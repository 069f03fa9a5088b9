"""Regret without the device: apply the current rules to the wisdom and times that ``regret.py`` recorded.

    python benchmarks/replay.py FILE.jsonl [--left-out] [--without-kriging]
    python benchmarks/replay.py FILE.json

FILE.json is a record of ``regret_expressions.py``, which has the median times of the learnt sizes.
FILE.wisdom, the folder of the wisdom, is next to FILE.jsonl. Nothing is run, built or measured:
``nxcore.choose.estimate.neighbours`` chooses, and the lines give the times. With ``--left-out`` each learnt
size is also predicted from the other sizes of its family. With ``--without-kriging`` the model's fitted
line is not corrected by its errors nearby.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import regret_expressions as expressions
import torch
from regret import report
from sizes import families

from nxcore.choose.estimate import model, neighbours
from nxcore.measure.timing import Timing
from nxcore.offline import audit
from nxcore.session import Session, default
from nxcore.settings import Settings
from nxcore.spec.problem import Problem
from nxcore.store.pages import page
from nxcore.store.problems import described, moved
from nxcore.store.wisdom import Wisdom


class Uncorrected:
    """Has the interface of ``nxcore.choose.estimate.kriging.Field`` and corrects nothing."""

    def __init__(self, at: object, places: Sequence[object]) -> None:  # noqa: ARG002  the interface
        self.doubt = [1.0] * len(places)

    def told(self, values: Sequence[float]) -> tuple[float, list[float]]:
        return 0.0, [0.0] * len(values)


class Replay:
    """Chooses by the wisdom in one folder, which is of one device.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self.session = Session(Settings(cache=folder.resolve()))
        wisdom: Wisdom = self.session.wisdom
        (self.environment,) = (facts for _, facts in wisdom.store.items("environments"))
        self.device = torch.device(self.environment["type"])
        self.points: dict[object, list[neighbours.Point]] = defaultdict(list)
        for place in (folder / "v1").glob("*/entries"):
            for of, document in wisdom.store.items(f"{place.parent.name}/entries"):
                problem = described(self.session.registry.spec(of["op"]), of)
                times = {c.label: c.timing for c in page(document).decision.candidates if c.timing}
                if "torch" in times:
                    self.points[neighbours.family(problem)].append(self.point(problem, times))

    def point(self, problem: Problem, times: dict[str, Timing], labels: object = None) -> neighbours.Point:
        """Return a problem as numbers, with the path that each kernel of ``labels`` takes for it."""
        owned = {b.label(k): k for b, k in self.session.registry.kernels(problem.op) if k.branch}
        among = times if labels is None else labels
        branches = {label: k.branch_of(problem) for label, k in owned.items() if label in among}
        return neighbours.point(problem, times, branches)

    def row(self, problem: Problem, rounds: list[dict[str, Timing]], *, left_out: bool) -> audit.Row | None:
        """Return the regret of the choice for a problem by measured times; None if there is no choice."""
        at = self.point(problem, {}, rounds[0])
        known = self.points[neighbours.family(problem)]
        if left_out:
            known = [p for p in known if p.sizes != at.sizes]
        labels = [n for n in rounds[0] if n == "torch" or not n.startswith("torch-")]
        guess = neighbours.guess(at, known, labels)
        if guess is None and left_out:
            return None
        if len(rounds) > 1:
            return judged(problem, guess, rounds)
        # Learnt sizes have one round only, so the best kernel may be best by chance.
        row = judged(problem, guess, [*rounds, *rounds])
        us = {label: t.median_us for label, t in rounds[0].items() if label in labels}
        best = min(us, key=lambda label: us[label])
        return replace(row, best=best, regret=us[row.chosen] / us[best])


def of_expressions(path: Path) -> list[audit.Row]:
    """Return the held-out problems of a record of ``regret_expressions.py`` by the current rules."""
    record, session = json.loads(path.read_text(encoding="utf-8")), default()
    device = torch.device(record["device"]["type"])
    rows, found = record["rows"], []
    points: dict[object, dict[tuple[int, ...], neighbours.Point]] = defaultdict(dict)
    for family in expressions.families(device.type):
        mine = [r for r in rows if (r["text"], r["elements"]) in {(family.text, n) for n in family.held}]

        def problem(n: int, family: expressions.Family = family) -> Problem:
            op, args = family.call(n, torch.device("meta"))
            return moved(Problem.of(session.registry.spec(op), args), device)

        for size in mine[0]["learnt"] if mine else ():
            of = problem(size["elements"])
            times = {label: Timing((us,), (us,)) for label, us in size["us"].items()}
            points[neighbours.family(of)][neighbours.sizes(of)] = neighbours.point(of, times, {})
        for row in (r for r in mine if r["row"]):
            of = problem(row["elements"])
            rounds = [{label: Timing((us,), (us,)) for label, us in r.items()} for r in row["row"]["us"]]
            known = list(points[neighbours.family(of)].values())
            guess = neighbours.guess(neighbours.point(of, {}, {}), known, list(rounds[0]))
            found.append(judged(of, guess, rounds))
    return found


def judged(problem: Problem, guess: neighbours.Guess | None, rounds: list[dict[str, Timing]]) -> audit.Row:
    """Return the regret of a guess; torch's reference runs where there is none."""
    chosen, rule = (guess.label, guess.rule) if guess else ("torch", "reference")
    regret, best = audit.regret(chosen, *rounds)
    beside = [r["torch"].median_us / r[chosen].median_us for r in rounds]
    ratio, ends = math.exp(sum(map(math.log, beside)) / len(beside)), (min(beside), max(beside))
    return audit.Row(problem.op, str(problem), chosen, rule, best, regret, (ratio, *ends), ends[1] < 0.98)


def main() -> None:
    """Print a table of the held-out problems, and one of the learnt problems."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lines", type=Path)
    parser.add_argument(
        "--left-out", action="store_true", help="also predict each learnt size from the others"
    )
    parser.add_argument("--without-kriging", action="store_true", help="only the fitted line")
    given = parser.parse_args()
    if given.without_kriging:
        model.Field = Uncorrected
    if given.lines.suffix == ".json":
        rows = of_expressions(given.lines)
        report(audit.summary(rows)[-1:])
        for row in sorted(rows, key=lambda r: -r.regret)[:5]:
            print(f"{row.regret:.3f} {row.rule} {row.chosen}, best {row.best}: {row.problem}")
        return
    replay = Replay(given.lines.with_suffix(".wisdom"))
    lines = map(json.loads, given.lines.read_text(encoding="utf-8").splitlines())
    measured = {line["sample"]: line["row"]["us"] for line in lines if line["row"]}
    held, learnt = [], []
    for family in families(large=replay.device.type == "cuda"):
        spec = replay.session.registry.spec(family.op)
        for sample in family.held(8):
            if us := measured.get(f"{family.op} {sample.name}"):
                rounds = [{label: Timing((t,), (t,)) for label, t in of.items()} for of in us]
                held.append(replay.row(_problem(spec, sample, family, replay.device), rounds, left_out=False))
        for sample in {s.name: s for s in family.learnt(32)}.values() if given.left_out else ():
            problem = _problem(spec, sample, family, replay.device)
            times = next(
                (
                    p.times
                    for p in replay.points[neighbours.family(problem)]
                    if p.sizes == neighbours.sizes(problem)
                ),
                None,
            )
            if times:
                learnt.append(replay.row(problem, [dict(times)], left_out=True))
    for rows in filter(None, (held, [row for row in learnt if row])):
        report(audit.summary(rows))


def _problem(spec, sample, family, device):
    return moved(Problem.of(spec, sample.build(spec, "meta", family.dtype)), device)


if __name__ == "__main__":
    main()
