"""Mutations of the kernels of the reductions that find an element, in CUDA C++."""

from tests.hostile.mutations import ELEMENTS, FOLDS, MASK, NAN, STRIDE, Edit, Mutation, one
from tests.hostile.of_cuda import MISALIGNED

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
