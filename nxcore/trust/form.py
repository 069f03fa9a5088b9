"""Form: the type, shape, strides and memory of a result, apart from its values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nxcore.interop.internals import is_view
from nxcore.spec.problem import TensorMeta, leaves
from nxcore.trust.memory import span

ALIGNED = 512
"""The most bytes behind each result where several are parts of one allocation."""


class Form(NamedTuple):
    """The form of one result of torch.

    It ``views`` where it may be a part of other memory: it is a view, or shares memory with an input.
    """

    meta: TensorMeta
    inference: bool = False
    views: bool = False


def form(result: Any, inputs: Sequence[tuple[int, int]] = ()) -> Any:
    """Return ``result`` with a ``Form`` in place of each tensor or description of one.

    ``inputs`` are the ``spans`` of the arguments.
    """
    if isinstance(result, Tensor):
        return Form(
            TensorMeta.of(result), result.is_inference(), is_view(result) or meet(spans([result]), inputs)
        )
    if isinstance(result, TensorMeta):
        return Form(result)
    return tuple(form(each, inputs) for each in result) if isinstance(result, tuple | list) else result


def misformed(result: Any, like: Any) -> str:
    """Return how ``result`` differs from ``like``, a ``form``; empty if it doesn't.

    Strides of dimensions of size 1, and of empty tensors, are ignored. Results of one call may be parts of
    one allocation.
    """
    return _misformed(result, like) or misstored(list(leaves(result)), list(_forms(like)))


def misplaced(results: Sequence[Tensor], like: Any, inputs: Sequence[tuple[int, int]]) -> str:
    """Return whether a result shares memory with an input, where torch's has its own; empty if none does."""
    pairs = zip(results, _forms(like), strict=True)
    shared = any(meet(spans([tensor]), inputs) and not form.views for tensor, form in pairs)
    return "a result must not share memory with an input" if shared else ""


def _forms(like: Any) -> Iterator[Form]:
    if isinstance(like, Form):
        yield like
    elif isinstance(like, tuple):
        for each in like:
            yield from _forms(each)


def marked(tensor: Tensor, *, inference: bool = False, views: bool = False) -> str:
    """Return what a result has that torch's own has not; empty if nothing.

    It is computed without gradients, and is an inference tensor only within the mode, or if torch's is. One
    that is an input may require a gradient as this does.
    """
    if tensor.grad_fn is not None or (tensor.requires_grad and not views):
        return "a result must not require a gradient"
    if tensor.is_inference() and not (inference or torch.is_inference_mode_enabled()):
        return "a result must not be an inference tensor outside of inference mode"
    if tensor.is_conj() or tensor.is_neg():
        return "a result must hold its own numbers, without a conjugate or negative bit"
    return "a result must have no names" if any(getattr(tensor, "names", ())) else ""


def misstored(results: Sequence[Tensor], likes: Sequence[Form]) -> str:
    """Return which result is a part of more memory than the results of the call; empty if none is."""
    pairs = [(tensor, like) for tensor, like in zip(results, likes, strict=True) if tensor.numel()]
    parts: dict[int, list[int]] = {}
    for tensor, _ in pairs:
        at = tensor.untyped_storage().data_ptr()
        parts.setdefault(at, []).append(span(tensor) * tensor.element_size())
    for tensor, like in pairs:
        storage = tensor.untyped_storage()
        own = parts[storage.data_ptr()]
        most = sum(own) + (ALIGNED * len(own) if len(own) > 1 else 0)
        if not like.views and storage.nbytes() > most:
            return f"a result must have memory of its own size, got one of {storage.nbytes()} bytes"
    return ""


def _misformed(result: Any, like: Any) -> str:
    if isinstance(like, tuple) and not isinstance(like, Form):
        if not isinstance(result, tuple | list) or len(result) != len(like):
            return f"must be {len(like)} results, got {_kind(result)}"
        return next(filter(None, map(_misformed, result, like)), "")
    if not isinstance(like, Form):
        return "" if result is like or result == like else f"must be {like}, got {_kind(result)}"
    if type(result) is not Tensor or result.layout is not torch.strided:
        return f"must be a plain tensor, got {_kind(result)}"
    like, inference, views = like
    for what, wanted, came in (
        ("device", like.device, result.device),
        ("dtype", like.dtype, result.dtype),
        ("shape", like.shape, tuple(result.shape)),
    ):
        if wanted != came:
            return f"{what} must be torch's {wanted}, got {came}"
    if like.strides != result.stride() and like.numel():
        strides = TensorMeta.of(result).strides_of_extent
        if strides != like.strides_of_extent:
            return f"strides must be torch's {like.strides}, got {result.stride()}"
    return marked(result, inference=inference, views=views)


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{type(value).__name__} of layout {value.layout}"
    return f"{len(value)} results" if isinstance(value, tuple | list) else type(value).__name__


def spans(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return the first address of each tensor and the one after its last; none for empty tensors."""
    found = []
    for t in tensors:
        if t.numel():
            start = t.data_ptr()
            found.append((start, start + span(t) * t.element_size()))
    return found


def meet(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    """Return whether any address range of ``some`` overlaps one of ``others``; see ``spans``."""
    return any(a < d and c < b for a, b in some for c, d in others)


def twin(value: Any) -> Any:
    """Return a copy of nested tensors in new memory, with the same strides.

    A tensor that occurs twice does so in the copy too: a kernel may get its ``out`` as an input.
    """
    later: Later = {}
    found = _twin(value, {}, later)
    for new, old in later.values():  # an operator over many tensors has dozens, and each launch takes time
        torch._foreach_copy_(new, old)
    return found


def exchanged(value: Any, known: dict[int, Tensor]) -> Any:
    """Return a result with others for some of its tensors. A closure that calls itself would keep them."""
    if isinstance(value, tuple | list):
        return tuple(exchanged(each, known) for each in value)
    return known.get(id(value), value)


Later = dict[Any, tuple[list[Tensor], list[Tensor]]]
"""Dtype and device -> new tensors, and those that they are to be copies of."""


def _twin(value: Any, known: dict[Any, Tensor], later: Later) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_twin(v, known, later) for v in value)
    if not isinstance(value, Tensor):
        return value
    place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
    if place not in known:
        known[place] = _copied(value.detach(), later)
    return known[place]


def _copied(tensor: Tensor, later: Later) -> Tensor:
    if not tensor.numel() or TensorMeta.of(tensor).is_dense():
        new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        if tensor.is_neg() or tensor.is_conj():
            return new.copy_(tensor)
        for held, one in zip(
            later.setdefault((tensor.dtype, tensor.device), ([], [])), (new, tensor), strict=True
        ):
            held.append(one)
        return new
    # Copies the gaps between elements too; some elements may share memory.
    flat = tensor.as_strided((span(tensor),), (1,)).clone()
    return flat.as_strided(tensor.shape, tensor.stride(), 0)


def same_bits(a: Tensor, b: Tensor) -> Tensor:
    """Return a tensor of one bool: whether two tensors hold the same bits."""
    if not a.numel():
        return torch.ones((), dtype=torch.bool, device=a.device)
    whole = _WHOLE.get(a.element_size())
    if whole is not None and not a.is_complex():
        a, b = a.view(whole), b.view(whole)
    return (a == b).all()


_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
