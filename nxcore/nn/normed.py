"""A batch norm in evaluation and the activation after it, computed by one operator where that is faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nxcore.call.operator import Operator
from nxcore.errors import InvalidInputError
from nxcore.expression.normed import NORMED
from nxcore.graphs.hooks import hooked, saving
from nxcore.nn.activations import FUNCTIONS, operator
from nxcore.nn.exchange import kinds
from nxcore.nn.modules import BatchNorm2d
from nxcore.program.passes.operators import FEWEST, in_format

Call = tuple[Operator, tuple[Any, ...]]

NORMS = kinds(BatchNorm2d)
ACTIVATIONS = {cls: found for cls, found in FUNCTIONS.items() if found[0] in NORMED}
"""Torch's module, and ours -> the activation, and the attributes that are its numbers."""

STATE = ("running_mean", "running_var", "weight", "bias")


def is_pair(layers: Sequence[Any]) -> bool:
    """Return whether these are a batch norm with statistics and weights, and an activation."""
    if len(layers) != 2 or type(layers[0]) not in NORMS or type(layers[1]) not in ACTIVATIONS:
        return False
    norm = layers[0]
    whole = norm.running_mean is not None and norm.weight is not None and norm.bias is not None
    return whole and not any("forward" in vars(layer) for layer in layers)  # replaced by a user


def served(layers: Sequence[Any], x: Any) -> tuple[Any, tuple[Call, ...] | None]:
    """Run both; by one operator where a kernel is chosen.

    Also return the call that torch serves instead: none where it always does; None where a kernel served.
    """
    norm, activation = layers
    calls: tuple[Call, ...] = ()
    if _fits(norm, activation, x):
        name, numbers = ACTIVATIONS[type(activation)]
        if getattr(activation, "approximate", "none") == "tanh":
            name = "gelu_tanh"
        state = (getattr(norm, each).view(-1, 1, 1) for each in STATE)
        given = (x, *state, norm.eps, *(getattr(activation, each) for each in numbers), None)
        called = operator(f"normed_{name}")
        try:
            found = called.by_kernel(*given)
        except InvalidInputError:
            found = None  # torch's layers raise their own message
        if found is not None:
            return found, None
        calls = ((called, given),)
    return activation(norm(x)), calls


def _fits(norm: Any, activation: Any, x: Any) -> bool:
    """Return whether one operator computes what both modules do."""
    if norm.training or not isinstance(x, Tensor) or x.ndim != 4 or hooked(norm, activation) or saving():
        return False
    if torch.compiler.is_compiling() or x.numel() < FEWEST:  # a compiler fuses them with what surrounds them
        return False
    weight = norm.weight
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or norm.bias.requires_grad):
        return False
    return in_format(x) and x.dtype is weight.dtype and weight.dtype is norm.running_mean.dtype
