"""accelerate and restore: what changes is a module's class, and it changes back."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

import nxcore
import nxcore.nas
from nxcore.nn.activations import NOT_WON
from nxcore.nn.exchange import kind
from tests.table import for_each


class Subclass(nn.MaxPool2d):
    """Has a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -super().forward(-x)


def model() -> nn.Sequential:
    pool = nn.MaxPool2d(3, 1, 1)
    return nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.ModuleDict({"pool": pool, "other": nn.ModuleList([nn.AvgPool2d(2), pool])}),
        parametrizations.weight_norm(nn.Conv2d(4, 4, 3, groups=4)),
        Subclass(2),
        nn.Conv2d(4, 8, 1),
        nn.ReLU(),
        nn.BatchNorm2d(8),
        nn.SyncBatchNorm(8),
    )


def classes(module: nn.Module) -> list[type]:
    return [kind(m) for m in module.modules()]


def test_what_is_replaced_and_what_is_left_is_said_with_the_reason() -> None:
    swap = nxcore.accelerate(model())
    assert swap.replaced == {
        "0": "Conv2d",
        "1.pool": "MaxPool2d",
        "1.other.0": "AvgPool2d",
        "6": "BatchNorm2d",
    }
    assert swap.left == {
        "2": "it has parametrizations",
        "2.parametrizations.weight.0": "no operator for _WeightNorm",
        "3": "Subclass is a subclass of MaxPool2d: its forward may differ",
        "4": "not depthwise: groups 1, in_channels 4 and out_channels 8 must be equal",
        "5": NOT_WON,
        "7": "no operator for SyncBatchNorm",
    }
    assert swap.to_dict() == {"replaced": swap.replaced, "left": swap.left, "replays": "", "gains": None}
    text = str(swap)
    assert text.startswith("replaced 4, left 6\n  0: Conv2d\n")
    assert "\n  left 1: it has parametrizations" in text


def test_restoring_gives_back_the_very_same_model() -> None:
    plain = model()
    before = {name: (m, type(m), dict(vars(m))) for name, m in plain.named_modules(remove_duplicate=False)}
    parameters, names = list(plain.parameters()), list(plain.state_dict())
    replaced = nxcore.accelerate(plain).replaced
    assert list(plain.state_dict()) == names
    assert all(p is q for p, q in zip(plain.parameters(), parameters, strict=True))
    assert type(plain[1]["pool"]) is nxcore.nn.MaxPool2d
    assert nxcore.restore(plain).replaced == replaced
    for name, m in plain.named_modules(remove_duplicate=False):
        assert before[name] == (m, type(m), vars(m))
    assert nxcore.restore(plain).replaced == {}


def test_accelerating_twice_changes_nothing_more() -> None:
    plain = model()
    swap = nxcore.accelerate(plain)
    once = classes(plain)
    assert nxcore.accelerate(plain) == swap
    assert classes(plain) == once


def test_a_shared_module_stays_one_and_a_model_may_be_a_module() -> None:
    plain = model()
    nxcore.accelerate(plain)
    assert plain[1]["pool"] is plain[1]["other"][1]
    pool = nn.MaxPool2d(2)
    assert nxcore.accelerate(pool).replaced == {"": "MaxPool2d"}
    assert str(nxcore.accelerate(nn.AvgPool2d(2))).endswith("(the model): AvgPool2d")


def test_ones_own_modules_of_ours_are_not_restored() -> None:
    mixed = nn.Sequential(nxcore.nn.MaxPool2d(2), nn.MaxPool2d(2))
    nxcore.accelerate(mixed)
    assert nxcore.restore(mixed).replaced == {"1": "MaxPool2d"}
    assert classes(mixed)[1:] == [nxcore.nn.MaxPool2d, nn.MaxPool2d]


def test_hooks_flags_and_frozen_parameters_are_kept(ran: list[str], device: torch.device) -> None:
    conv = nn.Conv2d(4, 4, 3, groups=4).to(device).eval()
    conv.weight.requires_grad_(False)
    seen: list[str] = []
    conv.register_forward_pre_hook(lambda *_: seen.append("before"))
    conv.register_forward_hook(lambda *_: seen.append("after"))
    conv.register_full_backward_hook(lambda *_: seen.append("backward"))
    nxcore.accelerate(conv)
    conv(torch.ones(1, 4, 5, 5, device=device, requires_grad=True)).sum().backward()
    assert seen == ["before", "after", "backward"]
    assert not conv.training
    assert conv.weight.grad is None
    assert "depthwise_conv2d_backward" in ran


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.spectral_norm:FutureWarning")  # old, still met
def test_a_weight_that_a_hook_computes_is_used(ran: list[str], device: torch.device) -> None:
    conv = spectral_norm(nn.Conv2d(4, 4, 3, groups=4)).to(device).eval()
    x = torch.randn(1, 4, 5, 5, device=device)
    want = conv(x)
    assert nxcore.accelerate(conv).replaced
    torch.testing.assert_close(conv(x), want)
    assert "depthwise_conv2d" in ran


def test_a_replaced_forward_is_left() -> None:
    pool = nn.MaxPool2d(2)
    pool.forward = lambda x: x
    assert nxcore.accelerate(pool).left == {"": "its forward was replaced"}


def test_a_class_that_something_else_changed_since_is_left_and_said() -> None:
    conv = nn.Conv2d(4, 4, 3, groups=4)
    nxcore.accelerate(conv)
    conv.__class__ = type("Sharded", (type(conv),), {})
    assert nxcore.restore(conv).left == {"": "its class was changed since, to Sharded"}


def test_a_copy_and_a_saved_model_are_accelerated_and_can_be_restored(ran: list[str]) -> None:
    plain = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.MaxPool2d(2))
    x = torch.randn(1, 4, 8, 8)
    want = plain(x)
    nxcore.accelerate(plain)
    file = io.BytesIO()
    torch.save(plain, file)
    file.seek(0)
    for other in (copy.deepcopy(plain), torch.load(file, weights_only=False)):
        assert classes(other)[1:] == [nxcore.nn.Conv2d, nxcore.nn.MaxPool2d]
        torch.testing.assert_close(other(x), want)
        nxcore.restore(other)
        assert classes(other)[1:] == [nn.Conv2d, nn.MaxPool2d]
        torch.testing.assert_close(other(x), want)


def test_a_replica_as_data_parallel_makes_it_answers(ran: list[str], device: torch.device) -> None:
    conv = nn.Conv2d(4, 4, 3, groups=4, device=device)
    nxcore.accelerate(conv)
    replica = conv._replicate_for_data_parallel()
    replica.weight, replica.bias = conv.weight.clone(), conv.bias.clone()  # no parameters, as there
    x = torch.randn(1, 4, 5, 5, device=device)
    torch.testing.assert_close(replica(x), conv(x))
    assert type(replica) is nxcore.nn.Conv2d
    assert "depthwise_conv2d" in ran


def test_torch_itself_is_not_touched() -> None:
    functions = (nn.functional.conv2d, nn.functional.max_pool2d, nn.Conv2d.forward, nn.MaxPool2d.forward)
    nxcore.accelerate(model())
    assert functions == (
        nn.functional.conv2d,
        nn.functional.max_pool2d,
        nn.Conv2d.forward,
        nn.MaxPool2d.forward,
    )
    assert type(nn.MaxPool2d(2)) is nn.MaxPool2d


def test_reasons_that_differ_in_numbers_alone_are_one_line() -> None:
    convs = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1), nn.ReLU6())
    swap = nxcore.accelerate(convs)
    assert str(swap).splitlines()[-2:] == ["  left 3: not depthwise", "  left 1: no operator for ReLU6"]
    assert "in_channels 3 and out_channels 8" in swap.left["0"]


@for_each("take", [nxcore.accelerate, nxcore.restore, nxcore.nas.patch, nxcore.nas.unpatch])
def test_what_is_no_module_is_refused(take: Callable[[Any], object]) -> None:
    with pytest.raises(nxcore.errors.InvalidInputError, match=r"model must be a torch\.nn\.Module, got 3,"):
        take(3)


def test_there_is_no_status_of_what_is_no_module() -> None:
    with pytest.raises(nxcore.errors.InvalidInputError, match=r"model must be a torch\.nn\.Module, got 3,"):
        nxcore.status(3)  # type: ignore[arg-type]  # that is the test
