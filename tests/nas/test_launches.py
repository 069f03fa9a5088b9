"""What a replay of a search network launches is what it launched before."""

import copy

import pytest
import torch

from nxcore import nas
from nxcore.graphs.part import SETTLED
from tests.golden.launches import held
from tests.nas import darts
from tests.nas.test_network import SMALL
from tests.nas.test_replays import agree, taped

pytestmark = pytest.mark.usefixtures("decided", "as_by_default", "served")


@pytest.mark.parametrize("own", [False, True])
def test_the_launches_of_a_search_network_are_golden(own):
    torch.manual_seed(0)
    plain = darts.Network().double()
    if own:
        net = nas.SearchNetwork(**SMALL).double()
        net.load_state_dict(plain.state_dict())
    else:
        net = copy.deepcopy(plain)
        nas.patch(net, watch=False)
    tape = taped(net)
    agree(plain, net, SETTLED)
    held("patched_search", tape)
