"""Out of memory at each place of an accelerated model's replays: torch serves the call, with its numbers."""

import pytest
import torch

from nxcore.program import recording, replay
from nxcore.program.replay import State
from tests.nn.tape import part
from tests.nn.traced import CALLS, agree, two
from tests.null import fakes
from tests.table import for_each

PLACES = {
    "warm-up": (replay, "with_dice"),
    "capture": (recording, "backward_of"),
    "comparison": (replay, "check"),
    "race": (replay, "compared"),
}


@for_each("place", PLACES)
def test_a_recording_without_memory_leaves_all_calls_to_torch(place, tape):
    torch._dynamo.reset()
    ours, plain = two()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*PLACES[place], fakes.raising(torch.OutOfMemoryError))
        agree(ours, plain, CALLS + 1)
    agree(ours, plain, 3)
    assert [r.state for r in part(ours)._replays] in ([State.PLAIN], [])
    assert "there was too little memory for a recording" in part(ours).state
    assert part(ours).captured == 0
