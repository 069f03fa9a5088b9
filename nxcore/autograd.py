"""Forward and backward operators joined as one autograd function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nxcore.problem import TensorMeta
from nxcore.spec import Gradient, OpSpec


@dataclass(frozen=True, slots=True)
class Differentiable:
    """A planned forward call and the operator that differentiates it.

    Attributes
    ----------
    spec : OpSpec
        The operator.
    gradient : Gradient
        Which operator differentiates it, and from what.
    forward : callable
        The planned kernel; takes the operator's arguments, all positional. Where the gradient names an
        operator of its own for this, returns a tuple: the result, and what to keep for the backward pass.
    backward : callable
        The backward operator; takes its arguments, all positional.
    reference : callable
        The backward operator's reference: what second derivatives go through.
    """

    spec: OpSpec
    gradient: Gradient
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    reference: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        """Run the forward kernel and remember how to go back."""
        flat: list[Tensor] = []
        for param, value in zip(self.spec.params, args, strict=True):
            if isinstance(value, Tensor):
                flat.append(value)
            elif param.kind == "tensors":
                flat.extend(value)
        return _Join.apply(self, args, *flat)  # type: ignore[no-untyped-call]  # torch gives it no types


class _Join(torch.autograd.Function):
    """The bridge: ``flat`` holds the tensors of ``args`` once more, where autograd can see them."""

    @staticmethod
    def forward(ctx: Any, call: Differentiable, args: tuple[Any, ...], *flat: Tensor) -> Any:  # noqa: ARG004  see above
        saves = call.gradient.saves
        kept: list[Tensor] = []
        recipe: list[tuple[int | None, Any]] = []
        for param, value in zip(call.spec.params, args, strict=True):
            tensors = value if param.kind == "tensors" and not isinstance(value, Tensor) else (value,)
            if not isinstance(tensors[0], Tensor):
                recipe.append((None, value))
            elif param.name in saves:
                recipe.append((len(tensors) if tensors is value else 0, None))
                kept.extend(tensors)
            else:
                metas = tuple(TensorMeta.of(t) for t in tensors)
                recipe.append((None, metas if tensors is value else metas[0]))
        ctx.call, ctx.recipe = call, recipe
        result, extra = call.forward(*args), ()
        if call.gradient.forward:
            result, *extra = result
        ctx.save_for_backward(*kept, *extra)
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        mask = ctx.needs_input_grad[2:]
        if grad is None:
            return (None, None, *(None for _ in mask))
        saved = iter(ctx.saved_tensors)
        args: list[Any] = []
        for count, value in ctx.recipe:
            if count is None:
                args.append(value)
            else:
                args.append(tuple(next(saved) for _ in range(count)) if count else next(saved))
        call: Differentiable = ctx.call
        arguments = call.gradient.args(grad, mask, *args, *saved)
        # Only with create_graph=True is grad mode on here: the reference is made of torch's own
        # differentiable operators, a kernel isn't.
        batched = _is_batched(grad)  # torch's own, for Jacobians: such a tensor has no memory of its own
        if torch.is_grad_enabled() or batched:
            results = _flatten(call.reference(*arguments))
        elif torch._C._is_any_autocast_enabled():  # noqa: SLF001  autocast is the forward's business
            with torch.autocast(grad.device.type, enabled=False):
                results = _flatten(call.backward(*arguments))
        else:
            results = _flatten(call.backward(*arguments))
        if not batched:
            results = [_itself(r, grad) for r in results]
        return (None, None, *results)[: 2 + len(mask)]


def _is_batched(tensor: Tensor) -> bool:
    functorch = torch._C._functorch  # noqa: SLF001  neither vmap has a public test
    return bool(functorch.is_legacy_batchedtensor(tensor) or functorch.is_functorch_wrapped_tensor(tensor))


def _itself(result: Tensor | None, grad: Tensor) -> Tensor | None:
    """Return ``grad`` for a view of all of it.

    A view that nobody else holds becomes a leaf's ``.grad`` without a copy: two leaves would share memory.
    """
    if result is None or result is grad or result.shape != grad.shape or result.stride() != grad.stride():
        return result
    same = result.data_ptr() == grad.data_ptr() and result.dtype == grad.dtype and result.numel()
    return grad if same else result


def _flatten(result: Any) -> list[Tensor | None]:
    if isinstance(result, tuple | list):
        return [leaf for item in result for leaf in _flatten(item)]
    return [result]
