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


@torch.library.custom_op("nxcore_tests::wrong_later", mutates_args=["x"])
def wrong_later(x: torch.Tensor) -> None:
    """Be wrong from some call on, replayed or not."""
    x.add_(next(CALLS) >= WRONG[0])


@pytest.mark.parametrize("cells", [1, 3])
def test_a_kernel_that_is_wrong_from_some_replay_on_is_convicted_within_a_thousand(cells, as_default):
    WRONG[0] = math.inf
    session, _ = watching(call=lambda *args: (found := SPECS["add"].reference(*args), wrong_later(found))[0])
    as_default(session)
    tape, session.chooser.watches.convictions = Tape(), 1  # of a kernel that no part has replayed
    parts = [
        Part(lambda module, x: session.op("add")(module(x), x), lambda device: tape) for _ in range(cells)
    ]
    module, x = nn.Identity(), torch.randn(7, requires_grad=True)

    def step():
        NOW[0] += 0.01
        return [torch.equal(part(module, x), x + x) for part in parts]

    with session.use("watched"):
        right = [step() for _ in range(SETTLED + 1)]
        assert all(map(all, right))
        assert all(part.captured for part in parts), parts[0].state
        WRONG[0] = 0
        with pytest.warns(KernelWarning, match="is in quarantine: wrong in a call"):
            steps = next(n for n in range(1, 2 * REPLAYS) if step() and list(session.gate.quarantine))
        assert steps <= REPLAYS + 1
        assert all(map(all, [step() for _ in range(SETTLED + 30)])), "what replays it is gone"
