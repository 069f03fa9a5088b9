"""How the operands of strict products are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from nxcore.plugin import Product

FOUR = 4  # floats of a vector, and of the padding of a stage


def _vectors(inner: int, extent: int, others: tuple[int, ...], step: int) -> bool:
    """Return whether vectors of four along a dimension are whole and aligned."""
    return inner == 1 and extent % FOUR == 0 and all(s % FOUR == 0 for s in (step, *others))


@dataclass(frozen=True)
class Way:
    """How an operand is loaded: along its terms or its lines, in vectors or one by one."""

    inner: bool
    vectors: bool

    @classmethod
    def of(cls, lines: int, terms: int, strides: tuple[int, int], batch: tuple[int, ...]) -> Self:
        """Choose the way for an operand."""
        line, term = strides
        if _vectors(term, terms, batch, line if lines > 1 else 0):
            return cls(inner=True, vectors=True)
        if _vectors(line, lines, batch, term if terms > 1 else 0):
            return cls(inner=False, vectors=True)
        return cls(inner=abs(term) < abs(line) or lines == 1, vectors=False)

    @classmethod
    def both(cls, product: Product) -> tuple[Self, Self]:
        """Choose the ways for both operands."""
        p = product
        return cls.of(p.rows, p.terms, p.a, p.a_batch), cls.of(p.columns, p.terms, p.b, p.b_batch)
