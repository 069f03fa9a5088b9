"""max: the largest element along one axis, and its index.

    values[kept] = max over d of x[kept, d];  indices[kept] = the first d where it is

Semantics of ``torch.max`` with an axis: NaN is larger than anything, and the first of equals counts, also of
NaN. The gradient goes to that element alone.

    grad_x[kept, d] = grad[kept] where d is indices[kept], else 0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.amax import (
    AXES,
    OF_ONE_AXIS,
    OVER_NOTHING,
    alike,
    of_axes,
    pair_cost,
    require_real,
    require_terms,
)
from nxcore.ops.sum import SMOKE, summed
from nxcore.plugin import (
    Cost,
    ErrorCase,
    Gradient,
    InvalidInputError,
    OpSpec,
    Param,
    Sample,
    Sketch,
    TensorMeta,
    Way,
    backward_of,
    brief,
    canonical_dims,
    rand,
    require_flag,
    require_shape,
    require_size,
    require_tensor,
)


def reference(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the largest element along ``dim``, and its index.

    Parameters
    ----------
    x : Tensor
        Any shape and strides, any dtype but complex ones.
    dim : int
        The axis.
    keepdim : bool, default False
        Whether to keep the axis, with size 1.

    Returns
    -------
    values : Tensor
        The dtype of ``x``.
    indices : Tensor
        int64, with the shape of ``values``.

    Raises
    ------
    InvalidInputError
        If the axis is out of range or of size 0.

    Examples
    --------
    >>> nxcore.ops.max(torch.tensor([[1.0, 3.0], [2.0, 0.0]]), 1)
    (tensor([3., 2.]), tensor([1, 0]))
    """
    values, indices = torch.max(x, dim, keepdim)
    return values, indices


def require_axis(dim: Any, ndim: int) -> None:
    """Raise unless ``dim`` is one axis."""
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise InvalidInputError(f"dim must be an integer, got {brief(dim)}", argument="dim")
    canonical_dims(dim, ndim)


def check(x: Any, dim: Any, keepdim: Any) -> None:
    """Raise unless the operator is defined for the arguments."""
    require_real(x)
    require_axis(dim, x.ndim)
    require_terms(x, dim)
    require_flag(keepdim, "keepdim")


def both(x: Any, dim: Any, keepdim: Any) -> tuple[TensorMeta, TensorMeta] | None:
    """Describe values and indices."""
    values = alike(x, dim, keepdim)
    return None if values is None else (values, replace(values, dtype=torch.int64))


def _backward(
    grad: Any, mask: tuple[bool, ...], x: Any, dim: Any, keepdim: Any, indices: Any
) -> tuple[Any, ...]:
    return grad, indices, tuple(x.shape), dim, keepdim


def with_indices(name: str, reference: Callable[..., Any]) -> OpSpec:
    """Return the spec of ``max`` or ``min``."""
    return of_axes(
        name,
        reference,
        params=(Param("x", "tensor"), Param("dim", "static"), Param("keepdim", "static", False)),
        check=check,
        cost=pair_cost,
        samples=(*OF_ONE_AXIS, Sample("zero_dimensions_axis", (rand(), -1))),
        errors=(
            *AXES,
            *OVER_NOTHING,
            ErrorCase("several_axes", (rand(3, 4), (0, 1)), match=r"dim must be an integer, got \(0, 1\)"),
        ),
        outputs=both,
        gradient=Gradient(f"{name}_backward", _backward, keeps=True),
    )


SPEC = with_indices("max", reference)


def gradient(grad: Tensor, indices: Tensor, size: tuple[int, ...], dim: int, keepdim: bool = False) -> Tensor:
    """Return ``grad`` at ``indices`` along ``dim``, and 0 elsewhere.

    Parameters
    ----------
    grad : Tensor
        The gradient of the maxima, with their shape for ``dim`` and ``keepdim``.
    indices : Tensor
        As ``max`` returns them.
    size : tuple of int
        The shape of the input.
    dim, keepdim
        As in ``max``.

    Returns
    -------
    Tensor
        Shape ``size``, row-major, dtype of ``grad``.

    Raises
    ------
    InvalidInputError
        If the axis is out of range, or ``grad`` or ``indices`` isn't of the maxima' shape.

    Examples
    --------
    >>> nxcore.ops.max_backward(torch.ones(2), torch.tensor([1, 0]), (2, 2), 1)
    tensor([[0., 1.],
            [1., 0.]])
    """
    return at_indices(grad, indices, size, dim, keepdim)


def at_indices(grad: Tensor, indices: Tensor, size: tuple[int, ...], dim: int, keepdim: bool) -> Tensor:
    """Return zeros of ``size``, with ``grad`` at ``indices``."""
    if not keepdim and size:
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)
    return grad.new_zeros(size).scatter(dim, indices, grad)


def gradient_check(indices: Any, size: Any, dim: Any, keepdim: Any) -> None:
    """Raise unless the gradient is defined for the arguments after the incoming one."""
    require_tensor(indices, "indices", floating=False)
    require_size(size, "size")
    require_axis(dim, len(size))
    require_flag(keepdim, "keepdim")
    require_shape(indices, summed(size, dim, keepdim), "indices")
    if indices.dtype is not torch.int64:
        raise InvalidInputError(
            f"indices must have dtype torch.int64, got {indices.dtype}", argument="indices"
        )


def gradient_cost(grad: Any, indices: Any, size: Any, dim: Any, keepdim: Any) -> Cost:
    """Count grad and the indices read once, the gradient written once."""
    elements = torch.Size(size).numel()
    return Cost(bytes=grad.nbytes + indices.nbytes + elements * grad.element_size(), flops=elements)


def _indices(size: Any, dim: Any, keepdim: Any) -> Sketch:
    """Describe indices: along the axis, one of its elements."""
    high = size[dim] if size else 1
    return rand(*summed(size, dim, keepdim), low=0, high=high, dtype=torch.int64)


def _sample(
    name: str, size: tuple[int, ...], dim: int, *tags: str, keepdim: bool = False, **how: Any
) -> Sample:
    shape = summed(size, dim, keepdim)
    args = (rand(*shape, **how), _indices(size, dim, keepdim), size, dim, keepdim)
    return Sample(name, args, tags=frozenset(tags or ("edge",)))


def backward_at_indices(spec: OpSpec, gradient: Callable[..., Tensor]) -> OpSpec:
    """Return the backward operator of ``max`` or ``min``."""
    other = rand(9, dtype=torch.int32)
    return backward_of(
        spec,
        gradient,
        params=(Param("indices", "tensor"), Param("size", "size"), *spec.params[1:]),
        check=gradient_check,
        shape=lambda indices, size, dim, keepdim: summed(size, dim, keepdim),
        cost=gradient_cost,
        magnitude=gradient,  # it never rounds
        given=lambda sample: None,  # only shapes matter, and where the indices point
        samples=(
            _sample("inner_axis", (9, 33), -1, *SMOKE),
            _sample("outer_axis", (33, 9), 0, *SMOKE),
            _sample("middle_axis", (5, 6, 7), 1, keepdim=True),
            _sample("zero_dimensions", (), 0),
            _sample("gradient_of_a_sum", (9, 8, 7), 1, layout="repeated"),
            _sample("transposed", (9, 8, 7), 1, layout="transposed"),
            _sample("odd_storage_offset", (9, 8, 7), 1, layout="sliced"),
            _sample("gaps_in_memory", (9, 8, 7), 1, layout="strided"),
            _sample("channels_last", (2, 9, 4, 5), 3, keepdim=True, layout="channels_last"),
            _sample("stride_zero_grad", (9, 8, 7), 1, layout="expanded"),
            _sample("attention_inner", (4, 512, 896), -1, "bench"),
            _sample("attention_middle", (4, 512, 896), 1, "bench"),
        ),
        errors=(
            ErrorCase("axis", (rand(9), _indices((9, 33), -1, False), (9, 33), 5), match=r"dim must be in"),
            ErrorCase("places", (rand(9), rand(8, dtype=torch.int64), (9, 33), -1), match="indices must"),
            ErrorCase("dtype", (rand(9), other, (9, 33), -1), match="dtype torch.int64, got torch.int32"),
        ),
        terms=lambda *args: 1,
        exact=True,
        ways=lambda grad, indices, size, dim, keepdim: tuple(
            Way((w.result,) * 2, w.tensors[0], audits=True)
            for w in spec.ways(torch.empty(size, device="meta"), dim, keepdim)
        ),
        sketches=lambda grad, indices, size, dim, keepdim: {"indices": _indices(size, dim, keepdim)},
        outputs=lambda grad, indices, size, dim, keepdim: TensorMeta.row_major(size, grad.dtype, grad.device),
    )


BACKWARD = backward_at_indices(SPEC, gradient)
