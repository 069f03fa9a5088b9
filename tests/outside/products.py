"""Right calls of matmul, drawn by hypothesis; entered among those of ``strategies``."""

from typing import Any

import torch
from hypothesis import strategies as st

from tests.outside.strategies import Draw, Shape, strategy, tensor

SIDES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 64, 65, 129)


def _shapes(draw: Draw, most: int) -> tuple[Shape, Shape, Shape]:
    """Draw the shapes of both operands and of the result: matrices, batches of them, vectors."""
    rows, terms, columns = (draw(st.sampled_from(SIDES)) for _ in range(3))
    if draw(st.integers(0, 19)) == 0:
        rows = 0
    while max(rows * terms, terms * columns, rows * columns) > most:
        rows, terms, columns = (max(n // 2, 1) for n in (rows, terms, columns))
    kind = draw(st.sampled_from(["matrices", "matrices", "batches", "batches", "row", "column", "vectors"]))
    if kind == "batches":
        room = max(most // max(rows * terms, terms * columns, rows * columns, 1), 1)
        lead = tuple(min(draw(st.integers(1, 3)), room) for _ in range(draw(st.integers(1, 2))))
        lead = lead if lead[0] * lead[-1] <= room else (1,) * len(lead)
        other = tuple(1 if draw(st.booleans()) else n for n in lead)[draw(st.integers(0, len(lead))) :]
        first, second = (lead, other) if draw(st.booleans()) else (other, lead)
        return (*first, rows, terms), (*second, terms, columns), (*lead, rows, columns)
    first, made = ((terms,), ()) if kind in ("row", "vectors") else ((rows, terms), (rows,))
    second, along = ((terms,), ()) if kind in ("column", "vectors") else ((terms, columns), (columns,))
    return first, second, (*made, *along)


@strategy
def matmul(draw: Draw, most: int) -> tuple[Any, ...]:
    """Operands of any layouts."""
    first, second, _ = _shapes(draw, most)
    return tensor(draw, first, torch.float32), tensor(draw, second, torch.float32), "ieee32"


@strategy
def matmul_backward(draw: Draw, most: int) -> tuple[Any, ...]:
    """A gradient of any layout, and either gradient or both asked for."""
    first, second, made = _shapes(draw, most)
    mask = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    return (*(tensor(draw, shape, torch.float32) for shape in (made, first, second)), "ieee32", mask)
