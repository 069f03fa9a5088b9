"""What a replay of an accelerated classifier launches is what it launched before."""

import itertools

import pytest
import torch
from torch import nn

import nxcore
from tests.golden.launches import held
from tests.nn.networks import NETWORKS, conv_bn_relu
from tests.nn.tape import Tape
from tests.nn.traced import CALLS


def strided() -> nn.Sequential:
    """Return convolutions without a pool, each with a norm."""
    layers = (conv_bn_relu(a, b, 3, stride=2, padding=1) for a, b in itertools.pairwise((3, 8, 16, 32)))
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(5))


MODELS = {**NETWORKS, "strided": strided}


@pytest.mark.parametrize("name", MODELS)
def test_the_launches_of_a_classifier_are_golden(name: str, tape: Tape) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MODELS[name]()
        model(torch.randn(3, 3, 24, 24))
        nxcore.accelerate(model)
        for _ in range(CALLS):
            model(torch.randn(3, 3, 24, 24)).square().sum().backward()
    held(name, tape)
