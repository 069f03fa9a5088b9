"""Exploration adds at most 5% to the run that it learns from.

The limit holds for the median of several runs, minus the noise between two runs of torch. These runs are too
short to compile kernels, which keeps the overhead low. In a longer one, torch's idioms are verified and take
turns.
"""

from __future__ import annotations

import statistics
from typing import Any

import online
import program
import pytest

from nxcore.choose.learn import lesson
from nxcore.registry.discovery import discover

CALLS = {
    "add of 16": 10_000,
    "add of 65,536": 10_000,
    "sum of (512, 512) over 0": 10_000,
    "softmax_sum of 8 x (8, 16, 16, 16)": 5_000,
    "softmax_sum_backward of 8 x (8, 16, 16, 16)": 1_000,
    "max_pool2d of (8, 16, 32, 32) by 3": 500,
    "depthwise_conv2d of (8, 16, 32, 32) by 3": 500,
    "depthwise_conv2d_backward of (8, 16, 32, 32) by 3": 500,
    "gradient of weighted_sum of 8 x (2, 4, 8, 8)": 5_000,
    "gradient of avg_pool2d of (2, 4, 8, 8) by 3": 10_000,
    "gradient of max_pool2d of (2, 4, 8, 8) by 3": 10_000,
    "gradient of depthwise_conv2d of (2, 4, 8, 8) by 3": 5_000,
}
ENOUGH_S = 0.5


@pytest.mark.parametrize("case", CALLS)
def test_a_run_that_learns_stays_within_its_budget(case: str, record_property: Any) -> None:
    row = online.measured(case, CALLS[case], discover(), enough_s=ENOUGH_S, rounds=3)
    record_property("cost", row.cost)
    print(f"\n{row}")
    assert row.cost <= row.budget + abs(row.noise)


@pytest.mark.parametrize(
    ("case", "calls"),
    [
        ("softmax_sum of 8 x (8, 16, 16, 16)", 40_000),
        ("gradient of weighted_sum of 8 x (2, 4, 8, 8)", 20_000),
    ],
)
def test_so_does_one_in_which_torchs_own_ways_take_turns(
    case: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lesson, "UNKNOWN_S", 0.002)  # else verifying waits for half a minute
    row = online.measured(case, calls, discover(found=()), enough_s=0.0)
    print(f"\n{row}")
    assert row.rule in ("measured", "reference"), "exploration ended"
    assert row.cost <= row.budget + abs(row.noise)


@pytest.mark.parametrize("compiling", [False, True], ids=["on disk", "compiled"])
def test_a_program_of_half_a_minute_gets_its_kernels_and_loses_little(
    compiling: bool, record_property: Any
) -> None:
    found = program.pairs(3, compiling=compiling)
    print("", *found, sep="\n")
    loss = statistics.median(pair.loss for pair in found)
    record_property("loss", loss)
    limit = program.COMPILED_S if compiling else program.ON_DISK_S
    for pair in found:
        assert pair.nxcore.since.keys() == {"softmax_sum", "sum"}
        assert max(pair.nxcore.since.values()) <= limit
    assert loss <= program.LOSS
