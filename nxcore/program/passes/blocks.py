"""Blocks: functions of a graph that one operator of nxcore's computes together, where a kernel is chosen.

These are a batch norm in evaluation and the sum or the activation after it, or both; and a separable
convolution with the ReLU before it and the batch norm after it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from nxcore.expression.normed import NORMED
from nxcore.program.passes.operators import (
    ACTIVATIONS,
    FEWEST,
    batch_norm,
    by_kernel,
    given,
    in_format,
    is_depthwise,
    shape_of,
    track,
)

RELUS = (functional.relu, torch.relu)
SUMS = (operator.add, operator.iadd, torch.add)


def blocks(graph: fx.Graph) -> int:
    """Put one function in place of several; return the number of nodes."""
    found = sum(_separable(graph, n) or (n.target not in SUMS and _normed(graph, n)) for n in [*graph.nodes])
    return found + sum(n.target in SUMS and _normed(graph, n) for n in [*graph.nodes])


def _before(node: Any, *targets: Any) -> fx.Node | None:
    """Return the node before ``node``, if it calls one of these functions, and nothing else reads it."""
    found = node.args[0] if isinstance(node, fx.Node) and node.args else None
    if isinstance(found, fx.Node) and found.op == "call_function" and found.target in targets:
        return found if len(found.users) == 1 else None
    return None


def _put(graph: fx.Graph, nodes: tuple[fx.Node, ...], target: Callable[..., Any], *args: Any) -> bool:
    """Put a call in place of nodes, of which the first is the last one."""
    with graph.inserting_before(nodes[0]):
        made = graph.call_function(target, args)
    made.meta = dict(nodes[0].meta)
    nodes[0].replace_all_uses_with(made)
    for node in nodes:
        graph.erase_node(node)
    return True


def _normed(graph: fx.Graph, node: fx.Node) -> bool:
    """Put one call in place of a batch norm in evaluation and the sum or the activation after it."""
    name, numbers = ACTIVATIONS.get(node.target, ("gelu" if node.target is functional.gelu else "", {}))
    if name == "gelu" and node.kwargs.get("approximate", "none") == "tanh":
        name = "gelu_tanh"
    total = _before(node, *SUMS) if name else node if node.target in SUMS else None
    norm = _before(total or node, functional.batch_norm)
    if norm is None or len(norm.args) < 6:
        return False
    x, mean, var, weight, bias, training = norm.args[:6]
    if training or any(t is None for t in (mean, var, weight, bias)) or len(shape_of(x)) != 4:
        return False
    others = total.args[1:] if total else ()
    if total and (total.kwargs or len(others) != 1 or shape_of(others[0]) != shape_of(x)):
        return False
    if total:
        name = f"{name}_sum" if name else "sum"
    if name not in NORMED:
        return False
    own = [given(node, place, *each) for place, each in enumerate(numbers.items(), 1)]
    nodes = (node, norm) if total in (None, node) else (node, total, norm)
    eps = given(norm, 7, "eps", 1e-5)
    return _put(graph, nodes, normed, name, x, mean, var, weight, bias, *others, eps, *own)


def normed(name: str, x: Tensor, *given: Any) -> Tensor:
    """Return a batch norm by given statistics, and the sum or the activation after it."""
    mean, var, weight, bias, *rest = given
    others = [t for t in rest if isinstance(t, Tensor)]
    eps, *numbers = rest[len(others) :]
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in (x, weight, bias, *others))
    alike = weight.dtype is mean.dtype and all(t.dtype is x.dtype for t in others)
    if not learns and alike and x.numel() >= FEWEST and in_format(x):
        state = (t.view(-1, 1, 1) for t in (mean, var, weight, bias))
        found: Tensor | None = by_kernel(f"normed_{name}", x, *state, *others, eps, *numbers, None)
        if found is not None:
            return found
    normal = functional.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)
    return NORMED[name][0](sum(others, normal), *numbers)


def _separable(graph: fx.Graph, norm: fx.Node) -> bool:
    """Put one call in place of a ReLU, a depthwise convolution, a 1x1 one and a batch norm."""
    if norm.target is not functional.batch_norm or len(norm.args) < 8:
        return False
    point = _before(norm, torch.conv2d)
    depth = _before(point, torch.conv2d)
    relu = _before(depth, *RELUS)
    if point is None or depth is None or relu is None or given(relu, 1, "inplace", False):
        return False
    filters, ones = shape_of(given(point, 1, "weight")), ((1, 1), 1)
    plain = given(point, 2, "bias") is None and given(depth, 2, "bias") is None and is_depthwise(depth)
    pointwise = filters[2:] == (1, 1) and given(point, 3, "stride", 1) in ones
    pads = given(point, 4, "padding", 0) in (0, (0, 0), "valid", "same") and given(point, 6, "groups", 1) == 1
    if not (plain and pointwise and pads) or len(shape_of(relu.args[0])) != 4:
        return False
    window = [given(depth, *at) for at in ((3, "stride", 1), (4, "padding", 0), (5, "dilation", 1))]
    weights = given(depth, 1, "weight"), given(point, 1, "weight")
    return _put(
        graph, (norm, point, depth, relu), separable, relu.args[0], *weights, *window, *norm.args[1:8]
    )


def separable(x: Tensor, depth: Tensor, point: Tensor, *rest: Any) -> Tensor:
    """Return a separable convolution of what a ReLU leaves, normalised."""
    stride, padding, dilation, mean, var, weight, bias, training, momentum, eps = rest
    conv = x, depth, point, stride, padding, dilation, True
    if not training:
        out: Tensor | None = by_kernel("sep_conv2d", *conv)
        if out is not None:
            return functional.batch_norm(out, mean, var, weight, bias, False, momentum, eps)
    elif weight is None or not torch.is_autocast_enabled(x.device.type):
        found = by_kernel("sep_conv2d_batch_norm", *conv, weight, bias, eps)
        if found is not None:
            track((mean, var), found[2], found[3], momentum)
            result: Tensor = found[0]
            return result
    out = torch.conv2d(torch.relu(x), depth, None, stride, padding, dilation, depth.shape[0])
    return batch_norm(torch.conv2d(out, point), mean, var, weight, bias, training, momentum, eps)
