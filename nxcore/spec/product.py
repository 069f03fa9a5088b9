"""Product: a call of matmul in numbers, for the kernels of any plugin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from nxcore.spec.layout import Strides, broadcast_strides, collapse
from nxcore.spec.problem import TensorMeta


@dataclass(frozen=True)
class Product:
    """Products of matrices: their sizes, and the strides of each operand in elements.

    Attributes
    ----------
    rows, columns, terms : int
        Of one product.
    a : (int, int)
        From row to row, and from term to term.
    b : (int, int)
        From column to column, and from term to term.
    out : (int, int)
        From row to row, and from column to column.
    batch : tuple of int
        The sizes of the dimensions that count products, outermost first.
    a_batch, b_batch, out_batch : tuple of int
        Their strides; 0 where an operand is repeated.
    turned : bool
        It is the transposed product: ``a`` is the transposed second operand, ``b`` the first.

    Examples
    --------
    >>> meta = [TensorMeta.of(torch.empty(shape)) for shape in [(6, 5, 3), (3, 4), (6, 5, 4)]]
    >>> found = Product.of(*meta)
    >>> found.rows, found.columns, found.terms, found.batch
    (30, 4, 3, ())
    """

    rows: int
    columns: int
    terms: int
    a: tuple[int, int]
    b: tuple[int, int]
    out: tuple[int, int]
    batch: Strides = ()
    a_batch: Strides = ()
    b_batch: Strides = ()
    out_batch: Strides = ()
    turned: bool = False

    @classmethod
    def of(cls, a: TensorMeta, b: TensorMeta, out: TensorMeta) -> Self:
        """Describe ``a @ b`` in the fewest products; where neighbours in ``out`` are rows, turned."""
        row, column = a.ndim > 1, b.ndim > 1  # a vector has no rows, or no columns
        lead = out.ndim - row - column
        sizes, out_steps = out.shape[:lead], out.strides[lead:]
        a_steps, b_steps = a.strides[-2:], b.strides[-2:]
        found = cls(
            rows=a.shape[-2] if row else 1,
            columns=b.shape[-1] if column else 1,
            terms=a.shape[-1],
            a=(a_steps[0] if row else 0, a_steps[-1]),
            b=(b_steps[1] if column else 0, b_steps[0]),
            out=(out_steps[0] if row else 0, out_steps[-1] if column else 0),
        )
        batch, steps = collapse(
            sizes, out.strides[:lead], _lead(a, sizes, matrix=row), _lead(b, sizes, matrix=column)
        )
        found = replace(found, batch=batch, out_batch=steps[0], a_batch=steps[1], b_batch=steps[2])
        if found.rows == 1:
            found = replace(found, a=(0, found.a[1]), out=(0, found.out[1]))
        if found.columns == 1:
            found = replace(found, b=(0, found.b[1]), out=(found.out[0], 0))
        found = found.larger().transposed().larger()
        return found if found.out[1] == 1 and found.out[0] != 1 else found.transposed()

    def bound(self, out: TensorMeta, run: Callable[[Tensor, Tensor, Tensor], None]) -> Callable[..., Tensor]:
        """Return ``call(a, b, precision)`` of ``run(a, b, out)``, which takes the operands of this product.

        Examples
        --------
        >>> a, b = torch.ones(2, 3), torch.ones(3, 4)
        >>> meta = TensorMeta.of(torch.empty(2, 4))
        >>> found = Product.of(TensorMeta.of(a), TensorMeta.of(b), meta)
        >>> found.bound(meta, lambda a, b, out: out.fill_(7))(a, b, None).shape
        torch.Size([2, 4])
        """
        turned = self.turned

        def call(a: Tensor, b: Tensor, _precision: str | None = None) -> Tensor:
            made: Tensor = out.empty()
            if turned:
                run(b, a, made)
            else:
                run(a, b, made)
            return made

        return call

    def transposed(self) -> Self:
        """Return the transposed product, of the transposed operands."""
        return replace(
            self,
            rows=self.columns,
            columns=self.rows,
            a=self.b,
            b=self.a,
            out=self.out[::-1],
            a_batch=self.b_batch,
            b_batch=self.a_batch,
            turned=not self.turned,
        )

    def larger(self) -> Self:
        """Return it with those dimensions of the batch counted as rows in which ``b`` is repeated."""
        found = self
        while found.batch and found.b_batch[-1] == 0:
            size, steps = found.batch[-1], (found.a_batch[-1], found.out_batch[-1])
            rows, row_steps = found.rows, (found.a[0], found.out[0])
            if rows > 1 and steps != (rows * row_steps[0], rows * row_steps[1]):
                break
            if rows == 1:
                row_steps = steps
            found = replace(
                found,
                rows=rows * size,
                a=(row_steps[0], found.a[1]),
                out=(row_steps[1], found.out[1]),
                batch=found.batch[:-1],
                a_batch=found.a_batch[:-1],
                b_batch=found.b_batch[:-1],
                out_batch=found.out_batch[:-1],
            )
        return found


def _lead(meta: TensorMeta, sizes: Sequence[int], *, matrix: bool) -> Strides:
    """Return the strides of an operand's batch."""
    kept = max(meta.ndim - 2, 0) if matrix else 0
    shape, strides = meta.shape[:kept], meta.strides[:kept]
    return broadcast_strides(TensorMeta(shape, strides, meta.dtype, meta.device), sizes)
