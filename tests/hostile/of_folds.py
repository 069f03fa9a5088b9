"""Mutations of the kernels of the reductions that find an element, in CUDA C++ and in Numba for CUDA."""

from __future__ import annotations

from tests.hostile.mutations import ELEMENTS, FOLDS, MASK, NAN, STRIDE, Edit, Mutation, one
from tests.hostile.of_cuda import MISALIGNED
from tests.hostile.of_numba_cuda import ENDS

CUDA = (
    Mutation(
        MASK,
        "fold.cu",
        FOLDS,
        (
            Edit("if (ALL || at < last) x[u]", "if (true) x[u]"),
            Edit("if (!ALL && at >= last) break;", ""),
        ),
        raises=MISALIGNED,
    ),
    Mutation(
        STRIDE,
        "fold.cu",
        FOLDS,
        (
            Edit("locate(output, a.kept, a.x_kept)", "locate(output, a.kept, a.out_kept)"),
            Edit("locate(column, a.kept, a.x_kept)", "locate(column, a.kept, a.out_kept)"),
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
            Edit("value > best.value || (is_nan(value) && !is_nan(best.value))", "value > best.value"),
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
