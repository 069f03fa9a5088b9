"""torch.fx keeps accelerated modules whole, as it keeps torch's."""

import copy
import pickle

import pytest
import torch
from torch import fx, nn

import nxcore
from nxcore.nn import served
from nxcore.nn.exchange import AWAKE, RESTING
from tests.table import for_each


class Net(nn.Module):
    """One module of each kind, two of them in a container, and an inner model."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(4, 4, 3, groups=4),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.GELU(),
            nn.MaxPool2d(2),
            nn.AvgPool2d(2),
        )
        self.pool, self.largest = nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        y = self.features(x)
        return self.head((self.pool(y) + self.largest(y)).flatten(1))


def nodes(model):
    return [(node.op, str(node.target)) for node in fx.symbolic_trace(model).graph.nodes]


def accelerated(watch=True):
    torch.manual_seed(0)
    model = Net()
    for name, module in model.named_modules():
        if name:
            nxcore.accelerate(module, watch=False)
    nxcore.accelerate(model, watch=watch)
    return model


@pytest.mark.parametrize("watch", [False, True], ids=["bare", "watched"])
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_the_graph_of_an_accelerated_model_is_that_of_a_plain_one(watch, training):
    assert nodes(accelerated(watch).train(training)) == nodes(Net())


def test_so_it_is_where_modules_rest():
    model = accelerated()
    for module in model.modules():
        served.rest(module)
    assert any(type(module) in AWAKE for module in model.modules())
    assert nodes(model) == nodes(Net())


def test_an_inner_model_with_a_watch_is_traced():
    assert nodes(nn.Sequential(accelerated())) == nodes(nn.Sequential(Net()))


def test_the_traced_model_computes_the_same_with_the_same_modules():
    model = accelerated().eval()
    graph = fx.symbolic_trace(model)
    x = torch.randn(2, 4, 12, 12)
    assert type(graph.get_submodule("features.0")) is nxcore.nn.Conv2d
    torch.testing.assert_close(graph(x), model(x))
    torch.testing.assert_close(copy.deepcopy(graph)(x), model(x))


@for_each("cls", RESTING, ids=lambda cls: cls.__name__)
def test_only_an_instance_says_that_it_is_torchs(cls):
    sibling = RESTING[cls]
    assert cls.__module__.startswith("nxcore.nn.")
    assert repr(cls) == f"<class '{cls.__module__}.{cls.__name__}'>"
    for kind in (cls, sibling):
        module = object.__new__(kind)
        assert module.__module__ == cls.__bases__[0].__module__ != kind.__module__


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_names_the_class_by_a_plain_string(protocol):
    module = nxcore.nn.Conv2d(4, 4, 3, groups=4)
    text = pickle.dumps(module, protocol)
    assert b"Place" not in text
    assert type(pickle.loads(text)) is nxcore.nn.Conv2d
