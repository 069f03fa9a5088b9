"""A batch norm with given statistics and what follows it, an activation or a sum or both, as one expression.

The result has the dtype of ``x``, as torch's function has: under autocast statistics have another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nxcore.expression.build import finished
from nxcore.expression.grammar import parsed
from nxcore.expression.operator import specs
from nxcore.expression.tree import Node
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
    "sum": (lambda x: x, {}),
    "relu_sum": (functional.relu, {}),
}
"""The function after the norm, in torch, and its numbers; ``normed_relu`` is an operator.

In those that end with ``sum``, ``y`` is added before.
"""


def normed(activation: str) -> tuple[OpSpec, ...]:
    """Return the specs of the operator of a batch norm and an activation.

    >>> [spec.signature for spec in normed("relu")[:1]]
    ['(x, mean, var, weight, bias, eps=1e-05, *, out=None)']
    """
    function, numbers = NORMED[activation]
    inner = "(x - mean) * (rsqrt(var + eps) * weight) + bias"
    if activation.endswith("sum"):
        inner += " + y"
    called = activation.removesuffix("sum").removesuffix("_")
    text = f"{called}({', '.join([inner, *numbers])})"
    chain = parsed(text, {"eps": 1e-5} | dict(numbers))
    whole = finished(Node("cast", chain.roots, "x"), chain.tensors, chain.numbers)
    forward, *backward = specs(whole, f"normed_{activation}", keyword=False)
    return replace(forward, reference=as_modules(forward.reference, function)), *backward


def as_modules(chain: Function, activation: Function) -> Function:
    """Return the reference: torch's two functions where they compute it, else the chain.

    Kernels are compared with what torch's modules would run.
    """

    @functools.wraps(chain)
    def reference(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        given, out = (mean, var, weight, bias), rest[-1]
        others = [t for t in rest[:-1] if isinstance(t, Tensor)]
        if out is not None or not per_channel(x, *given) or not all(map(x.is_same_size, others)):
            return chain(x, *given, *rest[:-1], out=out)
        eps, *numbers = rest[len(others) : -1]
        found = functional.batch_norm(
            x, mean.flatten(), var.flatten(), weight.flatten(), bias.flatten(), eps=eps
        )
        for other in others:
            found = (found + other).to(x.dtype)
        return activation(found, *numbers)

    return reference


def per_channel(x: Tensor, mean: Tensor, var: Tensor, *others: Tensor) -> bool:
    """Return whether ``x`` holds images, and the others a number for each of their channels."""
    if x.ndim != 4 or not x.is_floating_point() or mean.requires_grad or var.requires_grad:
        return False
    shape, dtypes = torch.Size((x.shape[1], 1, 1)), (x.dtype, torch.promote_types(x.dtype, torch.float32))
    state = mean, var, *others
    return mean.dtype in dtypes and all(t.shape == shape and t.dtype is mean.dtype for t in state)
