"""What the benchmarks of calls compare with: memory that stays, and autograd alone."""

from __future__ import annotations

import time

import pytest
import torch

from benchmarks import claims, memory, stages


def test_memory_that_stays_is_seen_by_both_measures_and_what_is_freed_by_none():
    kept = []
    grown = memory.grown(lambda i: kept.append(b"x" * 100_000), 100, 10)
    assert grown.allocated == pytest.approx(100 * 100_000 / 1024, rel=0.1)
    assert grown.resident > 0.9 * grown.allocated
    assert abs(memory.grown(lambda i: b"x" * 100_000, 100, 10).allocated) < 100


def test_small_objects_of_python_are_seen():
    kept = []
    grown = memory.grown(lambda i: kept.append(float(i)), 100_000, 0)
    assert grown.allocated > 100_000 * 24 / 1024


@pytest.mark.parametrize("count", [1, 3])
def test_a_sum_that_computes_nothing_has_a_node_with_the_same_leaves(count):
    xs, logits = [torch.randn(2, 3, requires_grad=True) for _ in range(count)], torch.randn(count)
    logits.requires_grad_()
    nothing = claims.emptied(xs, logits)
    result = nothing(xs, logits)
    assert [node.variable for node, _ in result.grad_fn.next_functions if node] == [*xs, logits]
    for _ in range(2):
        grads = torch.autograd.grad(nothing(xs, logits), [*xs, logits], torch.ones(2, 3))
        assert [g.shape for g in grads] == [t.shape for t in (*xs, logits)]


def test_what_a_first_call_prepares_makes_no_round_short():
    calls = []

    def call():
        calls.append(1)
        if len(calls) == 1:
            time.sleep(0.1)

    stages.least_us(call, cuda=False, rounds=2)
    assert len(calls) > 2 * 100
