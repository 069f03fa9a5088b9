"""A module's class changes while another thread, or a hook, is within its call."""

import functools
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nxcore
import nxcore.nas
from nxcore.nn.swap import OURS
from tests.nn.programs import MAKE, Net, image, same, step

IMAGE = torch.linspace(-2, 2, 4 * 4096 * 16).view(1, 4, 4096, 16)  # for activations too
STEPS = ((nxcore.accelerate, nxcore.restore), (nxcore.nas.patch, nxcore.nas.unpatch))


def made(cls: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return MAKE.get(cls, cls)()


def outcome(module: nn.Module, x: Tensor) -> Any:
    x = x.clone().requires_grad_()
    y = module(x)
    y.sum().backward()
    return y.detach(), x.grad, dict(module.state_dict())


@pytest.mark.parametrize("cls", OURS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("turn", [nxcore.accelerate, nxcore.restore], ids=["accelerated", "restored"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kernels", [pytest.param(False), pytest.param(True, marks=pytest.mark.slow)])
def test_within_a_module(
    cls: type[nn.Module], turn: Any, training: bool, kernels: bool, request: pytest.FixtureRequest
) -> None:
    if kernels:
        request.getfixturevalue("ran")
    wanted = outcome(made(cls).train(training), IMAGE)
    module = made(cls).train(training)
    if turn is nxcore.restore:
        nxcore.accelerate(module)
    # Torch has looked the forward up before it runs the hooks.
    handle = module.register_forward_pre_hook(lambda m, _: turn(m) and None)
    same(outcome(module, IMAGE), wanted)
    handle.remove()
    nxcore.restore(module)
    assert type(module) is cls


@pytest.mark.parametrize(("do", "undo"), STEPS, ids=["accelerate", "patch"])
@pytest.mark.parametrize("first", [True, False])
def test_within_a_model(do: Any, undo: Any, first: bool) -> None:
    torch.manual_seed(0)
    plain = Net()
    wanted = step(plain, image()), [p.grad for p in plain.parameters()]
    for name in ("", "stem", "mixed", "mixed._ops.2", "mixed._ops.2.1"):
        torch.manual_seed(0)
        model = Net()
        if first:
            do(model)
        turn = functools.partial(undo if first else do, model)
        model.get_submodule(name).register_forward_pre_hook(lambda *_, turn=turn: turn() and None)
        same((step(model, image()), [p.grad for p in model.parameters()]), wanted)


@pytest.fixture
def hasty() -> Iterator[None]:
    """Let threads take turns at nearly each instruction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("do", "undo"), STEPS, ids=["accelerate", "patch"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("seconds", [0.3, pytest.param(3.0, marks=pytest.mark.slow)])
def test_beside_a_thread(do: Any, undo: Any, training: bool, seconds: float) -> None:
    torch.manual_seed(0)
    model, x = Net().train(training), image()
    wanted = model(x).detach()
    failed: list[Any] = []
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            try:
                y = model(x)
                if training:
                    torch.autograd.grad(y.sum(), model.alpha)
                torch.testing.assert_close(y.detach(), wanted, rtol=1e-4, atol=1e-5)
            except Exception as error:  # noqa: BLE001  each is a failure of the test
                failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        do(model)
        undo(model)
    over.set()
    for thread in threads:
        thread.join()
    assert not failed, failed[:3]
    assert type(model) is Net
