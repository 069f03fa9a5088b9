"""amax: the largest element along some axes.

    out[kept] = max over reduced of x[kept, reduced]

Semantics of ``torch.amax``: NaN is larger than anything. Elements that are all the largest share the gradient
evenly, as torch has it; an output that is NaN has a gradient of NaN.

    grad_x[kept, reduced] = grad[kept] / ties[kept] where x[kept, reduced] is out[kept], else 0

The other reductions share the checks, costs, samples and errors of this file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from nxcore.ops.sum import BENCH, SMOKE, Dim, described, outputs, ways
from nxcore.plugin import (
    DEGENERATE,
    SAME,
    Cost,
    ErrorCase,
    Gradient,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    TensorMeta,
    backward_of,
    canonical_dims,
    rand,
    require_flag,
    require_tensor,
)

Function = TypeVar("Function", bound=Callable[..., Any])


def reference(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return the largest element along ``dim``.

    Parameters
    ----------
    x : Tensor
        Any shape and strides, any dtype but complex ones.
    dim : int, sequence of int or None
        The axes; all where None or empty.
    keepdim : bool, default False
        Whether to keep the axes, with size 1.

    Returns
    -------
    Tensor
        The dtype of ``x``.

    Raises
    ------
    InvalidInputError
        If an axis is out of range, named twice or of size 0.

    Examples
    --------
    >>> nxcore.ops.amax(torch.tensor([[1.0, 3.0], [2.0, 0.0]]), 1)
    tensor([3., 2.])
    """
    return torch.amax(x, dim=() if dim is None else dim, keepdim=keepdim)


def require_real(x: Any) -> None:
    """Raise unless ``x`` is a tensor whose elements have an order."""
    require_tensor(x, "x", floating=False)
    if x.dtype.is_complex:
        raise InvalidInputError(f"x must have a real dtype, got {x.dtype}", argument="x")


def require_terms(x: Any, dim: Any) -> None:
    """Raise unless ``dim`` names axes of ``x`` that aren't of size 0."""
    if any(x.shape[d] == 0 for d in canonical_dims(dim, x.ndim)):
        raise InvalidInputError(
            f"dim must name axes that have elements, got {dim} of shape {tuple(x.shape)}", argument="dim"
        )


def check(x: Any, dim: Any, keepdim: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_real(x)
    require_terms(x, dim)
    require_flag(keepdim, "keepdim")


def cost(x: Any, dim: Any, keepdim: Any) -> Cost:
    """Count x read once, the results written once; one comparison for each element."""
    return Cost(bytes=x.nbytes + outputs(x, dim) * x.element_size(), flops=x.numel())


def pair_cost(x: Any, dim: Any, keepdim: Any) -> Cost:
    """Count x read once, elements and their indices written once; one comparison for each element."""
    written = x.element_size() + torch.int64.itemsize
    return Cost(bytes=x.nbytes + outputs(x, dim) * written, flops=x.numel())


def index_cost(x: Any, dim: Any, keepdim: Any) -> Cost:
    """Count x read once, indices written once; one comparison for each element."""
    return Cost(bytes=x.nbytes + outputs(x, dim) * torch.int64.itemsize, flops=x.numel())


def flag_cost(x: Any, dim: Any, keepdim: Any) -> Cost:
    """Count x read once, one byte written for each output; one comparison for each element."""
    return Cost(bytes=x.nbytes + outputs(x, dim), flops=x.numel())


def alike(x: Any, dim: Any, keepdim: Any) -> TensorMeta | None:
    """Describe results of the dtype of ``x``."""
    return described(x, dim, keepdim, x.dtype)


SAMPLES = (
    Sample("all_axes", (rand(7, 11, 13),), tags=SMOKE),
    Sample("inner_axis", (rand(9, 1025), -1), tags=SMOKE),
    Sample("outer_axis", (rand(301, 9), 0), tags=SMOKE),
    Sample("middle_axis", (rand(5, 33, 7), 1), {"keepdim": True}, SMOKE),
    Sample("around_the_middle", (rand(6, 5, 70), (0, 2))),
    Sample("nan", (rand(5, 257, values="nan"), 0), tags=SMOKE),
    Sample("inf", (rand(40, 3, values="inf"), 1)),
    Sample("ties", (rand(40, 21, values="sparse"), -1)),
    Sample("zero_dimensions", (rand(),)),
    Sample("nothing_left", (rand(0, 3), 1), tags=DEGENERATE),
    Sample("blocks_share_an_output", (rand(70_001, dtype=torch.float32),)),
    Sample("transposed", (rand(31, 17, 5, layout="transposed"), 1)),
    Sample("odd_storage_offset", (rand(257, 3, layout="sliced"), 0)),
    Sample("gaps_in_memory", (rand(17, 9, layout="strided"), 1)),
    Sample("channels_last", (rand(2, 8, 5, 6, layout="channels_last"), 1)),
    Sample("expanded", (rand(6, 80, layout="expanded"), 0)),
    Sample("small", (rand(64, 128), -1), tags=BENCH),
    Sample("attention_all", (rand(4, 512, 896),), tags=BENCH),
    Sample("attention_inner", (rand(4, 512, 896), -1), tags=BENCH),
    Sample("attention_outer", (rand(4, 512, 896), (0, 1)), tags=BENCH),
    Sample("attention_middle", (rand(4, 512, 896), 1), tags=BENCH),
    Sample("large_inner", (rand(4096, 16384), -1), tags=BENCH | {"huge"}),
    Sample("large_outer", (rand(4096, 16384), 0), tags=BENCH | {"huge"}),
)
"""Samples of every reduction here."""

OF_ONE_AXIS = tuple(s for s in SAMPLES if len(s.args) > 1 and isinstance(s.args[1], int))
"""Those of one axis."""

AXES = (
    ErrorCase("axis", (rand(3, 4), 2), match=r"dim must be in \[-2, 1\] for a tensor of 2 dimensions, got 2"),
    ErrorCase("flag", (rand(3, 4), 0, 1), match="keepdim must be True or False, got 1"),
    ErrorCase("not_a_tensor", ([1.0, 2.0], 0), match="x must be a tensor, got list"),
)

OVER_NOTHING = (
    ErrorCase("over_nothing", (rand(3, 0), 1), match=r"dim must name axes that have elements, got 1 of"),
    ErrorCase("complex", (rand(3, dtype=torch.complex64), 0), match="x must have a real dtype, got"),
)

ERRORS = (
    *AXES,
    *OVER_NOTHING,
    ErrorCase("axis_twice", (rand(3, 4), (0, -2)), match=r"name each axis once, got \(0, -2\)"),
    ErrorCase("all_of_nothing", (rand(3, 0),), match=r"dim must name axes that have elements, got None"),
)


def mirror(of: Callable[..., Any], words: Mapping[str, str] | None = None) -> Callable[[Function], Function]:
    """Return a decorator that gives a function the sections of ``of``, between its summary and its examples.

    ``words`` are words there, and what takes their place.
    """
    sections = (of.__doc__ or "").partition("\n\n")[2].partition("    Examples\n")[0]
    for word, other in (words or {}).items():
        sections = re.sub(rf"\b{word}\b", other, sections)

    def give(function: Function) -> Function:
        summary, _, examples = (function.__doc__ or "").partition("\n\n")
        function.__doc__ = f"{summary}\n\n{sections}{examples}"
        return function

    return give


JOINS = {"mean": "mean", "amax": "max", "amin": "min", "any": "max", "all": "min"}
"""How results of parts make up one, by operator."""


def of_axes(name: str, reference: Callable[..., Any], **other: Any) -> OpSpec:
    """Return the spec of a reduction over any axes that never rounds."""
    shared: dict[str, Any] = {
        "params": (Param("x", "tensor"), Param("dim", "static", None), Param("keepdim", "static", False)),
        "check": check,
        "holds": "alike",
        "cost": cost,
        "samples": SAMPLES,
        "errors": ERRORS,
        "outputs": alike,
        "magnitude": reference,  # it never rounds
        "terms": lambda x, dim, keepdim: 1,
        "exact": True,
        "autocast": SAME,
        "ways": partial(ways, joins=JOINS.get(name, "")),
    }
    return OpSpec(name=name, reference=reference, **shared | other)


def _backward(grad: Any, mask: tuple[bool, ...], x: Any, dim: Any, keepdim: Any) -> tuple[Any, ...]:
    return grad, x, dim, keepdim


def of_extremes(name: str, reference: Callable[..., Any]) -> OpSpec:
    """Return the spec of ``amax`` or ``amin``."""
    return of_axes(name, reference, gradient=Gradient(f"{name}_backward", _backward, saves=("x",)))


SPEC = of_extremes("amax", reference)


def gradient(grad: Tensor, x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return ``grad`` where ``x`` is largest, divided by the number of such elements, and 0 elsewhere.

    Parameters
    ----------
    grad : Tensor
        The gradient of the maxima, with their shape for ``dim`` and ``keepdim``.
    x, dim, keepdim
        As in ``amax``.

    Returns
    -------
    Tensor
        The shape of ``x``, dtype of ``grad``.

    Raises
    ------
    InvalidInputError
        As ``amax``, or if ``grad`` isn't of the maxima's shape.

    Examples
    --------
    >>> nxcore.ops.amax_backward(torch.ones(2), torch.tensor([[1.0, 1.0], [2.0, 0.0]]), 1)
    tensor([[0.5000, 0.5000],
            [1.0000, 0.0000]])
    """
    return shared_evenly(torch.amax, grad, x, dim, keepdim)


def shared_evenly(find: Callable[..., Tensor], grad: Tensor, x: Tensor, dim: Dim, keepdim: bool) -> Tensor:
    """Return ``grad`` shared by the elements of ``x`` that are ``find``'s result."""
    dims = canonical_dims(dim, x.ndim)
    if not keepdim:
        for d in dims:
            grad = grad.unsqueeze(d)
    same = x == find(x, dim=dims, keepdim=True)
    # Not all axes where there are none: torch.sum takes an empty tuple for every axis.
    return grad * same / (same.sum(dims, keepdim=True) if dims else same)


def reduced(x: Any, dim: Any, keepdim: Any) -> tuple[int, ...]:
    """Return the result's shape."""
    dims = canonical_dims(dim, len(x.shape))
    return tuple(1 if i in dims else n for i, n in enumerate(x.shape) if keepdim or i not in dims)


def _as_x(grad: Any, x: Any, dim: Any, keepdim: Any) -> TensorMeta | None:
    """Describe the gradient of row-major tensors; None of others."""
    # Comparing an unknown size would fix it.
    known = all(type(n) is int and n > 1 for n in x.shape)
    if not known or not (grad.is_contiguous() and x.is_contiguous()):
        return None
    return TensorMeta.row_major(tuple(x.shape), grad.dtype, x.device)


def backward_shared(spec: OpSpec, gradient: Callable[..., Tensor]) -> OpSpec:
    """Return the backward operator of ``amax`` or ``amin``."""
    return backward_of(
        spec,
        gradient,
        shape=reduced,
        cost=lambda grad, x, dim, keepdim: Cost(bytes=grad.nbytes + 2 * x.nbytes, flops=2 * x.numel()),
        magnitude=lambda grad, x, dim, keepdim: gradient(grad.abs(), x, dim, keepdim),
        outputs=_as_x,
        exact=False,
    )


BACKWARD = backward_shared(SPEC, gradient)
