"""Mutations of the kernel of matrix products in CUDA C++."""

from __future__ import annotations

from tests.hostile.mutations import BITS, MASK, PRODUCT, STRIDE, one
from tests.hostile.of_cuda import MISALIGNED, half

CUDA = (
    one(
        MASK,
        "operand.cuh",
        PRODUCT,
        "(INNER ? along + e : along) < terms_left",
        "(INNER ? along + e : along) <= terms_left",
    ),
    one(
        BITS,
        "matmul.cu",
        PRODUCT,
        "sums[r][c] = __fmaf_rn(x[term % (BY_LINE ? FOUR : 2)][r], y[term % 2][c], sums[r][c]);",
        f"sums[r][c] = {half('__fmaf_rn(x[term % (BY_LINE ? FOUR : 2)][r], y[term % 2][c], sums[r][c])')};",
    ),
    one(STRIDE, "matmul.cu", PRODUCT, "a.of_a, row, a.rows", "a.of_b, row, a.rows", raises=MISALIGNED),
)
