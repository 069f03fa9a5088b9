"""Sequential: four layers that are one operator, and when they aren't."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import nxcore
from nxcore import nn as ours
from nxcore.nn import activations
from nxcore.nn.exchange import AWAKE, kind
from nxcore.nn.served import look
from tests.stand_ins import stand_in
from tests.table import for_each

nn_relu_has = stand_in(nn.ReLU)

BLOCK, CONVOLUTION = "sep_conv2d_batch_norm", "sep_conv2d"


def block(channels: int = 4, filters: int = 6, **changed: Any) -> list[nn.Module]:
    how = {"padding": 2, "dilation": 2, "groups": channels, "bias": False}
    layers = {
        "relu": nn.ReLU(),
        "depthwise": nn.Conv2d(channels, channels, 3, **how),
        "pointwise": nn.Conv2d(channels, filters, 1, bias=False),
        "norm": nn.BatchNorm2d(filters, affine=False),
    }
    return list((layers | changed).values())


def served(layers: list[nn.Module]) -> tuple[nn.Sequential, nn.Sequential]:
    """Return torch's module and ours, of equal weights."""
    theirs = nn.Sequential(*layers)
    return theirs, ours.Sequential(*copy.deepcopy(layers))


def held_to(theirs: nn.Module, own: nn.Module, device: torch.device, size: int = 8) -> None:
    """Compare results, gradients and running statistics."""
    found: list[list[Tensor]] = []
    x = torch.randn(3, 4, size, size, device=device)
    for module in (theirs.to(device), own.to(device)):
        leaf = x.clone().requires_grad_()
        out = module(leaf * 1.0)  # a layer may write into it
        inputs = [leaf, *module.parameters()]
        # Of what is normalised the sum of squares is a constant, and its gradient nothing but rounding.
        grad = found[0][0].detach().exp() if found else out.detach().exp()
        found.append([out, *torch.autograd.grad(out, inputs, grad), *module.buffers()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_separable_convolution_and_its_norm_are_one_operator(
    affine: bool, training: bool, device: torch.device, ran: list[str]
) -> None:
    norm = nn.BatchNorm2d(6, affine=affine)
    theirs, own = served([*block(norm=norm), nn.Conv2d(6, 2, 1)])
    held_to(theirs.train(training), own.train(training), device)
    assert (BLOCK if training else CONVOLUTION) in ran
    assert ran.count("depthwise_conv2d") == 0


@pytest.mark.parametrize("rests", [True, False])
def test_a_relu_of_ours_begins_a_block_too(
    rests: bool, device: torch.device, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activations, "won", lambda _: not rests)
    theirs, own = served(block())
    own[0] = ours.ReLU().train()
    look(own[0])
    assert (kind(own[0]) in AWAKE) == rests
    held_to(theirs, own, device)
    assert BLOCK in ran


def test_two_in_a_row(device: torch.device, ran: list[str]) -> None:
    torch.manual_seed(0)  # one draw of a hundred has a small variance, which makes rounding large
    theirs, own = served(block(4, 4) + block())
    held_to(theirs, own, device)
    del ran[:]
    own(torch.ones(3, 4, 8, 8, device=device))
    assert ran == [BLOCK, BLOCK]


OTHERS: dict[str, Callable[[], list[nn.Module]]] = {
    "relu in place": lambda: block(relu=nn.ReLU(inplace=True)),
    "another activation": lambda: block(relu=nn.ReLU6()),
    "a bias": lambda: block(pointwise=nn.Conv2d(4, 6, 1)),
    "a depthwise bias": lambda: block(depthwise=nn.Conv2d(4, 4, 3, padding=1, groups=4)),
    "padding of other values": lambda: block(
        depthwise=nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False, padding_mode="reflect")
    ),
    "a pointwise stride": lambda: block(pointwise=nn.Conv2d(4, 6, 1, stride=2, bias=False)),
    "pointwise padding": lambda: block(pointwise=nn.Conv2d(4, 6, 1, padding=1, bias=False)),
    "pointwise groups": lambda: block(pointwise=nn.Conv2d(4, 6, 1, groups=2, bias=False)),
    "not depthwise": lambda: block(depthwise=nn.Conv2d(4, 4, 3, groups=2, bias=False)),
    "a mean of all batches": lambda: block(norm=nn.BatchNorm2d(6, momentum=None)),
    "too few": lambda: block()[:3],
}


@for_each("name", OTHERS)
def test_what_is_something_else_runs_layer_by_layer(name: str, device: torch.device, ran: list[str]) -> None:
    theirs, own = served(OTHERS[name]())
    assert not own.concerns(own)
    held_to(theirs, own, device)
    assert BLOCK not in ran


def test_hooks_see_what_they_would(device: torch.device, ran: list[str]) -> None:
    theirs, own = served(block())
    seen: list[Tensor] = []
    own[2].register_forward_hook(lambda *args: seen.append(args[2].detach()))
    held_to(theirs, own, device)
    assert len(seen) == 1
    assert BLOCK not in ran


def test_hooks_on_all_modules_see_what_they_would(device: torch.device, ran: list[str]) -> None:
    _, own = served(block())
    own.to(device)
    seen: list[type] = []
    handle = nn.modules.module.register_module_forward_hook(lambda *args: seen.append(type(args[0])))
    try:
        own(torch.ones(2, 4, 6, 6, device=device))
    finally:
        handle.remove()
    assert seen == [*map(type, own), type(own)]
    assert BLOCK not in ran


def test_torch_refuses_in_its_own_words() -> None:
    own = ours.Sequential(*block())
    with pytest.raises(RuntimeError, match="to have 4 channels, but got 3"):
        own(torch.randn(2, 3, 8, 8))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        own(torch.randn(1, 4, 1, 1))


def test_statistics_follow_a_checkpointed_block_twice_as_torchs_do(device: torch.device) -> None:
    theirs, own = served(block())
    for module in (theirs.to(device), own.to(device)):
        x = torch.ones(2, 4, 6, 6, device=device, requires_grad=True)
        checkpoint(module, x, use_reentrant=False).sum().backward()
    assert theirs[3].num_batches_tracked == own[3].num_batches_tracked == 2
    torch.testing.assert_close(theirs[3].running_mean, own[3].running_mean)


def test_a_part_of_it_and_its_names_stay(device: torch.device) -> None:
    names = ("relu", "depthwise", "pointwise", "norm")
    own = ours.Sequential(OrderedDict(zip(names, block(), strict=True)))
    assert [name for name, _ in own.named_children()] == list(names)
    assert type(own[:2]) is ours.Sequential
    assert own[:2](torch.ones(1, 4, 6, 6)).shape == (1, 4, 6, 6)


def test_accelerate_takes_those_with_such_layers_alone() -> None:
    class Own(nn.Sequential):
        """Somebody's."""

    model = nn.Sequential(nn.Sequential(*block()), nn.Sequential(nn.Identity()), Own(*block()), Own())
    swap = nxcore.accelerate(model)
    assert (kind(model), type(model[0]), type(model[1])) == (nn.Sequential, ours.Sequential, nn.Sequential)
    assert swap.replaced["0"] == "Sequential"
    assert {n: w for n, w in swap.left.items() if n in ("", "1", "2", "3")} == {
        "2": "Own is a subclass of Sequential: its forward may differ",
        "3": "no operator for Own",
    }
    nxcore.restore(model)
    assert type(model[0]) is nn.Sequential


def test_no_tensor_is_compared_in_a_call(monkeypatch: pytest.MonkeyPatch, ran: list[str]) -> None:
    """``None in (tensor, ...)`` asks whether a tensor equals None, which takes longer than the block."""
    own, x = ours.Sequential(*block()), torch.ones(2, 4, 6, 6)
    own(x)  # verified here

    def refuse(*args: Any) -> Any:
        raise AssertionError(args)

    monkeypatch.setattr(torch.Tensor, "__eq__", refuse)
    own(x)
    assert ran[-1] == BLOCK


def test_where_torch_serves_an_evaluation_it_does_so_layer_by_layer(nn_relu_has) -> None:
    _, own = served(block())
    seen: list[int] = []
    nn_relu_has(forward=lambda _, x: seen.append(1) or torch.relu(x))
    with nxcore.use("torch"), torch.no_grad():
        own.eval()(torch.ones(2, 4, 6, 6))
    assert seen


@pytest.mark.parametrize("trained", [True, False])
def test_where_torch_serves_it_does_so_layer_by_layer(
    trained: bool, device: torch.device, nn_relu_has
) -> None:
    """The operator's reference takes no TF32 and makes statistics: the layers are quicker."""
    theirs, own = served(block())
    x, seen = torch.ones(2, 4, 6, 6, device=device), []
    own.to(device).requires_grad_(trained)
    nn_relu_has(forward=lambda _, x: seen.append(1) or torch.relu(x))
    with nxcore.use("torch"):
        for _ in range(40):
            out = own(x)
            if trained:
                out.sum().backward()
    assert len(seen) > 10  # from where it is known
    assert own[3].num_batches_tracked == 40
    torch.testing.assert_close(out, theirs.to(device)(x))
