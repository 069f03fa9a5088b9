"""A module whose shapes are new in each call is torch's, also where no watch over a model wakes it."""

import copy
import pickle

import pytest
import torch
from torch import nn

import nxcore
from nxcore.nn import modules, sequential, served
from nxcore.nn.exchange import ROAMING
from nxcore.nn.served import AFTER, ALONE, EACH, SEEN
from nxcore.session import Session
from nxcore.settings import Settings
from tests.nn.test_served import MAKE, call, rests, serve_by
from tests.null import fakes


@pytest.fixture
def roaming(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    serve_by(Session(Settings(), fakes.registry(fakes.backend())), monkeypatch)
    pool = nn.MaxPool2d(2)
    nxcore.accelerate(pool)
    meet(pool, range(AFTER))
    return pool


def meet(pool: nn.Module, sizes: range) -> None:
    for n in sizes:
        assert torch.equal(pool(x := torch.rand(1, 4, 8, 8 + n)), nn.functional.max_pool2d(x, 2))


def test_it_runs_torchs_and_looks_at_few_shapes(roaming: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(roaming) is ROAMING[nxcore.nn.MaxPool2d]
    assert (type(roaming).__name__, roaming.reason) == ("MaxPool2d", ALONE)
    monkeypatch.setattr(modules, "by_kernel", None)
    monkeypatch.setattr(served, "SHAPES", 3)
    meet(roaming, range(AFTER, AFTER + 5 * EACH))
    assert len(served._counts[id(roaming)]) == 2


def test_a_shape_that_comes_back_wakes_it_for_good(roaming: nn.Module) -> None:
    x = torch.rand(1, 4, 4, 4)
    call(roaming, EACH * SEEN - 1, x)
    assert rests(roaming)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        call(roaming, EACH, x)
    assert rests(roaming), "a checkpoint would run another class again"
    call(roaming, EACH, x)
    assert type(roaming) is nxcore.nn.MaxPool2d
    meet(roaming, range(AFTER, 3 * AFTER))
    assert type(roaming) is nxcore.nn.MaxPool2d


def test_copies_are_awake_and_torchs_class_comes_back(roaming: nn.Module) -> None:
    for other in (copy.deepcopy(roaming), pickle.loads(pickle.dumps(roaming))):
        assert type(other) is nxcore.nn.MaxPool2d
    key, theirs, x = id(roaming), nn.MaxPool2d(2), torch.rand(1, 4, 8, 8)
    assert torch.equal(torch.compile(roaming, backend="eager", fullgraph=True)(x), theirs(x))
    call(roaming, EACH * SEEN)
    nxcore.restore(roaming)
    assert type(roaming) is nn.MaxPool2d
    assert not any(name.startswith("_nxcore") for name in vars(roaming))
    assert key not in served._counts


def test_a_block_of_such_layers_is_known() -> None:
    layers = MAKE["Sequential"]()
    nxcore.accelerate(layers, watch=False)
    for layer in layers:
        served.rest(layer, counting=True)
    assert type(layers[1]) is ROAMING[nxcore.nn.Conv2d]
    assert sequential.is_block(tuple(layers))
