"""Runs for captures: their launches are the interpreter's, as a capture's are, and results are not copied."""

import threading

import pytest
import torch

from nxcore.context import REGIME, as_captured, as_eager
from nxcore.interop import native
from tests.null.choose.learn.test_watch import watching
from tests.null.fakes import SPECS
from tests.null.trust.test_gate import PROBLEM, gated

if native.found().extension is not None:
    from tests.null.interop.test_program import COMPILED, Driver, plan

    @COMPILED
    def test_a_run_for_a_capture_is_pythons_and_a_verification_within_it_is_not(path):
        made, calls = plan(Driver())
        with as_captured():
            made(torch.ones(4), 3)
            assert (len(calls), made.programs()) == (1, 0), "a replay repeats no program"
            with as_eager():
                made(torch.ones(4), 3)
            assert (len(calls), made.programs()) == (1, 1)
        assert not REGIME.captured


def test_a_kernel_is_verified_as_eager_calls_run_it():
    regimes = []

    def add(*args):
        regimes.append(REGIME.captured)
        return SPECS["add"].reference(*args)

    gate, backend, kernel = gated(add)
    with as_captured():
        assert not gate.verify(backend, kernel, PROBLEM).refusal
        assert REGIME.captured
    assert regimes
    assert not any(regimes)


@pytest.mark.parametrize("captured", [True, False])
def test_results_of_a_run_for_a_capture_are_not_copied(captured):
    session, kernel = watching()
    results = []

    def add(*args):
        results.append(SPECS["add"].reference(*args))
        return results[-1]

    kernel.call, x = add, torch.arange(3.0)
    with session.use("watched"):
        session.op("add")(x, x)
        if captured:
            with as_captured():
                found = session.op("add")(x, x)
        else:
            found = session.op("add")(x, x)
    assert found.equal(2 * x)
    assert (found.data_ptr() == results[-1].data_ptr()) is captured


def test_another_thread_that_verifies_leaves_the_run_as_it_is():
    inside, over = threading.Event(), threading.Event()

    def verify():
        with as_eager():
            inside.set()
            over.wait(30)
            assert not REGIME.captured

    thread = threading.Thread(target=verify)
    thread.start()
    inside.wait(30)
    with as_captured():
        assert REGIME.captured
        over.set()
        thread.join()
        assert REGIME.captured
