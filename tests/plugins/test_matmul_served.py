"""Strict products as they are served on a GPU: the page's figures are those of the record."""

import json
import math
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks/results/nvidia-h200/2026-11-26-matmul-served.json"
CASES = json.loads(RECORD.read_text())["cases"]
PAGE = " ".join((ROOT / "docs/performance/matmul.md").read_text().split())


def of_torch(times):
    return min(times["torch"], times["torch again"])


def served_by(name):
    return [case for case in CASES if case["served"] == name]


def test_no_call_that_our_kernels_serve_is_slower():
    ours = served_by("cuda")
    gains = [case["in_a_row"]["gain"] for case in ours]
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    assert not any(case["in_a_row"]["slower"] for case in ours)
    assert f"nxcore-cuda serves {len(ours)} shapes, torch {len(served_by('torch'))}" in PAGE
    assert f"{min(gains):.2f} to {max(gains):.2f} times as fast as torch's, {mean:.2f} in the" in PAGE


def test_what_is_slower_on_the_device_is_the_pages_table_and_torchs_in_a_graph():
    slower = [case for case in CASES if case["slower"]]
    assert len(slower) == 5
    for case in slower:
        device, calls = case["us"], case["in_a_row"]["us"]
        figures = (device["nxcore"], of_torch(device), calls["nxcore"], of_torch(calls))
        cells = (*(f"{us:.1f}" for us in figures), f"{case['in_a_row']['gain']:.2f}", "torch")
        assert case["captured"] == "torch"
        assert f"| {case['case']['name']} | {' | '.join(cells)} |" in PAGE


def test_what_torch_serves_takes_the_device_as_long():
    cases = served_by("torch")
    shares = [case["us"]["nxcore"] / of_torch(case["us"]) for case in cases]
    more = [
        case["in_a_row"]["us"]["nxcore"] - of_torch(case["in_a_row"]["us"])
        for case in cases
        if case["in_a_row"]["slower"]
    ]
    assert not any(case["slower"] for case in cases)
    assert f"{min(shares):.3f} to {max(shares):.3f} of its time" in PAGE
    assert len(more) == 9
    assert f"by {min(more):.1f} to {max(more):.1f} us" in PAGE
