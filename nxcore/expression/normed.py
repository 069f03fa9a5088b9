"""A batch norm with given statistics and the activation after it, as one expression."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.expression.grammar import parsed
from nxcore.expression.operator import specs
from nxcore.spec.spec import OpSpec

Function = Callable[..., Tensor]

NORMED: dict[str, tuple[Function, Mapping[str, float]]] = {
    "relu": (functional.relu, {}),
    "leaky_relu": (functional.leaky_relu, {"negative_slope": 0.01}),
    "elu": (functional.elu, {"alpha": 1.0}),
    "gelu": (functional.gelu, {}),
    "gelu_tanh": (functools.partial(functional.gelu, approximate="tanh"), {}),
    "silu": (functional.silu, {}),
    "mish": (functional.mish, {}),
    "hardswish": (functional.hardswish, {}),
}
"""Each activation in torch, and its numbers; the operator is ``normed_relu`` for one."""


def normed(activation: str) -> tuple[OpSpec, ...]:
    """Return the specs of the operator of a batch norm and an activation.

    >>> [spec.signature for spec in normed("relu")[:1]]
    ['(x, mean, var, weight, bias, eps=1e-05, *, out=None)']
    """
    function, numbers = NORMED[activation]
    inner = ", ".join(["(x - mean) * (rsqrt(var + eps) * weight) + bias", *numbers])
    text, name = f"{activation}({inner})", f"normed_{activation}"
    forward, *backward = specs(parsed(text, {"eps": 1e-5} | dict(numbers)), name, keyword=False)
    return replace(forward, reference=as_modules(forward.reference, function)), *backward


def as_modules(chain: Function, activation: Function) -> Function:
    """Return the reference: torch's two functions where they compute it, else the chain.

    Kernels are compared with what torch's modules would run.
    """

    @functools.wraps(chain)
    def reference(
        x: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, eps: float, *rest: Any
    ) -> Tensor:
        *numbers, out = rest
        given = mean, var, weight, bias
        if out is not None or not per_channel(x, *given):
            return chain(x, *given, eps, *numbers, out=out)
        found = functional.batch_norm(
            x, mean.flatten(), var.flatten(), weight.flatten(), bias.flatten(), eps=eps
        )
        return activation(found, *numbers)

    return reference


def per_channel(x: Tensor, mean: Tensor, var: Tensor, *others: Tensor) -> bool:
    """Return whether ``x`` holds images, and the others a number for each of their channels."""
    if x.ndim != 4 or not x.is_floating_point() or mean.requires_grad or var.requires_grad:
        return False
    shape = torch.Size((x.shape[1], 1, 1))
    return all(t.shape == shape and t.dtype is x.dtype for t in (mean, var, *others))
