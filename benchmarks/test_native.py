"""The budgets of the compiled path on the CPU, as ratios to torch in one run, at half as much again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.native import Row, beside, gathered, rows, scaling
from nxcore.interop import native
from nxcore.registry.discovery import discover
from nxcore.session import Session
from nxcore.settings import Settings

SLACK = 1.5
"""Hosts differ, and others may use this one."""

ON_A_GPU = ("softmax_sum of 8 beside the loop",)
"""What is a budget for GPUs: on a CPU the kernels decide."""

TENSOR_US = 0.1
"""The budget of a further tensor of a hit."""

NEW_SHAPES, HITS = 1000, 2.0
"""New shapes of a round, and the budget of one beyond torch's own call, in hits."""

BUILD_S = 90.0
"""The seconds of ``make native`` on two cores."""

TOOK = Path(__file__).parents[1] / "native" / "build" / "took.json"

if native.found().extension is None:
    pytest.skip(f"nxcore-native: {native.found().detail}", allow_module_level=True)
if find_spec("numba") is None:
    pytest.skip("numba is not installed: no plan runs without the interpreter", allow_module_level=True)


def test_small_calls_and_gradients_cost_what_torchs_own_do(record_property: Any) -> None:
    # As set: the host's cost of a call; the threads here are the program's own.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    over = []
    try:
        for row in rows("cpu", "numba"):
            record_property(row.name, row.ratio)
            print(f"\n{row.name}: {row.ratio:.2f} of torch's own, budget {row.budget}")
            if row.ratio > SLACK * row.budget and not row.name.startswith(ON_A_GPU):
                over.append(row)
    finally:
        torch.set_num_threads(threads)
    assert not over


def test_a_hit_costs_less_than_pythons(record_property: Any) -> None:
    x, found = torch.randn(8), discover(found=())
    calls = []
    for wanted in (True, False):
        op = Session(Settings(native=wanted), found).op("add")
        op.replan(op.key(x, x, 1, None), lambda *args: args[0])
        for _ in range(3):
            op(x, x)
        calls.append(lambda op=op: op(x, x))
    row: Row = beside("hit", *calls, 1.0, cuda=False)
    record_property("hit", row.ratio)
    print(f"\na hit: {row.ours_us:.2f} us, in Python {row.torch_us:.2f} us")
    assert row.ratio < 1


def test_a_further_tensor_costs_a_tenth_of_a_microsecond(record_property: Any) -> None:
    xs, logits = [torch.randn(1, 1, 4, 4) for _ in range(16)], torch.randn(16)
    with torch.no_grad():
        many, few = gathered(xs, logits), gathered(xs[:1], logits[:1])
        row = beside("15 further tensors", many, few, 1.0, cuda=False)
    each = (row.ours_us - row.torch_us) / 15
    record_property("a further tensor", each)
    print(f"\na hit of 2 tensors: {row.torch_us:.2f} us, of 17: {row.ours_us:.2f}, {each:.3f} each")
    assert each < SLACK * TENSOR_US


def test_a_new_shape_costs_two_hits_and_torchs_own_call(record_property: Any) -> None:
    op = Session(Settings(), discover(found=())).op("add")
    reference, xs = op.spec.reference, [torch.empty(n, 1) for n in range(1, NEW_SHAPES + 1)]

    def us(call: Callable[[torch.Tensor], Any]) -> float:
        began = time.thread_time_ns()
        for x in xs:
            call(x)
        return (time.thread_time_ns() - began) / NEW_SHAPES * 1e-3

    costs, hits = [], []
    for _ in range(30):
        op.forget()
        op(xs[0], xs[0])  # Python checks the first call of a kind
        costs.append((us(lambda x: op(x, x)), us(lambda x: reference(x, x, 1, None))))
        assert not op.plans
        op.replan(op.key(xs[0], xs[0], 1, None), lambda *args: args[0])
        op(xs[0], xs[0])
        hits.append(us(lambda _: op(xs[0], xs[0])))
    ours, torchs = (min(times) for times in zip(*costs, strict=True))
    ratio = (ours - torchs) / min(hits)
    record_property("a new shape", ratio)
    print(f"\na new shape: {ours:.2f} us, torch's own {torchs:.2f}: {ratio:.1f} hits more, budget {HITS}")
    assert ratio < SLACK * HITS


@pytest.mark.parametrize("size", [1024, 16_384])
def test_threads_that_share_a_plan_scale_like_torchs_own(size: int, record_property: Any) -> None:
    # As set: the host's cost of a call; the threads here are the program's own.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ratio = scaling("cpu", "numba", size).ratio
    finally:
        torch.set_num_threads(threads)
    record_property(f"16 threads, {size}", ratio)
    print(f"\n16 threads that add {size}: {ratio:.2f} of torch's rate, budget 0.9")
    assert ratio > 0.9 / SLACK


def test_the_build_took_at_most_a_minute_and_a_half(record_property: Any) -> None:
    if not TOOK.exists():
        pytest.skip("nxcore-native was not built in this clone")
    took = json.loads(TOOK.read_text(encoding="utf-8"))
    # The clock counts what others do on a busy machine. Two cores alone take at most the processor's time.
    seconds = min(took["clock_s"], took["processor_s"])
    record_property("build_s", seconds)
    print(f"\nthe build: {took['clock_s']:.0f} s by the clock, {took['processor_s']:.0f} s of processors")
    assert seconds <= BUILD_S
