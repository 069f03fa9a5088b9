"""Watches: a watched call keeps nothing of its result."""

import gc
import weakref

import pytest
import torch

from nxcore.context import KernelWarning
from tests.null.choose.learn.test_watch import X, watching
from tests.null.fakes import SPECS


@pytest.mark.parametrize("op", ["add", "max_pool2d_with_offsets"])
def test_a_watched_call_keeps_nothing_of_its_result_in_a_cycle(op):
    """A node of autograd would live until Python's collector comes, and could end a capture."""
    session, kernel = watching(op)
    given = (X, X) if op == "add" else (X.view(1, 1, 3, 4), 2)
    with session.use("watched"):
        for _ in range(3):
            gc.collect()
            gc.disable()
            try:
                result = session.op(op)(*given)
                gone = [weakref.ref(t) for t in (result if isinstance(result, tuple) else [result])]
                del result
                assert [ref() for ref in gone] == [None] * len(gone)
            finally:
                gc.enable()
    assert kernel.count


def test_results_that_are_one_tensor_convict_where_torch_returns_two():
    """The program may write into one of them."""

    def call(*args):
        first, second = SPECS["add_backward"].reference(*args)
        same = None not in (first, second) and torch.equal(first, second)
        return (first.clone(),) * 2 if same else (first.clone(), second.clone())

    session, _ = watching("add_backward", call=call)
    with session.use("watched"), pytest.warns(KernelWarning, match="share memory with each other"):
        one, other = session.op("add_backward")(X, X.shape[1:], X.shape[1:])
    assert one.data_ptr() != other.data_ptr()
