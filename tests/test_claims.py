"""What the README says in figures, computed again from the record that it names."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RECORD = ROOT / "benchmarks/results/nvidia-h200/2026-11-21.jsonl"


def _rows() -> list[dict[str, Any]]:
    lines = RECORD.read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["record"] == "row"]


def _cells() -> list[list[dict[str, Any]]]:
    cells = defaultdict(list)
    for row in _rows():
        cells[row["op"], row["sample"], row["dtype"]].append(row)
    return list(cells.values())


def _summary(ratios: list[float]) -> str:
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    slower = sum(r < 1 for r in ratios)
    return f"{mean:.2f}x | {min(ratios):.2f}x | {slower} of {len(ratios)}"


def _always(label: str) -> str:
    return _summary([r["ratio"][0] for r in _rows() if r["label"] == label and r.get("ratio")])


def test_the_table_of_policies_is_the_records() -> None:
    won = [[r["ratio"][0] for r in cell if r["verdict"] == "FAST"] for cell in _cells()]
    assert f"| always Triton | {_always('triton')} |" in README
    assert f"| always Numba-CUDA, where it can | {_always('numba-cuda')} |" in README
    assert f"nxcore's rule, on the same timings | {_summary([max(w, default=1.0) for w in won])} |" in re.sub(
        r"\*\*", "", README
    )


def test_no_row_of_a_record_is_wrong_or_below_the_floor() -> None:
    verdicts = {row["verdict"] for row in _rows()}
    assert verdicts <= {"BASE", "FAST", "SAME", "SLOW", "AMBG", "DECLINED"}


def test_every_figure_of_the_demo_is_on_record() -> None:
    shown = re.search(r"\$ make demo\n(.*?)```", README, re.DOTALL)
    assert shown
    record = json.loads(
        (ROOT / "benchmarks/results/amd-epyc-2-cores/2026-11-21-demo.json").read_text(encoding="utf-8")
    )
    reasons = [cell["reason"] for cell in record["cells"]]
    chosen = re.findall(r"chosen: \S+ \((.*)\)", shown[1])
    assert chosen
    assert set(chosen) <= set(reasons)
