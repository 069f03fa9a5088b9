"""Mutations of the kernels of the reductions that find an element, in CUDA C++ and in Numba for CUDA."""

from __future__ import annotations

from tests.hostile.mutations import ELEMENTS, FOLDS, MASK, NAN, STRIDE, Edit, Mutation, one
from tests.hostile.of_cuda import MISALIGNED
from tests.hostile.of_numba_cuda import ENDS

CUDA = (
    one(MASK, "terms.cuh", FOLDS, "if (ALL || at < last) {", "if (true) {", raises=MISALIGNED),
    Mutation(
        STRIDE,
        "fold.cu",
        FOLDS,
        (
            Edit("(output, a.kept, a.x_kept)", "(output, a.kept, a.out_kept)"),
            Edit("(column, a.kept, a.x_kept)", "(column, a.kept, a.out_kept)"),
        ),
        raises=MISALIGNED,
    ),
    Mutation(
        NAN,
        "fold.cu",
        ELEMENTS,
        (
            Edit(
                "best.value = largest::larger(best.value, value);", "best.value = fmaxf(best.value, value);"
            ),
            Edit("!(value <= best.value) && !is_nan(best.value)", "value > best.value"),
        ),
    ),
)

NUMBA_CUDA = (
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
