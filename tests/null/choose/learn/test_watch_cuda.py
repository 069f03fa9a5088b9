"""Audits on CUDA: compared on the device, told later, and never in a capture."""

import pytest
import torch

from nxcore.context import KernelWarning
from nxcore.session import Session
from nxcore.settings import Settings
from tests.hostile.turning import TURNING
from tests.null import fakes

pytestmark = pytest.mark.gpu

SOON = ("view_of_an_input", "buffer_used_again", "dtype", "strides", "none")


def serving(name):
    hostile = TURNING[name]
    session = Session(Settings(policy="measure"), fakes.registry(hostile.backend("add")), fakes.QUICK)
    session.chooser.watches.wait = lambda seconds: False
    return session, hostile


def arguments():
    return torch.randn(2, 3, 4_001, device="cuda").unbind()


@pytest.mark.parametrize("name", SOON)
def test_what_shows_at_once_is_convicted_in_the_call(name):
    session, hostile = serving(name)
    op = session.op("add")
    with session.use("hostile"):
        op(*arguments())
        hostile.turn("add")
        x, y = arguments()
        expected, results = x + y, []
        with pytest.warns(KernelWarning, match="is in quarantine"):
            results += [op(x.clone(), y), op(x.clone(), y)]
    assert all(torch.equal(r, expected) for r in results)
    (entry,) = session.gate.quarantine
    assert hostile.reason in entry.reason


@pytest.mark.parametrize("name", ["wrong_past_10000", "input_mutated"])
def test_values_are_told_by_a_later_call_and_nothing_waits(name):
    session, hostile = serving(name)
    op = session.op("add")
    with session.use("hostile"):
        op(*arguments())
        torch.cuda.synchronize()
        hostile.turn("add")
        x, y = arguments()
        torch.cuda._sleep(200_000_000)
        op(x.clone(), y)
        assert not torch.cuda.current_stream().query(), "the call waited for the device"
        assert not list(session.gate.quarantine)
        torch.cuda.synchronize()
        with pytest.warns(KernelWarning, match="is in quarantine"):
            result = op(x, y)
    assert torch.equal(result, x + y)
    (entry,) = session.gate.quarantine
    assert hostile.reason in entry.reason


def test_a_capture_is_not_watched():
    session, _ = serving("dtype")
    op, (x, y) = session.op("add"), arguments()
    with session.use("hostile"):
        op(x, y)
        (watch,) = session.chooser.watches._known.values()
        calls, graph = watch._calls, torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = watch.call(x, y, 1, None)
    graph.replay()
    assert torch.equal(out, x + y)
    assert watch._calls == calls
