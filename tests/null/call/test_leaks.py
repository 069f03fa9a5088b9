"""Ten thousand calls leave nothing behind, and inference mode changes nothing."""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from nxcore.session import Session
from nxcore.settings import Settings
from tests.null import fakes
from tests.table import for_each

CALLS = 10_000
SHARE = max(1000, CALLS // (2 * len(fakes.DIFFERENTIABLE)))
"""The calls of an operator, of each kind: CALLS and more in all."""
ROUNDS = 4
PATIENCE_S = 2.0
A_LEAK = 0.5
"""Blocks of Python's memory that a call leaves: one and more for a leak, next to none for what is cached."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute on one thread: many small calls wait longer for others than they take.

    What is alive already stays out of the searches for garbage: it may be millions of objects.
    """
    gc.freeze()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def operands(op: str, device: torch.device | str = "cpu") -> tuple[Any, ...]:
    spec = fakes.SPECS[op]
    return spec.tagged("smoke")[0].build(spec, device, torch.float32)


def left(call: Callable[[], object], calls: int) -> float:
    """Return how many blocks of Python's memory a call leaves behind, in the best of some rounds.

    In the first ones something is still imported or cached.
    """
    growth = []
    for _ in range(ROUNDS):
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(calls // ROUNDS):
            call()
        gc.collect()
        growth.append(sys.getallocatedblocks() - before)
    return min(growth) / (calls // ROUNDS)


def differentiating(operator: Any, args: tuple[Any, ...]) -> Callable[[], None]:
    leaves = [leaf for leaf in fakes.leaves(list(args)) if leaf.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_()

    def call() -> None:
        out = fakes.first(fakes.called(operator, args))
        torch.autograd.grad(out, leaves, out.detach())

    return call


def test_a_leak_would_be_seen() -> None:
    kept: list[object] = []
    # What other tests left may be collected meanwhile, and hide it once.
    assert max(left(lambda: kept.append([]), 1000) for _ in range(5)) > A_LEAK


@for_each("op", fakes.DIFFERENTIABLE)
def test_calls_leave_no_object_behind(op: str) -> None:
    session = fakes.session(fakes.backend())
    operator, args = session.op(op), operands(op)
    with session.use("fake"):
        assert left(lambda: fakes.called(operator, args), SHARE) < A_LEAK
        assert left(differentiating(operator, args), SHARE) < A_LEAK
    assert len(operator.plans) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "triton"])
@for_each("op", fakes.DIFFERENTIABLE)
def test_calls_leave_no_memory_of_the_device_behind(op: str, backend: str) -> None:
    # An audit keeps copies until CUDA has reached them.
    session = Session(Settings(audit=False))
    operator, args = session.op(op), operands(op, "cuda")
    with session.use(backend):
        for call in (lambda: fakes.called(operator, args), differentiating(operator, args)):
            left(call, ROUNDS)
            before = torch.cuda.memory_allocated()
            assert left(call, SHARE) < A_LEAK
            until = time.monotonic() + PATIENCE_S  # autograd's thread frees what its last node held
            while torch.cuda.memory_allocated() != before and time.monotonic() < until:
                time.sleep(0.01)
            assert torch.cuda.memory_allocated() == before


@for_each("op", sorted(fakes.SPECS))
def test_inference_mode_is_served_by_the_same_plan(op: str) -> None:
    session = fakes.session(fakes.backend())
    operator, args = session.op(op), operands(op)
    with session.use("fake"):
        with torch.no_grad():
            want = fakes.leaves([fakes.called(operator, args)])
        with torch.inference_mode():
            own = operands(op)
            got = [
                *fakes.leaves([fakes.called(operator, args)]),
                *fakes.leaves([fakes.called(operator, own)]),
            ]
        with torch.no_grad():
            got += fakes.leaves([fakes.called(operator, own)])  # inference tensors, used outside
    assert len(operator.plans) == 1
    for tensor, other in zip(got, want * 3, strict=True):
        torch.testing.assert_close(tensor, other)
