"""The architecture's gradients are those that exact differentiation gives."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from nxcore.nas import ArchitectureParameters, SearchNetwork, bilevel
from nxcore.nas.data import Split

LR, MOMENTUM, DECAY = 0.3, 0.9, 0.01


class Smooth(nn.Module):
    """Blends three layers by each of its edges' logits; all of it can be differentiated twice."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 3, dtype=torch.float64) for _ in range(3))
        self.norm = nn.BatchNorm1d(3, dtype=torch.float64)

    def forward(self, x, normal, reduce):
        outputs = torch.stack([torch.tanh(layer(x)) for layer in self.layers])
        mixed = [torch.einsum("o,onc->nc", torch.softmax(row, 0), outputs) for row in (*normal, *reduce)]
        return self.norm(sum(i * m for i, m in enumerate(mixed, 1)))


@pytest.fixture
def problem():
    torch.manual_seed(0)
    net = Smooth()
    arch = ArchitectureParameters(steps=1, primitives=("skip_connect", "avg_pool_3x3", "none")).double()
    with torch.no_grad():
        arch.logits.normal_()
    train, validation = (
        Split(torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))) for _ in range(2)
    )
    return net, arch, train, validation


def exact(net, arch, train, validation, velocity, momentum, decay):
    names, weights = zip(*net.named_parameters(), strict=True)

    def loss(values, batch):
        scores = torch.func.functional_call(
            net, dict(zip(names, values, strict=True)), (batch.images, *arch())
        )
        return functional.cross_entropy(scores, batch.labels)

    grads = torch.autograd.grad(loss(weights, train), weights, create_graph=True)
    ahead = [
        w - LR * (g + decay * w + momentum * velocity[n])
        for n, w, g in zip(names, weights, grads, strict=True)
    ]
    return torch.autograd.grad(loss(ahead, validation), [arch.logits])[0]


def test_first_order_is_the_gradient_at_the_weights_as_they_are(problem):
    net, arch, _, validation = problem
    found = bilevel.first_order(net, arch, validation)
    loss = functional.cross_entropy(net(validation.images, *arch()), validation.labels)
    loss.backward()
    torch.testing.assert_close(found.gradient, arch.logits.grad)
    torch.testing.assert_close(found.loss, loss.detach())


def test_first_order_leaves_the_parameters_node_alone(problem):
    """A graph can't be recorded where that is of another stream."""
    net, arch, _, validation = problem
    arch.logits.register_hook(lambda _: pytest.fail("the gradient reached the parameter"))
    bilevel.first_order(net, arch, validation)


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (MOMENTUM, DECAY)])
def test_second_order_is_the_gradient_through_a_step_of_the_weights(problem, momentum, decay, monkeypatch):
    net, arch, train, validation = problem
    velocity = {name: torch.randn_like(p) for name, p in net.named_parameters()}
    want = exact(net, arch, train, validation, velocity, momentum, decay)
    given = {"velocity": velocity, "momentum": momentum, "weight_decay": decay}
    errors = []
    for radius in (bilevel.RADIUS, bilevel.RADIUS / 10):
        monkeypatch.setattr(bilevel, "RADIUS", radius)
        found = bilevel.second_order(net, arch, train, validation, LR, **given).gradient
        errors.append(float((found - want).norm() / want.norm()))
    assert errors[0] < 1e-3
    assert errors[1] < errors[0] / 50, "of the second order in how far it goes"
    direct = bilevel.second_order(net, arch, train, validation, 0.0, **given).gradient
    torch.testing.assert_close(direct, bilevel.first_order(net, arch, validation).gradient)
    assert (want - direct).norm() > 0.01 * want.norm(), "the two orders differ here"


def test_second_order_leaves_the_network_as_it_is():
    torch.manual_seed(0)
    net = SearchNetwork(C=2, num_classes=3, layers=2, steps=1, multiplier=1, in_channels=1)
    arch = ArchitectureParameters(steps=1, multiplier=1)
    train, validation = (Split(torch.randn(4, 1, 8, 8), torch.randint(3, (4,))) for _ in range(2))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = bilevel.second_order(net, arch, train, validation, 0.1)
    assert found.gradient.shape == arch.logits.shape
    assert found.gradient.isfinite().all()
    assert found.scores.shape == (4, 3)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert arch.logits.grad is None
    assert all(p.grad is None for p in net.parameters())
