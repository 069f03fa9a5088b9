"""The page's tables of the loop of a product alone, held to its record, and the machine code of its loops."""

import csv
import importlib
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tests.plugins.test_cuda_products import cuobjdump, needs_nvcc

RESULTS = Path(__file__).parents[2] / "benchmarks/results/nvidia-h200"
PAGE = RESULTS.parents[2] / "docs/performance/matmul_bounds.md"
RECORD = json.loads((RESULTS / "2026-11-26-multiply-adds.json").read_text())
AIMS = {512: 1.5, 1024: 1.5, 2048: 1.2, 4096: 1.2}
KINDS = {
    "registers, 8 x 8, 16 warps": 0,
    "shared, 8 x 8, 16 warps": 2,
    "shared, 8 x 16, 8 warps": 3,
    "shared, 8 x 8, 8 warps": 4,
    "shared, 12 x 16, 8 warps, late": 8,
}
"""Kinds that the page shows, and their calls in the record of counters."""


def times(n):
    """Return the microseconds of a size, by kind."""
    return {row["kind"]: row["us"] for row in RECORD["rows"] if row["n"] == n}


def counters():
    """Return the metrics of each call."""
    found = {}
    with (RESULTS / "2026-11-26-multiply-adds-ncu.csv").open() as file:
        for row in csv.DictReader(file):
            value = float(row["Metric Value"].replace(",", ""))
            found.setdefault(int(row["ID"]), {})[row["Metric Name"].partition(".")[0]] = value
    return found


def test_the_pages_table_of_the_loop_is_the_record():
    page = PAGE.read_text(encoding="utf-8")
    for n, aim in AIMS.items():
        found = times(n)
        cells = [str(n), *(f"{us:.1f}" for us in (found["cublas"], found["cublas"] / aim))]
        assert f"| {' | '.join([*cells, *(f'{found[kind]:.1f}' for kind in KINDS)])} |" in page


@pytest.mark.parametrize("n", [1024, 2048, 4096])
def test_the_loop_alone_takes_longer_than_the_aim(n):
    found = times(n)
    assert min(us for kind, us in found.items() if kind.startswith("shared")) > found["cublas"] / AIMS[n]


def test_the_pages_table_of_the_loops_counters_is_the_record():
    page, found = PAGE.read_text(encoding="utf-8"), counters()
    for kind, call in KINDS.items():
        of = found[call]
        cells = [
            kind,
            f"{of['sm__inst_executed_pipe_fma']:.0f}%",
            f"{of['smsp__issue_active']:.0f}%",
            f"{of['smsp__average_warps_issue_stalled_dispatch_stall_per_issue_active']:.2f}",
            f"{of['l1tex__lsu_writeback_active']:.0f}%",
            f"{of['l1tex__data_bank_conflicts_pipe_lsu']:.0f}",
        ]
        assert f"| {' | '.join(cells)} |" in page


@needs_nvcc
@pytest.mark.slow
def test_a_loop_has_nothing_but_multiply_adds_and_reads(monkeypatch, tmp_path):
    """It keeps its sums in registers, and loads nothing."""
    compiled = importlib.import_module("nxcore_cuda.machine.compile").compiled
    folder = RESULTS.parents[1]
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    monkeypatch.syspath_prepend(folder)
    kinds = importlib.import_module("multiply_adds").KINDS
    for kind in kinds[2:4]:
        (tmp_path / "image.cubin").write_bytes(compiled(kind.text, (9, 0), "multiply_adds", folder))
        command = [cuobjdump(), "-sass", tmp_path / "image.cubin"]
        code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = re.findall(r"^\s+/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\d+ )?([A-Z][A-Z0-9]*)", code, re.MULTILINE)
        assert found.count("FFMA") >= 16 * kind.rows * kind.columns
        assert not {"LDL", "STL", "LDG", "LDGSTS"} & set(found)
