"""Regret without the device: what ``regret.py`` learnt and measured, asked of the rules as they are now.

    python benchmarks/replay.py FILE.jsonl [--left-out] [--without-kriging]

Beside FILE.jsonl lies FILE.wisdom, the folder of what was learnt. Nothing is run, built or measured: who
would be chosen is told by ``nxcore.choose.estimate.neighbours``, what that costs by the times in the lines.
With ``--left-out`` each size that was learnt is asked of the others of its family as well, by the times that
it was learnt with. With ``--without-kriging`` the model's fitted line is not corrected by what it missed
nearby.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from regret import report
from sizes import families

from nxcore.choose.estimate import model, neighbours
from nxcore.measure.timing import Timing
from nxcore.offline import audit
from nxcore.session import Session
from nxcore.settings import Settings
from nxcore.spec.problem import Problem
from nxcore.store.problems import described, moved
from nxcore.store.wisdom import Wisdom, page


class Uncorrected:
    """Has the interface of ``nxcore.choose.estimate.kriging.Field`` and corrects nothing."""

    def __init__(self, at: object, places: Sequence[object]) -> None:  # noqa: ARG002  the interface
        self.doubt = [1.0] * len(places)

    def told(self, values: Sequence[float]) -> tuple[float, list[float]]:
        return 0.0, [0.0] * len(values)


class Replay:
    """Asks for choices by what one folder of wisdom holds, of the one device that it is of.

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
        """Return a problem as numbers, with the way that each kernel of ``labels`` takes there."""
        owned = {b.label(k): k for b, k in self.session.registry.kernels(problem.op) if k.branch}
        among = times if labels is None else labels
        branches = {label: k.branch_of(problem) for label, k in owned.items() if label in among}
        return neighbours.point(problem, times, branches)

    def row(self, problem: Problem, rounds: list[dict[str, Timing]], *, left_out: bool) -> audit.Row | None:
        """Return how the choice for a problem does by measured times; None where nothing is told of it."""
        at = self.point(problem, {}, rounds[0])
        known = self.points[neighbours.family(problem)]
        if left_out:
            known = [p for p in known if p.sizes != at.sizes]
        labels = [n for n in rounds[0] if n == "torch" or not n.startswith("torch-")]
        guess = neighbours.guess(at, known, labels)
        if guess is None and left_out:
            return None
        chosen, rule = (guess.label, guess.rule) if guess else ("torch", "reference")
        if len(rounds) == 1:  # what was learnt has one round, and no other to tell who is best by luck
            us = {label: t.median_us for label, t in rounds[0].items() if label in labels}
            found, best = us[chosen] / min(us.values()), min(us, key=lambda label: us[label])
        else:
            found, best = audit.regret(chosen, *rounds)
        beside = [r["torch"].median_us / r[chosen].median_us for r in rounds]
        ratio = math.exp(sum(map(math.log, beside)) / len(beside))
        ends = (min(beside), max(beside))
        return audit.Row(problem.op, str(problem), chosen, rule, best, found, (ratio, *ends), ends[1] < 0.98)


def main() -> None:
    """Print a table of the held-out problems, and one of those learnt."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lines", type=Path)
    parser.add_argument("--left-out", action="store_true", help="each learnt size, asked of the others too")
    parser.add_argument("--without-kriging", action="store_true", help="the fitted line alone")
    given = parser.parse_args()
    if given.without_kriging:
        model.Field = Uncorrected
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
