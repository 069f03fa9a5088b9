"""Modules with torch's constructors, whose ``forward`` calls operators. May import program and below.

Each is a subclass of torch's module of the same name. Where an operator rejects a call, torch's own
``forward`` runs; ``reason`` says why a module always runs torch's.
"""

from __future__ import annotations

from nxcore.graphs.part import Part
from nxcore.nn.activations import (
    ELU,
    GELU,
    Hardsigmoid,
    Hardswish,
    LeakyReLU,
    Mish,
    ReLU,
    Sigmoid,
    SiLU,
    Softplus,
    Tanh,
)
from nxcore.nn.embedding import Embedding
from nxcore.nn.modules import (
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    MaxPool2d,
    SoftmaxSum,
)
from nxcore.nn.norms import GroupNorm, LayerNorm, RMSNorm
from nxcore.nn.sequential import Sequential
from nxcore.nn.softmaxes import CrossEntropyLoss, LogSoftmax, Softmax
from nxcore.nn.swap import Swap, accelerate, restore

__all__ = [
    "ELU",
    "GELU",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AvgPool2d",
    "BatchNorm2d",
    "Conv2d",
    "CrossEntropyLoss",
    "Embedding",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "LayerNorm",
    "LeakyReLU",
    "LogSoftmax",
    "MaxPool2d",
    "Mish",
    "Part",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "SoftmaxSum",
    "Softplus",
    "Swap",
    "Tanh",
    "accelerate",
    "restore",
]
