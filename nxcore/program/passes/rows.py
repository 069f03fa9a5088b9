"""Rows: a tensor whose rows a graph reads one by one is divided in one call.

So it is where Python loops over it. Dynamo reads each row by its index, and the gradient of each is then a
tensor of the whole one's size.
"""

from __future__ import annotations

import operator
from collections import defaultdict

import torch
from torch import fx

from nxcore.program.passes.operators import shape_of

WRITING = {getattr(operator, name) for name in operator.__all__ if name.startswith("i")} | {operator.setitem}
"""Python's operators that write into what they are given, and a few that don't."""


def rows(graph: fx.Graph) -> int:
    """Divide tensors of which all rows are read; return their number."""
    found: defaultdict[fx.Node, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.target is operator.getitem and shape_of(node.args[0]) and type(node.args[1]) is int:
            found[node.args[0]].append(node)
    return sum(_divided(graph, tensor, read) for tensor, read in found.items())


def _divided(graph: fx.Graph, tensor: fx.Node, read: list[fx.Node]) -> bool:
    """Let the nodes that read a tensor's rows read those of one call, if they do so in order."""
    count = shape_of(tensor)[0]
    if count < 2 or [node.args[1] for node in read] != [*range(count)] or any(map(_written, read)):
        return False
    with graph.inserting_before(read[0]):
        made = graph.call_function(torch.unbind, (tensor,))
    for node in read:
        node.args = (made, node.args[1])
    return True


def _written(row: fx.Node) -> bool:
    """Return whether a row may be written in place: autograd refuses that for rows of one call."""
    return any(
        str(user.target).endswith("_")
        or user.target in WRITING
        or any(value is row for value in user.kwargs.values())
        or any(value is True for value in (*user.args, *user.kwargs.values()))  # it may be ``inplace``
        for user in row.users
    )
