"""Mutations of the kernels of embedding."""

from tests.hostile.mutations import LOOKUP, MASK, STRIDE, one

CUDA = (
    one(MASK, "embedding.cu", LOOKUP, "i < all;", "i <= all;"),
    one(STRIDE, "embedding.cu", LOOKUP, "(row * a.columns + i % a.columns)", "(row * a.columns)"),
)

TRITON = (
    one(MASK, "embedding.py", LOOKUP, "& (column < columns)[None, :]", "& (column <= columns)[None, :]"),
    one(STRIDE, "embedding.py", LOOKUP, "row[:, None] * columns", "row[:, None]"),
)
