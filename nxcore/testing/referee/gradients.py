"""Gradients of a candidate and of its reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nxcore.spec.problem import leaves
from nxcore.trust.memory import each


def differentiated(
    function: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the results that need a gradient, and the inputs that they are differentiated by."""
    copies = each(args, lambda t: like(t).requires_grad_(t.is_floating_point()))
    with torch.enable_grad():
        # Of a new node each: a function that writes into its input must not fail because it is a leaf.
        results = leaves(function(*each(copies, lambda t: t.view_as(t))))
        outputs = tuple(y for y in results if y.requires_grad)
    return outputs, tuple(t for t in leaves(copies) if t.requires_grad)


def backward(
    reference: Callable[..., Any], args: tuple[Any, ...], incoming: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Return the gradients of a reference, as a function of its arguments and of the incoming ones."""
    outputs, xs = differentiated(reference, args)
    return gradients(outputs, xs, incoming)


def gradients(
    outputs: tuple[Tensor, ...], xs: tuple[Tensor, ...], incoming: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Return the gradients by all inputs: zeros where an output doesn't depend on one."""
    with torch.enable_grad():
        found = torch.autograd.grad(outputs, xs, incoming, retain_graph=True, allow_unused=True)
    return tuple(torch.zeros_like(x) if g is None else g.detach() for g, x in zip(found, xs, strict=True))


def like(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return tensor.detach().clone() if 0 in tensor.stride() else made.copy_(tensor.detach())
