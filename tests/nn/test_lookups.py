"""Tools of torch's that look a module up by its exact class find torch's."""

import pytest
import torch
from torch import fx, nn
from torch.ao import quantization
from torch.fx.experimental import optimization
from torch.nn.utils import parametrizations, parametrize

import nxcore
from nxcore.nn.exchange import kind
from nxcore.nn.lookups import FIRST, PREPARED
from nxcore.nn.swap import OURS
from tests.nn.programs import MAKE
from tests.table import for_each

X = torch.linspace(-2, 2, 2 * 4 * 8 * 8).view(2, 4, 8, 8)

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.ao.quantization is deprecated", "ignore:Please use quant_min and quant_max"
)


def made(cls: type[nn.Module]) -> nn.Module:
    return MAKE.get(cls, cls)()


def model() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4), nn.MaxPool2d(2)).eval()


@for_each("cls", OURS, ids=lambda cls: cls.__name__)
def test_who_asks_for_the_class_of_a_module_finds_torchs(cls: type[nn.Module]) -> None:
    ours = getattr(nxcore.nn, cls.__name__)
    module = made(cls)
    module.__class__ = ours
    assert not parametrize.is_parametrized(module), "a question that no class follows"
    assert not hasattr(module, "parametrizations")
    assert kind(module) is ours
    assert parametrize.type_before_parametrizations(module) is cls
    assert type(module) is cls
    own = type("Own", (ours,), {})
    module.__class__ = own
    assert parametrize.type_before_parametrizations(module) is own, "a class of a user's stays"


def test_a_model_with_a_watch_too() -> None:
    class Net(nn.Sequential):
        pass

    net = Net(*model())
    nxcore.accelerate(net)
    assert type(net) is not Net
    assert parametrize.type_before_parametrizations(net) is Net
    assert type(net) is Net
    assert nxcore.restore(net).replaced == {"0": "Conv2d", "1": "BatchNorm2d", "2": "MaxPool2d"}


def test_a_parametrization_is_of_torchs_class() -> None:
    conv = nn.Conv2d(4, 4, 3, groups=4)
    nxcore.accelerate(conv)
    parametrizations.weight_norm(conv)
    assert type(conv).__mro__[1] is nn.Conv2d
    assert nxcore.accelerate(conv).left[""] == "it has parametrizations"
    assert parametrize.is_parametrized(conv)


def test_a_parametrization_of_a_class_derived_from_ours_is_found() -> None:
    class Own(nxcore.nn.Conv2d):
        pass

    conv = Own(4, 4, 3, groups=4)
    want = conv(X)
    parametrizations.weight_norm(conv)
    assert parametrize.is_parametrized(conv, "weight")
    assert parametrize.type_before_parametrizations(conv) is Own
    torch.testing.assert_close(conv(X), want)


def test_norms_are_folded_in_a_copy_and_a_trace_is_of_what_is_there() -> None:
    net = model()
    nxcore.accelerate(net)
    fused = optimization.fuse(net)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fused.modules())
    torch.testing.assert_close(fused(X), net(X))
    assert kind(net[0]) is nxcore.nn.Conv2d
    assert kind(fx.symbolic_trace(net).get_submodule("0")) is nxcore.nn.Conv2d


def test_accelerating_leaves_what_will_be_converted() -> None:
    net = model()
    net[0].qconfig = quantization.get_default_qconfig("x86")
    swap = nxcore.accelerate(net)
    assert swap.left["0"] == PREPARED
    assert "1" in swap.replaced
    assert nxcore.status(net).next == FIRST
    assert type(net[0]) is nn.Conv2d
    nxcore.restore(net)
    assert nxcore.status(net).next != FIRST


def test_a_prepared_copy_is_torchs_and_the_model_is_not() -> None:
    net = model()
    nxcore.accelerate(net)
    net.qconfig = quantization.get_default_qconfig("x86")
    assert nxcore.status(net).next == FIRST
    prepared = quantization.prepare(net)
    assert {type(m).__module__.split(".")[0] for m in prepared.modules()} == {"torch"}
    assert isinstance(net[1], nxcore.nn.BatchNorm2d)
