"""Torch's tools that take a whole model take an accelerated one, or say what to do before."""

import copy
import pickle

import pytest
import torch
from torch import nn

import nxcore
from tests.table import for_each

pytestmark = pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning",
    "ignore:.torch.jit:DeprecationWarning",  # torch's advice to its users
)
X = torch.randn(2, 4, 12, 12)


class Net(nn.Module):
    """A module of each kind, as a user writes a model."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2)
        )
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.pool(self.features(x)).flatten(1))


@pytest.fixture(params=[False, True], ids=["bare", "watched"])
def models(request):
    """An accelerated model, with or without a watch over its steps, and the same one without nxcore."""
    torch.manual_seed(0)
    plain = Net().eval()
    model = copy.deepcopy(plain)
    nxcore.accelerate(model, watch=request.param, graphs=request.param)
    return model, plain


TOOLS = {
    "trace": lambda model: torch.jit.trace(model, X),
    "export": lambda model: torch.export.export(model, (X,)).module(),
    "compile": lambda model: torch.compile(model, backend="eager", fullgraph=True),
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "data parallel": nn.DataParallel,
}


@for_each("tool", TOOLS.values(), ids=TOOLS)
def test_the_result_computes_what_the_plain_model_does(models, tool):
    model, plain = models
    torch.testing.assert_close(tool(model)(X), plain(X))
    torch.testing.assert_close(model(X), plain(X))
    assert isinstance(model.features[0], nxcore.nn.Conv2d)  # the model itself stays accelerated


def test_a_state_dict_goes_both_ways(models):
    model, plain = models
    assert list(model.state_dict()) == list(plain.state_dict())
    for target, source in ((plain, model), (model, plain)):
        with torch.no_grad():
            source.head.weight.add_(1.0)
        target.load_state_dict(source.state_dict())
        torch.testing.assert_close(target(X), source(X))


def test_script_names_what_to_call_before(models):
    model, plain = models
    with pytest.raises(nxcore.errors.InvalidInputError, match=r"call nxcore\.restore\(model\) before"):
        torch.jit.script(model)
    assert isinstance(model.features[0], nxcore.nn.Conv2d)
    nxcore.restore(model)
    torch.testing.assert_close(torch.jit.script(model)(X), plain(X))
    nxcore.accelerate(model)
    torch.testing.assert_close(model(X), plain(X))


def test_script_names_torchs_class_of_a_module_that_was_made_as_ours():
    message = r"use torch\.nn\.AvgPool2d in place of nxcore\.nn\.AvgPool2d"
    with pytest.raises(nxcore.errors.InvalidInputError, match=message):
        torch.jit.script(nn.Sequential(nxcore.nn.AvgPool2d(2)))
