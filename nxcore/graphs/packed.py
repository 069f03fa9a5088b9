"""Packed: results of a call in any structure, as one tensor that a replay can return."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from nxcore.errors import CaptureError
from nxcore.graphs.replay import Run
from nxcore.spec.problem import TensorMeta


class Packed:
    """A call whose results are one tensor: their elements in the order of memory, in the widest dtype.

    A result that is one tensor stays as it is.

    Parameters
    ----------
    run : callable
        ``run(module, *tensors)`` returns tensors that need a gradient, and None, in any structure.
    uses : set of int, optional
        The places of the results that a loss uses; by default all.
    partly : callable, optional
        Called with those of others, in a backward pass that begins from them.

    Attributes
    ----------
    unpack : callable, optional
        Returns the results of one tensor. None before a call, and where its result was one tensor.
    """

    def __init__(
        self,
        run: Run,
        uses: Collection[int] | None = None,
        partly: Callable[[set[int]], None] = lambda _: None,
    ) -> None:
        self.run, self._uses, self._partly = run, uses, partly
        self.unpack: Callable[[Tensor], Any] | None = None
        self._forms: list[_Form] = []

    def __call__(self, module: nn.Module, *tensors: Tensor) -> Any:
        """Return the results of the call as one tensor.

        Raises
        ------
        CaptureError
            If a replay can't return one of them.
        """
        result = self.run(module, *tensors)
        if isinstance(result, Tensor):
            self.unpack = None
            return result
        leaves, structure = pytree.tree_flatten(result)
        outs = results(result)
        for out in outs:
            if type(out) is not Tensor or not out.requires_grad or not out.is_floating_point():
                raise CaptureError(
                    f"its results must be plain tensors that need a gradient, got {type(out).__name__}"
                )
        if not outs or overlap([*tensors, *module.parameters(), *module.buffers()], outs):
            raise CaptureError("its results share memory with each other, or with something else")
        forms = self._forms = [_Form(out) for out in outs]
        wide = functools.reduce(torch.promote_types, [out.dtype for out in outs])
        places = [leaf is not None for leaf in leaves]
        uses = [self._uses is None or place in self._uses for place in range(len(outs))]

        def unpack(flat: Tensor) -> Any:
            found = iter(_Unpacked.apply(flat, forms, uses))  # type: ignore[no-untyped-call]  # torch has no types
            return pytree.tree_unflatten([next(found) if place else None for place in places], structure)

        self.unpack = unpack
        each = zip(forms, outs, uses, strict=True)
        return torch.cat([form.flat(out if use else out.detach()).to(wide) for form, out, use in each])

    def used(
        self, module: nn.Module, tensors: Sequence[Tensor], grad: Tensor, used: Sequence[bool]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Run the call; return those of its results that were ``used``, and their gradients."""
        outs = results(self.run(module, *tensors))
        parts = grad.split([form.numel for form in self._forms])
        found = [
            (out, form.of(part))
            for out, form, part, use in zip(outs, self._forms, parts, used, strict=True)
            if use
        ]
        self._partly({place for place, use in enumerate(used) if use})
        return [out for out, _ in found], [own for _, own in found]


def results(result: Any) -> list[Any]:
    """Return what is in the structure that a call returned, but for None."""
    return [leaf for leaf in pytree.tree_leaves(result) if leaf is not None]


def overlap(others: Iterable[Tensor], outs: Sequence[Tensor]) -> bool:
    """Return whether a write to one of ``outs`` may be seen in another tensor."""
    if {*map(_memory, others)} & {*map(_memory, outs)}:
        return True
    for _, same in itertools.groupby(sorted(outs, key=_memory), key=_memory):
        group = list(same)
        if len(group) > 1:
            if len({out.dtype for out in group}) > 1:
                return True
            # Parts of one tensor are its elements once each. It is seen on the host, also in a capture.
            seen = torch.zeros(group[0].untyped_storage().nbytes() // group[0].itemsize, dtype=torch.uint8)
            for out in group:
                seen.as_strided(out.shape, out.stride(), out.storage_offset()).add_(1)
            if seen.max() > 1:
                return True
    return False


def _memory(tensor: Tensor) -> int:
    """Return the address of a tensor's memory; another one for each tensor that has none."""
    return tensor.untyped_storage().data_ptr() or -id(tensor)


class _Form:
    """Dtype, shape and layout of a result."""

    def __init__(self, out: Tensor) -> None:
        meta = TensorMeta.of(torch.empty_like(out, device="meta"))
        self.dtype, self.strides = out.dtype, meta.strides
        self.order = sorted(range(out.ndim), key=self.strides.__getitem__, reverse=True)
        self.shape, self.numel = [out.shape[dim] for dim in self.order], out.numel()
        self.back = sorted(range(out.ndim), key=self.order.__getitem__)

    def flat(self, tensor: Tensor) -> Tensor:
        """Return the elements in the order of memory."""
        return tensor.permute(self.order).reshape(-1)

    def of(self, flat: Tensor) -> Tensor:
        """Return a tensor in new memory with these elements."""
        return flat.to(self.dtype, copy=True).view(self.shape).permute(self.back)


class _Unpacked(torch.autograd.Function):
    """Tensors of their own, each with its part of the elements."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, forms: Sequence[_Form], uses: Sequence[bool]) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.forms, ctx.uses, ctx.before = forms, uses, flat.grad_fn
        ctx.like = flat.dtype, flat.device
        parts = flat.split([form.numel for form in forms])
        return tuple(form.of(part) for form, part in zip(forms, parts, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        dtype, device = ctx.like
        # A parameter that none of the results in use depends on has no gradient, not zeros.
        used = [grad is not None for grad in grads]
        ctx.before.used = () if used == ctx.uses else used
        none = functools.partial(torch.zeros, dtype=dtype, device=device)
        each = zip(ctx.forms, grads, strict=True)
        found = [none(form.numel) if grad is None else form.flat(grad).to(dtype) for form, grad in each]
        return torch.cat(found), None, None
