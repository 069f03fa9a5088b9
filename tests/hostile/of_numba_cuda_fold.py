"""Mutations of Numba's CUDA kernels of the reductions that find an element."""

from __future__ import annotations

from tests.hostile.mutations import ELEMENTS, FOLDS, MASK, NAN, STRIDE, one
from tests.hostile.of_numba_cuda import ENDS

MUTATIONS = (
    one(
        MASK,
        "gpu/fold.py",
        FOLDS,
        "if thread < outputs * parts:",
        "if thread <= outputs * parts:",
        raises=ENDS,
    ),
    one(STRIDE, "gpu/fold.py", FOLDS, "base = place(o, kept)", "base = o", count=2, raises=ENDS),
    one(
        NAN,
        "gpu/fold.py",
        ELEMENTS,
        "        return best == best or number < tap\n",
        "        return False\n",
    ),
)
