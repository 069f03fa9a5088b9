"""A kernel that becomes wrong in replays is convicted by a call that runs now and then."""

import itertools
import math

import pytest
import torch
from torch import nn

from nxcore.context import KernelWarning
from nxcore.graphs.part import REPLAYS, SETTLED
from nxcore.nn import Part
from tests.nn.tape import Tape
from tests.null.choose.learn.test_watch import NOW, watching
from tests.null.fakes import SPECS

CALLS, WRONG = itertools.count(), [math.inf]


@torch.library.custom_op("nxcore_tests::sum_of_two", mutates_args=())
def sum_of_two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Add; be wrong from some call on, replayed or not."""
    return x + y + (1 if next(CALLS) >= WRONG[0] else 0)


def added(x, y, alpha, out):
    if isinstance(y, torch.Tensor) and y.dtype == x.dtype and out is None and alpha == 1:
        return sum_of_two(x, y)
    return SPECS["add"].reference(x, y, alpha, out)


@pytest.mark.parametrize("cells", [1, 3])
def test_a_kernel_that_is_wrong_from_some_replay_on_is_convicted_within_a_thousand(cells, as_default):
    WRONG[0] = math.inf
    session, _ = watching(call=added)
    as_default(session)
    tape = Tape()
    parts = [
        Part(lambda module, x: session.op("add")(module(x), x), lambda device: tape) for _ in range(cells)
    ]
    module, x = nn.Identity(), torch.randn(7, requires_grad=True)

    def step():
        NOW[0] += 0.01
        return [torch.equal(part(module, x), x + x) for part in parts]

    with session.use("watched"):
        right = [step() for _ in range(SETTLED + 30)]
        assert all(map(all, right))
        assert all(part.captured for part in parts), parts[0].state
        WRONG[0] = 0
        with pytest.warns(KernelWarning, match="is in quarantine: wrong in a call"):
            steps = next(n for n in range(1, 2 * REPLAYS) if step() and list(session.gate.quarantine))
        assert steps <= REPLAYS + 1
        assert all(map(all, [step() for _ in range(SETTLED + 30)])), "what replays it is gone"
