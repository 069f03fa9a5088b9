"""Runs: the searches in a folder, as a table and as one page with their cells and curves."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from nxcore.errors import InvalidInputError
from nxcore.nas.checkpoint import METRICS
from nxcore.nas.genotype import Genotype
from nxcore.nas.picture import drawn, genotype_svg, page
from nxcore.store.encoding import decoded

COLUMNS = "run", "remedy", "phase", "epochs", "skips", "held out", "seconds"


class Searched(NamedTuple):
    """A search that has one epoch at least: its name, its remedy and its epochs."""

    name: str
    remedy: str
    history: list[dict[str, Any]]

    @property
    def genotype(self) -> Genotype:
        """The genotype after its last epoch."""
        return Genotype.of(self.history[-1]["genotype"])

    @property
    def held_out(self) -> float | None:
        """The share of held-out images that its network has right."""
        return next(
            (r["held_out_accuracy"] for r in reversed(self.history) if "held_out_accuracy" in r), None
        )

    @property
    def row(self) -> tuple[str, ...]:
        """The text of each of ``COLUMNS``."""
        of = [row for row in self.history if row["phase"] != "mutation"]
        seconds = sum(row["seconds"] for row in self.history)
        accuracy = "" if self.held_out is None else f"{self.held_out:.2%}"
        skips = str(self.genotype.skips())
        return self.name, self.remedy, of[-1]["phase"], str(len(of)), skips, accuracy, f"{seconds:.0f}"


def searches(folder: Path, options: str) -> list[Searched]:
    """Return the searches below a folder, the best first; ``options`` names their file of options."""
    found = []
    for file in sorted(folder.rglob(METRICS)):
        history = [decoded(line) for line in file.read_text(encoding="utf-8").splitlines()]
        held = file.parent / options
        remedy = decoded(held.read_text(encoding="utf-8")).get("remedy") if held.exists() else None
        if history:
            found.append(Searched(file.parent.relative_to(folder).as_posix(), remedy or "none", history))
    if not found:
        raise InvalidInputError(
            f"compare must be a folder with searches in it, got {folder}", argument="compare"
        )
    return sorted(found, key=lambda run: run.held_out or 0, reverse=True)


def compared(runs: Sequence[Searched]) -> str:
    """Return a page with a table of the runs, and the cells and curves of each."""
    rows = ["".join(f"<td>{escape(text)}</td>" for text in run.row) for run in runs]
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    table = "<table><tr>" + "</tr>\n<tr>".join((head, *rows)) + "</tr></table>"
    each = [f"<h2>{escape(r.name)}</h2>{genotype_svg(r.genotype)}{drawn('history', r.history)}" for r in runs]
    return page("Searches", table, *each)
