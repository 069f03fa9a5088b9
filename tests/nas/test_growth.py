"""A network that has grown computes what it computed, and its training goes on."""

import copy

import pytest
import torch

from nxcore.errors import InvalidInputError
from nxcore.nas import ArchitectureParameters, SearchNetwork, add_node, deepen, widen

SPACE = ("none", "max_pool_3x3", "skip_connect", "sep_conv_3x3", "dil_conv_3x3", "conv_7x1_1x7")
SMALL = {"C": 3, "num_classes": 3, "layers": 3, "steps": 2, "multiplier": 2, "primitives": SPACE}


def trained(dtype=torch.float32, inserted=(), **options):
    """Return a network that has seen some batches, its architecture, and images."""
    torch.manual_seed(0)
    net = SearchNetwork(**{**SMALL, **options}, inserted=inserted).to(dtype)
    arch = ArchitectureParameters(2, SPACE, 2).to(dtype)
    x = torch.randn(4, 3, 8, 8, dtype=dtype)
    with torch.no_grad():
        arch.logits.normal_()
        for name, p in net.named_parameters():
            if name.endswith("gate"):
                p.fill_(0.7)
        for _ in range(2):
            net(x + torch.randn_like(x), *arch())
    return net, arch, x


def backward(net, arch, x):
    scores = net(x, *arch())
    (scores.square() * torch.tensor([1.0, -2.0, 3.0])).sum().backward()
    return scores.detach()


@pytest.mark.parametrize(("C", "dtype"), [(3, torch.float64), (4, torch.float64), (5, torch.float32)])
def test_a_wider_network_computes_the_same_in_eval_and_in_training(C, dtype):
    net, arch, x = trained(dtype, inserted=(1,))
    wide = widen(net, C)
    assert wide.stem[0].out_channels == 3 * C
    assert wide.cells[1].C == 2 * C
    for mode in (False, True):
        old, new = net.train(mode)(x, *arch()), wide.train(mode)(x, *arch())
        assert (old - new).abs().max() < 1e-5
    found = [m.num_batches_tracked for m in wide.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert all(int(n) == 3 for n in found), "with the batches that it has seen"


@pytest.mark.parametrize(
    ("kind", "options"), [("SGD", {"momentum": 0.9}), ("Adam", {}), ("Adam", {"fused": True})], ids=str
)
def test_a_wider_networks_momentum_is_that_of_its_gradients(kind, options):
    net, arch, x = trained(torch.float64, inserted=(1,))
    options = {"lr": 0.0} | options
    optimizer = getattr(torch.optim, kind)(net.parameters(), **options)
    backward(net, arch, x)
    optimizer.step()
    wide = widen(net, 5, optimizer)
    backward(wide, arch, x)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in wide.parameters()]
    assert len(optimizer.state) == len(list(wide.parameters()))
    for name, p in wide.named_parameters():
        state = optimizer.state[p]
        if kind == "SGD":
            torch.testing.assert_close(state["momentum_buffer"], p.grad, msg=name, rtol=1e-6, atol=1e-9)
        else:
            torch.testing.assert_close(state["exp_avg"], 0.1 * p.grad, msg=name, rtol=1e-6, atol=1e-9)
            torch.testing.assert_close(state["exp_avg_sq"], 1e-3 * p.grad**2, msg=name, rtol=1e-6, atol=1e-9)
            assert int(state["step"]) == 1


def test_noise_makes_replicas_differ():
    net, arch, x = trained()
    torch.manual_seed(1)
    wide = widen(net, 5, generator=torch.Generator().manual_seed(0))
    noisy = widen(net, 5, noise=1e-4, generator=torch.Generator().manual_seed(0))
    rows = wide.stem[0].weight.flatten(1)
    assert len(rows.unique(dim=0)) == 9
    assert len(noisy.stem[0].weight.flatten(1).unique(dim=0)) > 9
    torch.testing.assert_close(noisy.eval()(x, *arch()), wide.eval()(x, *arch()), rtol=0.01, atol=0.01)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_deeper_network_computes_the_same_and_the_new_cell_learns(after):
    net, arch, x = trained()
    before = {mode: copy.deepcopy(net).train(mode)(x, *arch()) for mode in (False, True)}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    cell = deepen(net, after, optimizer)
    deepen(net, after + 1, optimizer)  # what was inserted may be followed too
    assert net.cells[after + 1] is cell
    for mode in (False, True):
        assert (net.train(mode)(x, *arch()) - before[mode]).abs().max() < 1e-5
    backward(net, arch, x)
    assert cell.gate.grad != 0
    optimizer.step()
    assert cell.gate != 0
    assert len(optimizer.param_groups[0]["params"]) == len(list(net.parameters()))
    again = SearchNetwork(**SMALL, inserted=net.inserted)
    again.load_state_dict(net.state_dict())
    torch.testing.assert_close(again.eval()(x, *arch()), net.eval()(x, *arch()))


def test_a_node_more_computes_the_same_and_its_logits_are_the_last_rows():
    net, arch, x = trained(torch.float64, inserted=(0,))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9)
    alphas = torch.optim.Adam(arch.parameters(), lr=0.0)
    backward(net, arch, x)
    optimizer.step()
    alphas.step()
    large, grown = add_node(net, arch, optimizer, alphas)
    old = {mode: copy.deepcopy(net).train(mode)(x, *arch()) for mode in (False, True)}
    assert grown.logits.shape == (2, 9, len(SPACE))
    assert torch.equal(grown.logits[:, :5], arch.logits)
    assert (grown.logits[:, 5:].abs() < 0.01).all()
    assert (grown.logits[:, 5:] != 0).all()
    for mode in (False, True):
        torch.testing.assert_close(copy.deepcopy(large).train(mode)(x, *grown()), old[mode])
    backward(large, grown, x)
    kept = alphas.state[grown.logits]["exp_avg"]
    torch.testing.assert_close(kept, 0.1 * grown.logits.grad, rtol=1e-6, atol=1e-9)
    assert not kept[:, 5:].any()
    weight = large.classifier.weight
    momentum = optimizer.state[weight]["momentum_buffer"]
    torch.testing.assert_close(momentum[:, :24], weight.grad[:, :24])
    assert not momentum[:, 24:].any()
    assert weight.grad[:, 24:].any(), "they learn"
    assert len(optimizer.param_groups[0]["params"]) == len(list(large.parameters()))
    assert grown.genotype().normal_concat == (2, 3, 4)


def test_what_growth_refuses():
    net, arch, x = trained()
    with pytest.raises(InvalidInputError, match="C must be at least net's 3, got 2"):
        widen(net, 2)
    with pytest.raises(InvalidInputError, match="after must be a cell's index, 0 to 2, got 3"):
        deepen(net, 3)
    with pytest.raises(InvalidInputError, match="arch must have net's 2 nodes"):
        add_node(net, ArchitectureParameters(3, SPACE, 3))
    optimizer = torch.optim.Adadelta(net.parameters())
    backward(net, arch, x)
    optimizer.step()
    with pytest.raises(InvalidInputError, match="got 'acc_delta' of Adadelta"):
        widen(net, 4, optimizer)
