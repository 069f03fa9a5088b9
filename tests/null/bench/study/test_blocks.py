"""Times, memory and error: entrants are measured alike, in turns."""

from __future__ import annotations

import gc
import math
import time

import pytest
import torch

from nxcore.bench.study import blocks
from nxcore.bench.study.entrants import ENTRANTS, Bound
from nxcore.bench.study.shapes import Shape

CPU = torch.device("cpu")
QUICK = blocks.Effort(blocks=3, block_s=1e-4)


def bound(label: str, shape: Shape, device: torch.device = CPU) -> Bound:
    (entrant,) = (e for e in ENTRANTS if e.label == label)
    return entrant.bind(*shape.tensors(device), shape.padding)


def test_host_time_ends_when_a_call_returns_and_total_time_with_its_result():
    late = Bound(lambda: None, wait=lambda _: time.sleep(2e-3))
    found = blocks.timed({"late": late, "at once": Bound(lambda: None)}, CPU, QUICK)
    assert min(found["late"].total_us) > 1900
    assert max(found["late"].host_us) < 1000
    assert max(found["at once"].total_us) < 1000
    assert {len(v) for f in found.values() for v in (f.total_us, f.host_us)} == {QUICK.blocks}


def test_entrants_take_turns_and_collection_is_restored():
    order = []
    calls = {name: Bound(lambda name=name: order.append((name, gc.isenabled()))) for name in "ab"}
    blocks.timed(calls, CPU, QUICK)
    turns = [name for i, (name, on) in enumerate(order) if not on and (i == 0 or order[i - 1][0] != name)]
    assert len(turns) >= QUICK.blocks
    assert gc.isenabled()


def test_a_block_of_calls_that_are_not_awaited_counts_the_last_wait():
    waits = []
    found = blocks._issued(Bound(lambda: 1, wait=lambda _: waits.append(time.sleep(1e-3))), 10, CPU)
    assert len(waits) == 1
    assert found[0] > 100 > found[1]


def test_memory_of_im2col_is_its_matrix_and_its_result():
    shape = Shape(32, 5, 2)
    matrix, result = 2 * 4 * 25 * 32 * 32 * 4, 2 * 8 * 32 * 32 * 4
    assert blocks.memory(bound("im2col", shape), CPU) == matrix + result
    assert result <= blocks.memory(bound("torch-conv2d", shape), CPU) < matrix


def test_memory_is_asked_of_the_toolkit_that_knows_it():
    assert blocks.memory(Bound(lambda: None, held=lambda: 7), CPU) == 7


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        (torch.ones(2, 2), 0.0),
        (torch.full((2, 2), 1.5), 0.5),
        (torch.ones(2, 3), math.inf),
        (torch.full((2, 2), math.nan), math.inf),
    ],
)
def test_the_error_is_relative_and_infinite_where_there_is_none(result, wanted):
    assert blocks.error(result, torch.ones(2, 2, dtype=torch.float64)) == wanted


@pytest.mark.gpu
def test_the_profiler_sees_the_kernels():
    device = torch.device("cuda")
    call = bound("torch-conv2d", Shape(128, 7, 3), device)
    call.call()
    found = blocks.device_us(call, device)
    assert found is not None
    assert 1 < found < 1e4
    assert blocks.memory(call, device) >= 2 * 8 * 128 * 128 * 4


def test_an_audit_of_one_call_is_no_part_of_every_call():
    """Two runs of a reference of 11 us, and what compares them, would make 8.7 us of 5.5 us."""
    own, twice = (20, 110.0), (40, 80.0)
    assert blocks.of_a_call([own], 20) == 5.5
    assert blocks.of_a_call([own, twice], 20) == 9.5
    audit = [(2, 21.6), (3, 42.4)]
    assert blocks.of_a_call([own, twice, *audit, (0, 0.0)], 20) == 9.5
