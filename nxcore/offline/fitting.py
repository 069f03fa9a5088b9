"""Fitting: whether a problem may be that of a module's calls, by its parameters and their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from nxcore.nn.activations import FUNCTIONS
from nxcore.nn.exchange import awake
from nxcore.nn.swap import OURS

OPERATORS: Mapping[str, tuple[str, ...]] = {
    "MaxPool2d": ("max_pool2d", "max_pool2d_with_offsets"),
    "AvgPool2d": ("avg_pool2d",),
    "AdaptiveAvgPool2d": ("global_avg_pool2d",),
    "AdaptiveMaxPool2d": ("global_max_pool2d", "global_max_pool2d_with_offsets"),
    "Conv2d": ("depthwise_conv2d",),
    "BatchNorm2d": ("batch_norm",),
    "Softmax": ("softmax",),
    "LogSoftmax": ("log_softmax",),
    "Embedding": ("embedding",),
    "LayerNorm": ("layer_norm",),
    "RMSNorm": ("rms_norm",),
    "GroupNorm": ("group_norm",),
}
"""A class -> its operator, and the one that runs where a gradient is needed.

A ``Sequential`` doesn't have the parameters of its operators under the same names.
"""


def operators(module: nn.Module) -> tuple[str, ...]:
    """Return the operators that a module of torch's class or of nxcore's calls; none if that isn't known.

    >>> operators(torch.nn.MaxPool2d(2))
    ('max_pool2d', 'max_pool2d_with_offsets')
    """
    cls = awake(module)
    ours = OURS.get(cls, cls)
    return (FUNCTIONS[ours][0],) if ours in FUNCTIONS else OPERATORS.get(ours.__name__, ())


def fits(module: nn.Module, facts: Mapping[str, Any]) -> bool:
    """Return whether a problem, as the key of a record has it, may be that of a call of ``module``.

    Static parameters are compared by name, and the shapes of parameters. A module doesn't know how large an
    image is, nor, where it has no parameter, how many channels that has.
    """
    if facts.get("op") not in operators(module):
        return False
    for name, value in facts.items():
        mine = getattr(module, name, None)
        if isinstance(mine, Tensor):
            if not isinstance(value, dict) or list(mine.shape) != value.get("shape"):
                return False
        elif isinstance(mine, int | float | tuple | list) and _pair(mine) != _pair(value):
            return False
    return True


def _pair(value: Any) -> Any:
    """Return a number as the pair that it stands for."""
    if isinstance(value, tuple | list):
        return list(value)
    return [value, value]
