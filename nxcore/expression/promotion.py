"""The dtype of a result, by torch's promotion at every function of a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nxcore.errors import InvalidInputError
from nxcore.expression.tree import LEAVES, Expression, Node
from nxcore.spec.compiling import unseen

Dtype = tuple[torch.dtype, int]
"""A dtype, and 2 for a tensor with dimensions, 1 for one without, 0 for a number: torch's categories."""

KEEPING = frozenset(
    [
        "add",
        "sub",
        "mul",
        "neg",
        "abs",
        "sign",
        "square",
        "relu",
        "minimum",
        "maximum",
        "clamp_min",
        "clamp_max",
        "where",
    ]
)
"""The functions of integers that give integers."""


def _stand_in(dtype: Dtype) -> Any:
    if dtype[1] == 0:
        return 1.0 if dtype[0].is_floating_point else 1
    return torch.empty((1,) * (dtype[1] - 1), dtype=dtype[0], device="meta")


def _joined(a: Dtype, b: Dtype) -> Dtype:
    if a[0] is b[0]:
        return a[0], max(a[1], b[1])
    try:
        return torch.result_type(_stand_in(a), _stand_in(b)), max(a[1], b[1])
    except RuntimeError as error:  # 8-bit floats promote to no other type
        message = f"tensors must have dtypes that promote to one, got {a[0]} and {b[0]}"
        raise InvalidInputError(message) from error


def _of(node: Node, args: list[Dtype]) -> Dtype:
    if node.op == "cast":
        found: torch.dtype = getattr(torch, str(node.value))
        return found, args[0][1]
    category = max(arg[1] for arg in args)
    if node.kind == "condition" or node.op == "indicator":
        return torch.bool, category
    valued = args[1:] if node.op == "where" else args
    joined = valued[0]
    for other in valued[1:]:
        joined = _joined(joined, other)
    dtype = joined[0]
    if not dtype.is_floating_point and (node.op not in KEEPING or node.kind == "number"):
        dtype = torch.get_default_dtype()
    return dtype, category


def promoter(expression: Expression) -> Callable[..., torch.dtype]:
    """Return ``promoted(*facts)``: the result's dtype, from each tensor's dtype and number of dimensions.

    Numbers are floats.
    """
    known: dict[tuple[Any, ...], torch.dtype] = {}
    (root,) = expression.roots

    def promoted(*facts: Any) -> torch.dtype:
        if facts not in known:
            given = dict(zip(expression.tensors, zip(facts[::2], facts[1::2], strict=True), strict=True))
            found: dict[Node, Dtype] = {}
            for node in expression.nodes:
                if node.op in ("input", "mask"):
                    dtype, ndim = given[str(node.value)]
                    found[node] = dtype, 2 if ndim else 1
                elif node.op in LEAVES:
                    whole = node.op == "constant" and isinstance(node.value, int)
                    found[node] = torch.int64 if whole else torch.get_default_dtype(), 0
                elif node.op == "cast" and node.value in given:
                    found[node] = given[str(node.value)][0], found[node.args[0]][1]
                else:
                    found[node] = _of(node, [found[arg] for arg in node.args])
            known[facts] = found[root][0]
        return known[facts]

    return unseen(promoted)


def follows_inputs(expression: Expression) -> bool:
    """Return whether the result has the dtype of the tensors wherever these share a floating one."""
    for node in expression.nodes:
        chosen = node.args[1:] if node.op == "where" else ()
        casts = node.op == "cast" and node.value not in expression.tensors
        if casts or node.op == "indicator" or (chosen and all(arg.kind == "number" for arg in chosen)):
            return False
    return any(node.op == "input" for node in expression.nodes)
