"""The architecture's gradient of one step, first and second order: Liu, Simonyan, Yang 2019, section 2.3.

The optimal architecture minimises the validation loss at the weights that minimise the training loss. Both
functions approximate those weights: by one step of gradient descent, or by the current ones.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from nxcore.nas.architecture import ArchitectureParameters
from nxcore.nas.data import Split

RADIUS = 0.01
"""The distance of the finite difference from the weights, in the 2-norm, as in the paper."""


class Descent(NamedTuple):
    """The result of one step of the architecture.

    Attributes
    ----------
    loss : Tensor
        The loss of the validation batch, a scalar.
    scores : Tensor
        The scores of its images, (N, classes).
    gradient : Tensor
        The gradient of the loss with respect to ``arch.logits``.
    """

    loss: Tensor
    scores: Tensor
    gradient: Tensor


def first_order(net: nn.Module, arch: ArchitectureParameters, validation: Split) -> Descent:
    """Return the gradient at the current weights: xi = 0 in the paper.

    Parameters
    ----------
    net : Module
        Called with images and ``*arch()``.
    arch : ArchitectureParameters
    validation : Split
        A batch.

    Examples
    --------
    >>> net = nas.SearchNetwork(2, num_classes=2, layers=1, steps=1, multiplier=1)
    >>> arch = nas.ArchitectureParameters(steps=1, multiplier=1)
    >>> batch = nas.data.Split(torch.randn(2, 3, 8, 8), torch.arange(2))
    >>> nas.bilevel.first_order(net, arch, batch).gradient.shape
    torch.Size([2, 2, 8])
    """
    # Leaves of this call: autograd ties a parameter to the stream of its first call, which no graph enters.
    rows = [row.detach().requires_grad_() for row in arch()]
    scores = net(validation.images, *rows)
    loss = functional.cross_entropy(scores, validation.labels)
    gradient = torch.stack(torch.autograd.grad(loss, rows, materialize_grads=True))
    return Descent(loss.detach(), scores.detach(), gradient)


def second_order(
    net: nn.Module,
    arch: ArchitectureParameters,
    train: Split,
    validation: Split,
    lr: float,
    *,
    velocity: Mapping[str, Tensor] | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> Descent:
    """Return the gradient through one step of the weights; the mixed term by finite differences, eq. 7 and 8.

    The weights and the statistics of batch norms do not change.

    Parameters
    ----------
    net, arch, validation
        As in ``first_order``.
    train : Split
        The batch of the weights' step.
    lr : float
        The learning rate of that step: xi in the paper.
    velocity : mapping of str to Tensor, optional
        SGD's momentum buffer of each parameter, by name.
    momentum, weight_decay : float
        SGD's momentum and weight decay in that step.
    """
    weights = {name: p for name, p in net.named_parameters() if p.requires_grad}
    step = torch.autograd.grad(
        _loss(net, weights, arch, train)[0], list(weights.values()), materialize_grads=True
    )
    ahead: dict[str, Tensor] = {}
    with torch.no_grad():
        for (name, w), g in zip(weights.items(), step, strict=True):
            moved = g + weight_decay * w
            if velocity is not None and name in velocity:
                moved = moved + momentum * velocity[name]
            ahead[name] = (w - lr * moved).requires_grad_()
    loss, scores = _loss(net, ahead, arch, validation)
    direct, *back = torch.autograd.grad(loss, [arch.logits, *ahead.values()], materialize_grads=True)
    with torch.no_grad():
        norm = torch.stack(torch._foreach_norm(back)).norm()  # noqa: SLF001  as torch's own clip_grad_norm_
        epsilon = RADIUS / norm.clamp_min(torch.finfo(norm.dtype).tiny)
    sides = []
    for sign in (1, -1):
        beside = {
            name: w.detach() + sign * epsilon * g for (name, w), g in zip(weights.items(), back, strict=True)
        }
        (side,) = torch.autograd.grad(_loss(net, beside, arch, train)[0], [arch.logits])
        sides.append(side)
    mixed = (sides[0] - sides[1]) / (2 * epsilon)
    return Descent(loss.detach(), scores.detach(), direct - lr * mixed)


def _loss(
    net: nn.Module, weights: Mapping[str, Tensor], arch: ArchitectureParameters, batch: Split
) -> tuple[Tensor, Tensor]:
    """Return loss and scores with other weights; batch norms write into copies."""
    buffers = {name: b.clone() for name, b in net.named_buffers()}
    scores = functional_call(net, {**weights, **buffers}, (batch.images, *arch()))
    return functional.cross_entropy(scores, batch.labels), scores
