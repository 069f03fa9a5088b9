"""A mutation: the supernet grows between two epochs of a search, and computes the same function."""

import torch
from torch import Tensor
from torch.optim import Optimizer

from nxcore.nas.architecture import ArchitectureParameters
from nxcore.nas.growth import add_node, deepen, widen
from nxcore.nas.networks import SearchNetwork
from nxcore.nas.preset import Mutation


def mutate(
    mutation: Mutation,
    net: SearchNetwork,
    arch: ArchitectureParameters,
    optimizers: tuple[Optimizer, Optimizer],
    images: Tensor,
    generator: torch.Generator,
) -> tuple[SearchNetwork, ArchitectureParameters, float]:
    """Grow a network, which may change, and its architecture where that must grow too.

    Return them with the largest difference of scores on ``images``, with running statistics. The optimizers
    of weights and architecture become those of the result, with parameters in the order of the modules.
    """
    before = _scores(net, arch, images)
    of_weights, of_architecture = optimizers
    if mutation.kind == "widen":
        net = widen(net, mutation.size, of_weights, noise=mutation.noise, generator=generator)
    elif mutation.kind == "deepen":
        deepen(net, mutation.size, of_weights)
    else:
        net, arch = add_node(net, arch, of_weights, of_architecture, generator=generator)
    for optimizer, module in zip(optimizers, (net, arch), strict=True):
        (group,) = optimizer.param_groups
        group["params"] = list(module.parameters())  # so that a checkpoint finds each by its place
    return net, arch, float((_scores(net, arch, images) - before).abs().max())


@torch.no_grad()
def _scores(net: SearchNetwork, arch: ArchitectureParameters, images: Tensor) -> Tensor:
    training = net.training
    scores: Tensor = net.eval()(images, *arch())
    net.train(training)
    return scores
