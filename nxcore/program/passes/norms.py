"""Norms: the operations of a root mean square norm, as models write it out, are one call of torch's function.

    x * rsqrt(mean(x^2) + eps), in float32; then in x's dtype, times a weight

So Llama's, T5's and their successors' classes compute it; a graph shows it, whatever a class is named.
Torch's function rounds once where they round twice, which an audit allows for.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from nxcore.program.passes.operators import given, shape_of

POWERS = ("pow", torch.pow, operator.pow)
CASTS = ("to", "float", "type_as")
LAST = (-1, (-1,), [-1])


def norms(graph: fx.Graph) -> int:
    """Put one call in place of the operations of each norm; return their number."""
    return sum(_normed(graph, node) for node in [*graph.nodes])


def _alone(node: Any, *targets: Any) -> fx.Node | None:
    """Return a node if it has one of these targets and one reader."""
    fits = isinstance(node, fx.Node) and node.target in targets and len(node.users) == 1
    return node if fits else None


def _dtype(node: Any) -> torch.dtype | None:
    """Return the dtype of what a node computes, where it is known."""
    found = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return found.dtype if isinstance(found, Tensor) else None


def _before_cast(node: Any) -> Any:
    """Return what a cast casts, else the node."""
    return node.args[0] if isinstance(node, fx.Node) and node.target in CASTS else node


def _mean_square(root: Any) -> tuple[fx.Node, float] | None:
    """Return x and eps of ``rsqrt(mean(x^2) + eps)``; None where a node is something else."""
    inverse = _alone(root, torch.rsqrt, "rsqrt")
    shifted = _alone(inverse and inverse.args[0], operator.add)
    if shifted is None or not isinstance(eps := shifted.args[1], float):
        return None
    mean = _alone(shifted.args[0], "mean", torch.mean)
    if mean is None or given(mean, 1, "dim") not in LAST or not given(mean, 2, "keepdim", False):
        return None
    square = _alone(mean.args[0], *POWERS)
    if square is None or given(square, 1, "exponent") != 2 or not isinstance(x := square.args[0], fx.Node):
        return None
    return x, eps


def _normed(graph: fx.Graph, node: fx.Node) -> bool:
    """Put a call in place of a norm whose product with the inverse root is ``node``."""
    if node.target is not operator.mul or len(node.args) != 2:
        return False
    x, found = node.args[0], _mean_square(node.args[1])
    # T5 casts for the mean alone, Llama for the product too; a wider x decides nothing else.
    if found is None or _before_cast(found[0]) is not _before_cast(x) or _dtype(found[0]) is not _dtype(node):
        return False
    cast = next(iter(node.users)) if len(node.users) == 1 else node
    scaled = next(iter(cast.users), None) if _alone(cast, *CASTS) is cast else cast
    for source in (_before_cast(x), x):  # as it came, or in float32
        size, last, weight = shape_of(source), node, None
        if isinstance(scaled, fx.Node) and scaled.target is operator.mul and len(scaled.args) == 2:
            other = [arg for arg in scaled.args if arg is not (node if scaled is cast else cast)]
            kinds = {_dtype(source), _dtype(scaled), *map(_dtype, other)}
            if len(other) == 1 and shape_of(other[0]) == size[-1:] and len(kinds) == 1:
                last, weight = scaled, other[0]
        if size and _dtype(source) is _dtype(last):
            break
    else:
        return False
    with graph.inserting_before(last):
        made = graph.call_function(torch.rms_norm, (source, size[-1:], weight, found[1]))
    made.meta = dict(last.meta)
    last.replace_all_uses_with(made)
    _erase(graph, last)
    return True


def _erase(graph: fx.Graph, node: fx.Node) -> None:
    """Erase a node that nothing reads, and then those that it alone read."""
    read = node.all_input_nodes
    graph.erase_node(node)
    for each in read:
        if not each.users and each.op in ("call_function", "call_method") and each in graph.nodes:
            _erase(graph, each)
