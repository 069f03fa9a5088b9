"""Within a block the modules of a patched model run by torch's and the user's own code."""

import copy
import threading

import torch
from torch import nn

import nxcore
from nxcore import nas
from nxcore.nn.exchange import Plain
from tests.nas import darts


def kinds(model):
    return [type(m) for m in model.modules()]


def code(model):
    return [type(m).forward for m in model.modules() if m is not model]


def test_every_class_inside_is_the_users_within_the_block_and_ours_after_it():
    net = darts.Network(2, 4, 2, 2)
    own = code(net)
    nas.patch(net, graphs=False, watch=False)
    ours = kinds(net)
    assert code(net) != own
    block = Plain(net)
    for _ in range(2):
        with block:
            assert code(net) == own
        assert kinds(net) == ours
    try:
        with block:
            raise KeyError
    except KeyError:
        assert kinds(net) == ours


def test_another_thread_s_block_changes_nothing_meanwhile():
    net = nn.Sequential(nn.BatchNorm2d(2), nn.MaxPool2d(2))
    nxcore.accelerate(net, watch=False)
    ours, seen = kinds(net), []
    block = Plain(net)

    def other():
        with block:
            seen.append(kinds(net))
        seen.append(kinds(net))

    with block:
        inside = kinds(net)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == [inside, inside]
    assert kinds(net) == ours


def test_a_class_that_was_changed_since_stays():
    net = nn.Sequential(nn.BatchNorm2d(2), nn.MaxPool2d(2))
    nxcore.accelerate(net, watch=False)
    block = Plain(net)
    other = copy.deepcopy(net)
    nxcore.restore(net)
    with block:
        assert kinds(net)[1:] == [nn.BatchNorm2d, nn.MaxPool2d]
    assert kinds(net)[1:] == [nn.BatchNorm2d, nn.MaxPool2d]
    x = torch.randn(2, 2, 4, 4)
    with Plain(other):
        torch.testing.assert_close(other(x), net(x))
