"""Whether an ``out`` shares memory with the inputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nxcore.errors import InvalidInputError
from nxcore.interop import internals
from nxcore.spec.problem import TensorMeta, tensors_of
from nxcore.spec.spec import OpSpec
from nxcore.trust.form import meet, spans


def aliased(spec: OpSpec, args: tuple[Any, ...]) -> bool:
    """Return whether an ``out`` is one of the inputs."""
    named = list(zip(spec.params, args, strict=True))
    outs = [a for p, a in named if p.kind == "out" and a is not None]
    if not outs:
        return False
    inputs = tensors_of(tuple(a for p, a in named if p.kind != "out"))
    return any(any(overlap(out, *inputs)) for out in outs)


def overlap(out: Tensor, *inputs: Any) -> tuple[bool, ...]:
    """Return for each input whether it has exactly the memory of ``out``.

    Raises
    ------
    InvalidInputError
        If ``out`` overlaps an input in part, or itself.
    """
    same = []
    if any(s == 0 and n > 1 for s, n in zip(out.stride(), out.shape, strict=True)):
        raise InvalidInputError("out must not overlap itself: it has stride 0", argument="out")
    for x in inputs:
        if not isinstance(x, Tensor) or internals.storage(x) != internals.storage(out):
            same.append(False)
            continue
        identical = (x.data_ptr(), x.stride(), x.shape, x.dtype) == (
            out.data_ptr(),
            out.stride(),
            out.shape,
            out.dtype,
        )
        dense = TensorMeta.of(x).is_dense() and TensorMeta.of(out).is_dense()  # others may interleave
        if not identical and dense and meet(spans([x]), spans([out])):
            raise InvalidInputError("out must not overlap an input in part", argument="out")
        same.append(identical)
    return tuple(same)
