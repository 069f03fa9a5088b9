"""Node: the sum of a node's edges, which waits until its value is needed, so that one operator computes it.

A cell's own code adds up the edges into a node. In a captured call of the cell, the sums of edges with norms
(``nxcore.nas.blend``) are tensors that remember their terms; all functions of torch except additions get
their values.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from nxcore.errors import CaptureError
from nxcore.nas.blend import Edge, total
from nxcore.nas.group import rounded_state
from nxcore.nas.pending import ADDS, version

_within: ContextVar[bool] = ContextVar("nxcore_within_cell", default=False)


class Node(Tensor):
    """The sum of some edges, computed where its value is needed."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return what ``func`` returns for the values, or another sum that waits."""
        if func in ADDS and not kwargs and len(args) == 2:
            a, b = args
            if type(b) in (int, float) and b == 0 and type(a) is Node:  # the builtin sum begins with 0
                return a
            if _waits(a) and _waits(b):
                return _made(vars(a)["_edges"] + vars(b)["_edges"])
        args, kwargs = tree_map_only(Node, value_of, (args, kwargs or {}))
        return func(*args, **kwargs)


def summed(edge: Edge) -> Tensor:
    """Return the sum of an edge's results; within a cell, it may wait for the other edges of its node."""
    if all(norm is None for norm in edge.norms) or not _within.get():
        return _rounded([edge])
    return _made((edge,))


def value_of(x: Any) -> Any:
    """Return the value of a sum that waits, which is computed once; anything else as it is.

    Raises
    ------
    CaptureError
        If one of its terms was written to since.
    """
    if type(x) is not Node:
        return x
    held = vars(x)
    if held["_value"] is None:
        edges = held["_edges"]
        if held["_versions"] != _versions(edges):
            raise CaptureError("the result of an operation was written to before the sum of its node")
        with torch.set_grad_enabled(held["_graded"]):
            held["_value"] = _rounded(edges)
        held["_edges"] = ()
    return held["_value"]


@contextlib.contextmanager
def waiting(*, on: bool = True) -> Iterator[None]:
    """Let sums of edges within the block wait, or none of them."""
    token = _within.set(on)
    try:
        yield
    finally:
        _within.reset(token)


def computed(call: Callable[[], Any]) -> Any:
    """Return the result of ``call``, of a cell, with its nodes computed by one operator each."""
    with waiting():
        return tree_map_only(Node, value_of, call())


def _rounded(edges: Sequence[Edge]) -> Tensor:
    """Return the sum in the dtype that the layers return."""
    return rounded_state(total(edges), next((edge.half for edge in edges if edge.half is not None), None))


def _made(edges: tuple[Edge, ...]) -> Node:
    made = torch.empty(0).as_subclass(Node)
    vars(made).update(_edges=edges, _value=None, _graded=torch.is_grad_enabled(), _versions=_versions(edges))
    return made


def _waits(x: Any) -> bool:
    """Return whether ``x`` has no value yet, and would get the one of a call made now."""
    return type(x) is Node and vars(x)["_value"] is None and vars(x)["_graded"] is torch.is_grad_enabled()


def _versions(edges: tuple[Edge, ...]) -> list[int]:
    return [version(y) for edge in edges for y in (*edge.outputs, edge.weights)]
