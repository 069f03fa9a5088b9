"""matmul_backward: the gradients of matmul, two products.

    grad_a = grad @ b^T;  grad_b = a^T @ grad, each summed over the batches that it was repeated in

Each product has a problem of its own, and so a kernel's tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nxcore.ops.matmul import SLICED, by_class, out_shape
from nxcore.ops.matmul import SPEC as FORWARD
from nxcore.plugin import Cost, Parts, Problem, Sample, TensorMeta, backward_of, rand

Call = Callable[..., Any]
Operands = tuple[Tensor, Tensor]


def operands(grad: Tensor, a: Tensor, b: Tensor) -> tuple[Operands, Operands]:
    """Return the factors of both products; a batch of rows by one matrix is one matrix."""
    if b.ndim == 1:
        grad, b = grad.unsqueeze(-1), b.unsqueeze(-1)
    if a.ndim == 1:
        grad, a = grad.unsqueeze(-2), a.unsqueeze(0)
    if b.ndim == 2:
        grad, a = grad.flatten(0, -2), a.flatten(0, -2)
    return (grad, b.mT), (a.mT, grad)


def fitted(found: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a product summed over the batches that its factor was repeated in, with its factor's shape."""
    if found.numel() == math.prod(shape):
        return found.reshape(shape)
    matrix = shape if len(shape) > 1 else (1, *shape) if found.shape[-2] == 1 else (*shape, 1)
    return found.sum_to_size((1,) * (found.ndim - len(matrix)) + matrix).reshape(shape)


def product(factors: Operands, like: Tensor, precision: str | None) -> Tensor:
    """Return one of the gradients; what is summed over a batch isn't rounded to 16 bits before."""
    (a, b), shape = factors, tuple(like.shape)
    summed = math.prod(out_shape(a, b)) != like.numel()
    if summed and like.dtype.itemsize < 4:
        return fitted(torch.matmul(a.float(), b.float()), shape).to(like.dtype)
    return fitted(by_class(precision, a, b), shape)


def gradients(
    grad: Tensor, a: Tensor, b: Tensor, precision: str | None, output_mask: tuple[bool, bool] = (True, True)
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of ``matmul``, accumulating in float32 or wider.

    Parameters
    ----------
    grad : Tensor
        The gradient of the result, any strides.
    a, b, precision
        As in ``matmul``.
    output_mask : (bool, bool)
        Which gradients to compute; the other is None.

    Returns
    -------
    a_grad, b_grad : Tensor
        The operands' shapes; contiguous.

    Raises
    ------
    InvalidInputError
        As ``matmul``, or if ``grad`` has another shape, dtype or device.

    Examples
    --------
    >>> nxcore.ops.matmul_backward(torch.ones(2, 1), torch.ones(2, 3), torch.ones(3, 1))[1]
    tensor([[2.],
            [2.],
            [2.]])
    """
    first, second = operands(grad, a, b)
    return (
        product(first, a, precision) if output_mask[0] else None,
        product(second, b, precision) if output_mask[1] else None,
    )


def gradient_outputs(_grad: Any, a: Any, b: Any, _precision: Any, output_mask: Any) -> Any:
    """Describe the gradients; None for empty ones."""
    if 0 in (*a.shape, *b.shape):
        return None
    metas = (TensorMeta.row_major(tuple(t.shape), t.dtype, t.device) for t in (a, b))
    return tuple(meta if wanted else None for meta, wanted in zip(metas, output_mask, strict=True))


def gradient_cost(grad: Any, a: Any, b: Any, _precision: Any, output_mask: Any) -> Cost:
    """Count what each requested product reads and writes, and two operations for each term."""
    wanted = sum(map(bool, output_mask))
    read = grad.nbytes + sum(
        t.nbytes * (bool(own) + bool(other))
        for t, own, other in zip((a, b), output_mask, output_mask[::-1], strict=True)
    )
    return Cost(bytes=read, flops=2 * wanted * grad.numel() * a.shape[-1])


def gradient_magnitude(grad: Tensor, a: Tensor, b: Tensor, _precision: Any, output_mask: Any) -> Any:
    """Return the gradients of absolute values."""
    return gradients(grad.abs(), a.abs(), b.abs(), None, output_mask)


def gradient_terms(grad: Any, a: Any, b: Any, _precision: Any, output_mask: Any) -> int:
    """Return the terms of the requested gradient that has more."""
    products = grad.numel() * a.shape[-1]
    shares = (products // max(t.numel(), 1) for t, wanted in zip((a, b), output_mask, strict=True) if wanted)
    return int(max(shares, default=1))


def _described(meta: TensorMeta) -> Tensor:
    return torch.empty_strided(meta.shape, meta.strides, dtype=meta.dtype, device="meta")


def _split(problem: Problem) -> tuple[Problem | None, ...]:
    """Return the problems of the requested products."""
    grad, a, b, precision, mask = problem.args
    found: list[Problem | None] = []
    for wanted, pair in zip(mask, operands(*map(_described, (grad, a, b))), strict=True):
        metas = tuple(TensorMeta(tuple(t.shape), t.stride(), t.dtype, problem.device) for t in pair)
        found.append(Problem(FORWARD, (*metas, precision)) if wanted else None)
    return tuple(found)


def _join(problem: Problem, *products: Call | None) -> Call:
    """Run the requested products."""

    def call(grad: Tensor, a: Tensor, b: Tensor, precision: Any, *_: Any) -> tuple[Tensor | None, ...]:
        pairs = operands(grad, a, b)
        shapes = (tuple(a.shape), tuple(b.shape))
        return tuple(
            None if product is None else fitted(product(*pair, precision), shape)
            for product, pair, shape in zip(products, pairs, shapes, strict=True)
        )

    return call


ROWS = (rand(12, 9), rand(12, 20), rand(20, 9))


def _given(sample: Sample) -> Sample | None:
    """Return a sample of the gradients, unless their terms overflow, or it is about a product alone."""
    grad = rand(*out_shape(*sample.args), dtype=sample.args[0].dtype)
    fits = sample.name not in ("overflow", "magnitudes_split", "cancelling", *(s.name for s in SLICED))
    return Sample(sample.name, (grad, *sample.args), sample.kwargs, sample.tags) if fits else None


SPEC = backward_of(
    FORWARD,
    gradients,
    given=_given,
    shape=out_shape,
    cost=gradient_cost,
    magnitude=gradient_magnitude,
    gradients=2,
    same_dtype=True,
    samples=(
        Sample("first_alone", ROWS, {"precision": "ieee32", "output_mask": (True, False)}),
        Sample("second_alone", ROWS, {"precision": "ieee32", "output_mask": (False, True)}),
        Sample("gradient_of_a_sum", (rand(12, 9, layout="repeated"), *ROWS[1:]), {"precision": "ieee32"}),
    ),
    terms=gradient_terms,
    outputs=gradient_outputs,
    parts=Parts(("matmul", "matmul"), _split, _join),
)
