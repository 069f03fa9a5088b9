"""A patched network without cells that are taken at once: its steps are replayed once its lists are known."""

import pytest

from nxcore import nas
from nxcore.nas import whole
from nxcore.nn import watching
from nxcore.nn import whole as of_models
from tests.nas import spaces
from tests.nas.switches import switch
from tests.nas.test_lists import FORMS, agree, networks
from tests.nn.tape import Tape
from tests.stand_ins import stand_in

of_models_has = stand_in(of_models)

pytestmark = pytest.mark.usefixtures("decided")


@pytest.fixture
def tape(monkeypatch, of_models_has):
    """A recorder for the CPU."""
    made = Tape()
    switch(monkeypatch, whole, on=True)
    of_models_has(available=lambda: True, recorder_of=lambda _: made)
    return made


@pytest.mark.parametrize("watch", [True, False])
def test_a_network_whose_lists_are_taken_is_replayed_whole(watch, tape):
    make, draw = FORMS["dictionary"]
    plain, patched, _ = networks(make, watch=watch)
    assert nas.replays(patched)[""] == "runs: no call in training yet"
    agree(plain, patched, draw, 4)
    states = nas.replays(patched)
    assert states[""].startswith("replays"), states
    assert not any(state.startswith("replays") for name, state in states.items() if name)
    before = tape.replayed
    agree(plain, patched, draw, 1)
    assert tape.replayed == before + 2
    nas.unpatch(patched)
    assert nas.replays(patched) == {}
    assert type(patched) is spaces.Net
    agree(plain, patched, draw, 1)
    assert watching.whole_of(patched) is None
