"""Draws the convolution study's part of ``performance/conv2d.md``: run it where a record has changed."""

from __future__ import annotations

from pathlib import Path

from nxcore.report.study import facts
from nxcore.report.study.markdown import ratios, setting
from nxcore.report.study.sentences import sentences

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance" / "conv2d.md"
RESULTS = ROOT / "benchmarks" / "results"
MACHINES = {
    "amd-epyc-2-cores": "AMD EPYC, 2 cores",
    "nvidia-h100": "NVIDIA H100 80GB HBM3",
    "nvidia-h200": "NVIDIA H200",
}
BEGIN, END = "<!-- drawn by docs/study.py -->\n", "<!-- until here -->\n"


def kept() -> dict[str, list[Path]]:
    """Return the records of each machine that has some, the latest last, by folder.

    One of a few shapes, as ``2026-11-25-128-conv-study.json``, comes before that of the day's whole run.
    """
    paths = {folder: sorted((RESULTS / folder).glob("*-conv-study.json")) for folder in MACHINES}
    return {folder: found for folder, found in paths.items() if found}


def beside() -> list[str]:
    """Return a table: how far the fastest other strict entrant is behind nxcore, by shape and machine.

    A shape's cell is of the latest record that has it.
    """
    columns: dict[str, dict[tuple[int, ...], str]] = {}
    names = {}
    for folder, paths in kept().items():
        for record in map(facts.read, paths):
            ways = {"a call": "total_us"}
            if record["head"]["device"]["type"] == "cuda":
                ways["kernels"] = "device_us"
            names.update({tuple(cell["shape"]): (not cell["same"], cell["name"]) for cell in record["cells"]})
            for title, what in ways.items():
                columns.setdefault(f"{MACHINES[folder]}: {title}", {}).update(
                    (tuple(cell["shape"]), f"{ratio:.2f} {row['label']}")
                    for cell, row, ratio in facts.leads(record, facts.OURS, what)
                )
    lines = [f"| {' | '.join(('shape', *columns))} |", f"|---|{'---|' * len(columns)}"]
    for shape in sorted(names, key=lambda s: (names[s][0], s)):
        cells = (column.get(shape, "not measured") for column in columns.values())
        lines.append(f"| {' | '.join((names[shape][1], *cells))} |")
    return lines


def drawn() -> str:
    """Return the machines beside each other, then the summary of each one's latest record."""
    lines = [
        "### Side by side",
        "",
        "The time of the fastest other strict entrant in multiples of nxcore's: above 1 nxcore is first.",
        "The nine shapes with the padding that keeps the size come first.",
        "",
        *beside(),
        "",
    ]
    found = kept()
    for folder, name in MACHINES.items():
        lines += [f"### {name}", ""]
        if folder not in found:
            lines += ["Not measured yet.", ""]
            continue
        path = found[folder][-1]
        record = facts.read(path)
        lines += [f"Record `{path.relative_to(ROOT).as_posix()}`. {setting(record)}", ""]
        lines += [*ratios(record), *(f"- {sentence}" for sentence in sentences(record)), ""]
    return "\n".join(lines)


def redrawn(page: str) -> str:
    """Return the page with its drawn part as it should be."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{drawn()}\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
