"""Pair: a function and its gradients as two CUDA graphs; the differentiable form of ``nxcore.graphed``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from nxcore.errors import CaptureError
from nxcore.graphs.buffers import fill
from nxcore.graphs.recorder import Pool, Recorder
from nxcore.interop.internals import gradients


def viewed(inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs, with views in place of those that were computed.

    One of them may be computed of another one: the gradient of a view is that of the call alone.
    """
    return [t.view_as(t) if isinstance(t, Tensor) and t.grad_fn is not None else t for t in inputs]


def backward_of(
    outs: Sequence[Tensor], leaves: Sequence[Tensor], *, keeps: bool = True
) -> tuple[list[Tensor], Sequence[Tensor | None]]:
    """Return new memory for the gradients of ``outs``, and the gradients of ``leaves`` that follow.

    The autograd nodes keep the saved tensors, so that no later capture reuses their memory; unless it
    ``keeps`` none, where the pool is of this pass alone, which may reuse it.
    """
    given = [torch.empty_like(out, requires_grad=False) for out in outs]
    return given, gradients(outs, leaves, given, retain_graph=keeps)


def check_leaves(outs: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
    """Raise, with its shape, if results depend on a leaf with a gradient that isn't in ``leaves``."""
    known, seen, nodes = {id(t) for t in leaves}, set(), [out.grad_fn for out in outs]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable") and id(node.variable) not in known:
            shape = tuple(node.variable.shape)
            raise CaptureError(
                f"its result depends on a tensor of shape {shape} that is neither an argument nor a parameter"
            )
        nodes.extend(before for before, _ in node.next_functions)


class Pair:
    """A call as one graph and its gradients as another, in their own memory pool.

    Parameters
    ----------
    function : callable
        Returns tensors, in any structure, from ``buffers`` and ``others``.
    buffers : sequence of Tensor
        The buffers of the arguments, which each call copies its arguments into.
    others : sequence of Tensor
        Aliases of the caller's parameters, which need a gradient too.
    clone : bool
        Return copies of results. Gradients are always copies: autograd keeps the first gradient of a leaf as
        its ``grad``, and the next replay would overwrite the sum.
    """

    def __init__(
        self, function: Callable[[], Any], buffers: Sequence[Tensor], others: Sequence[Tensor], *, clone: bool
    ) -> None:
        self._function, self._buffers, self._clone = function, buffers, clone
        self._leaves = [*buffers, *others]
        self._wanted = [t for t in self._leaves if t.requires_grad]

    def warm(self) -> None:
        """Run the call and its gradients.

        Raises
        ------
        CaptureError
            If the gradient of a tensor that is neither an argument nor a parameter would be lost.
        """
        outs = _differentiable(self._function())
        check_leaves(outs, self._leaves)
        if outs:
            backward_of(outs, self._wanted)

    def capture(self, recorder: Recorder) -> None:
        """Capture both graphs, after a warm-up."""
        self._recorder, pool = recorder, Pool()
        self._result, self._forward = recorder.capture(self._function, pool)
        if outs := _differentiable(self._result):
            gradients = functools.partial(backward_of, outs, self._wanted)
            (self._given, self._found), self._backward = recorder.capture(gradients, pool)
        self._needs = [t.requires_grad for t in _tensors(self._result)]

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        """Replay the call with the caller's tensors, parameters included; return its result."""
        apply: Any = _Replay.apply  # untyped in torch
        found = iter(apply(self, *tensors))
        return pytree.tree_map_only(Tensor, lambda _: next(found), self._result)

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[bool]]:
        """Replay the call; return its tensors, and which of them need a gradient."""
        with self._recorder.lock:
            self._recorder.turn()
            fill(self._buffers, tensors[: len(self._buffers)])
            self._forward()
            found = [t.detach() for t in _tensors(self._result)]
            return [t.clone() for t in found] if self._clone else found, self._needs

    def backward(self, grads: Sequence[Tensor]) -> list[Tensor | None]:
        """Replay the gradients, given those of the call's results; return one for each argument."""
        with self._recorder.lock:
            self._recorder.turn()
            fill(self._given, [g for g, needs in zip(grads, self._needs, strict=True) if needs])
            self._backward()
            found = iter([g if g is None else g.clone() for g in self._found])
        return [next(found, None) if leaf.requires_grad else None for leaf in self._leaves]


class _Replay(torch.autograd.Function):
    """A replay of a ``Pair``, and the replay of its gradients."""

    @staticmethod
    def forward(ctx: Any, pair: Pair, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.pair = pair
        found, needs = pair.forward(tensors)
        ctx.mark_non_differentiable(*(t for t, need in zip(found, needs, strict=True) if not need))
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, *ctx.pair.backward(grads)


def _tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def _differentiable(result: Any) -> list[Tensor]:
    return [t for t in _tensors(result) if t.requires_grad]
