"""Whole networks, accelerated and plain, beside the same network in float64."""

import copy

import pytest
import torch
from torch import Tensor, nn

import nxcore
from tests.nn.networks import NETWORKS
from tests.table import for_each

DEPTHWISE = {"depthwise_conv2d", "depthwise_conv2d_backward"}
MAX = {"max_pool2d_with_offsets", "max_pool2d_backward"}
AVERAGE = {"avg_pool2d", "avg_pool2d_backward"}
SEPARABLE = {
    True: {"sep_conv2d_batch_norm", "sep_conv2d_batch_norm_backward"},
    False: {"sep_conv2d", "sep_conv2d_backward"},
}  # in training, and not
HEAD = {"global_avg_pool2d"}  # its gradient is a view
EXPECTED = {
    "mobilenet": DEPTHWISE | HEAD | {"add", "add_backward"},
    "resnet": MAX | AVERAGE,
    "inception": MAX | AVERAGE | HEAD,
    "darts": MAX | AVERAGE,
}


def made(name: str, device: torch.device, **how: bool) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = NETWORKS[name]().to(device), torch.randn(3, 3, 24, 24)
        model(x.to(device))  # statistics that differ from the initial ones, and lazy shapes
    return model.train(**how), x.to(device)


def answers(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the output, every gradient and every buffer after one step."""
    x = x.detach().to(next(model.parameters()).dtype).requires_grad_()
    out = model(x)
    out.square().sum().backward()
    grads = {f"grad of {n}": p.grad for n, p in model.named_parameters()}
    return {"out": out, "grad of x": x.grad, **grads, **dict(model.named_buffers())}


def compare(name: str, device: torch.device, *, train: bool) -> None:
    """Hold an accelerated network to at most twice the plain one's distance from the truth."""
    plain, x = made(name, device, mode=train)
    ours, exact = copy.deepcopy(plain), copy.deepcopy(plain).double()
    assert nxcore.accelerate(ours).replaced
    got, torchs = answers(ours, x), answers(plain, x)
    for key, truth in answers(exact, x).items():
        wrong, allowed = ((a[key].double() - truth.double()).norm() for a in (got, torchs))
        assert wrong <= 2 * allowed + 1e-5 * truth.double().norm(), key


@for_each("train", [True, False], ids=["train", "eval"])
@for_each("name", NETWORKS)
def test_an_accelerated_network_is_as_near_to_the_truth_as_the_plain_one(
    name: str, train: bool, device: torch.device, ran: list[str]
) -> None:
    compare(name, device, train=train)
    assert set(ran) >= EXPECTED[name]
    assert name != "darts" or set(ran) >= SEPARABLE[train]


def test_a_module_on_a_kernel_of_a_plugin() -> None:
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    with nxcore.use("numba"):
        out = nxcore.nn.MaxPool2d(2)(x)
    out.sum().backward()
    got, x.grad = x.grad, None
    torch.testing.assert_close(out, nn.MaxPool2d(2)(x))
    nn.MaxPool2d(2)(x).sum().backward()
    torch.testing.assert_close(got, x.grad)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "triton"])
@for_each("name", NETWORKS)
def test_on_cuda(name: str, backend: str, device: torch.device) -> None:
    with nxcore.use(backend):
        compare(name, device, train=True)
        compare(name, device, train=False)
