"""Draws the convolution study's part of ``performance/conv2d.md``: run it where a record has changed."""

from __future__ import annotations

from pathlib import Path

from nxcore.report.study import facts
from nxcore.report.study.markdown import ratios, setting
from nxcore.report.study.sentences import sentences

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance" / "conv2d.md"
RESULTS = ROOT / "benchmarks" / "results"
MACHINES = {"amd-epyc-2-cores": "AMD EPYC, 2 cores", "nvidia-h200": "NVIDIA H200"}
BEGIN, END = "<!-- drawn by docs/study.py -->\n", "<!-- until here -->\n"


def drawn() -> str:
    """Return the summary of the latest record of each machine."""
    lines = []
    for folder, name in MACHINES.items():
        lines += [f"### {name}", ""]
        paths = sorted((RESULTS / folder).glob("*-conv-study.json"))
        if not paths:
            lines += ["Not measured yet.", ""]
            continue
        record = facts.read(paths[-1])
        lines += [f"Record `{paths[-1].relative_to(ROOT).as_posix()}`. {setting(record)}", ""]
        lines += [*ratios(record), *(f"- {sentence}" for sentence in sentences(record)), ""]
    return "\n".join(lines)


def redrawn(page: str) -> str:
    """Return the page with its drawn part as it should be."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n{drawn()}\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
