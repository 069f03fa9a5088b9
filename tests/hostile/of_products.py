"""Mutations of the kernels of products and column sums in CUDA C++, and of convolutions on all backends."""

from tests.hostile.mutations import (
    BITS,
    COLUMNS,
    DIRECT,
    DIRECT_BACK,
    MASK,
    NAN,
    POINTS,
    POINTS_BACK,
    PRODUCT,
    STRIDE,
    one,
)
from tests.hostile.of_cuda import MISALIGNED, half
from tests.hostile.of_triton import HALF

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
        "sum = __fmaf_rn(x[term % (BY_LINE ? FOUR : 2)][row_of], y[term % 2][column_of], sum);",
        f"sum = {half('__fmaf_rn(x[term % (BY_LINE ? FOUR : 2)][row_of], y[term % 2][column_of], sum)')};",
    ),
    one(STRIDE, "matmul.cu", PRODUCT, "a.of_a, row, a.rows", "a.of_b, row, a.rows", raises=MISALIGNED),
    one(
        MASK,
        "matmul_slices.cu",
        PRODUCT,
        "terms_left = last_term - term;",
        "terms_left = last_term - term + 1;",
        likely="slices",
        why="a term past the last one is read",
    ),
    one(
        BITS,
        "matmul_slices.cu",
        PRODUCT,
        "sum = __fmaf_rn(x[term % 2][row_of], y[term % 2][column_of], sum);",
        f"sum = {half('__fmaf_rn(x[term % 2][row_of], y[term % 2][column_of], sum)')};",
        likely="slices",
    ),
    one(
        STRIDE,
        "matmul_slices.cu",
        PRODUCT,
        "a.of_a, of_team, row, a.rows, begin, last",
        "a.of_b, of_team, row, a.rows, begin, last",
        likely="slices",
        raises=MISALIGNED,
    ),
    one(
        MASK,
        "matmul_slices.cu",
        PRODUCT,
        "for (int s = 0; s < SLICES; ++s) {",
        "for (int s = 0; s < SLICES - 1; ++s) {",
        likely="slices",
        why="the last slice is left",
    ),
    one(MASK, "direct.cuh", (*DIRECT, *DIRECT_BACK), "column < part.width ?", "column <= part.width ?"),
    one(
        BITS,
        "direct.cuh",
        DIRECT,
        "sums[o][p] = __fmaf_rn(factor[o], seen[tap + p], sums[o][p]);",
        f"sums[o][p] = {half('__fmaf_rn(factor[o], seen[tap + p], sums[o][p])')};",
    ),
    one(STRIDE, "direct.cuh", (*DIRECT, *DIRECT_BACK), "row * step.row", "row * step.column"),
    one(
        BITS,
        "conv2d_backward.cu",
        DIRECT_BACK,
        "sums[o][b] = __fmaf_rn(factor[o][p], seen[p + b], sums[o][b]);",
        f"sums[o][b] = {half('__fmaf_rn(factor[o][p], seen[p + b], sums[o][b])')};",
    ),
    one(
        STRIDE,
        "conv2d_backward.cu",
        DIRECT_BACK,
        "line % a.rows * a.weight_step.row",
        "line % a.rows * a.weight_step.column",
    ),
    one(MASK, "column_sums.cu", COLUMNS, "part; row < rows;", "part; row < rows - 1;", why="a row is left"),
    one(
        BITS,
        "column_sums.cu",
        COLUMNS,
        "total += found[p][lane];",
        f"total = {half('total + found[p][lane]')};",
    ),
    one(STRIDE, "column_sums.cu", COLUMNS, "x[row * step]", "x[row * a.step[0]]"),
    one(
        MASK,
        "points.cuh",
        POINTS,
        "t < f.terms && t < begin",
        "t < f.terms - 1 && t < begin",
        why="a channel is left",
    ),
    one(
        BITS,
        "points.cuh",
        POINTS,
        "__fmaf_rn(w[e], pixels[p], sums[o + e][p]);",
        f"{half('__fmaf_rn(w[e], pixels[p], sums[o + e][p])')};",
    ),
    one(
        STRIDE,
        "points.cuh",
        (*POINTS, *POINTS_BACK),
        "row * a.x_step.row",
        "row * a.out_step.row",
        raises=MISALIGNED,
    ),
    one(
        NAN,
        "points.cuh",
        (*POINTS, *POINTS_BACK),
        "return x < 0.0f ? 0.0f : x;",
        "return x > 0.0f ? x : 0.0f;",
    ),
    one(
        MASK, "points.cuh", POINTS_BACK, "own[i][p] <= 0.0f", "own[i][p] < -1.0f", why="ReLU passes too much"
    ),
    one(
        BITS,
        "pointwise_conv2d_backward.cu",
        POINTS_BACK,
        "__fmaf_rn(g[p], seen[j][p], sums[i][j]);",
        f"{half('__fmaf_rn(g[p], seen[j][p], sums[i][j])')};",
    ),
)

TRITON = (
    one(MASK, "conv2d.py", DIRECT, "(j < size[1])", "(j <= size[1])"),
    one(
        BITS,
        "conv2d.py",
        DIRECT,
        "total += factor[:, None] * value[None, :]",
        f"total = (total + factor[:, None] * value[None, :]){HALF}",
    ),
    one(STRIDE, "conv2d.py", DIRECT, "j * steps[3]", "j"),
    one(MASK, "conv2d_backward.py", DIRECT_BACK, "(j < size[1])", "(j <= size[1])"),
    one(
        BITS,
        "conv2d_backward.py",
        DIRECT_BACK,
        "fresh += (sums[b] + value * seen[None, :],)",
        f"fresh += ((sums[b] + value * seen[None, :]){HALF},)",
    ),
    one(STRIDE, "conv2d_backward.py", DIRECT_BACK, "i * steps[2]", "i * steps[3]"),
)

NUMBA = (
    one(
        MASK,
        "conv2d.py",
        DIRECT,
        "min(sizes[MADE] - block * FILTERS, FILTERS)",
        "min(sizes[MADE] - block * FILTERS, FILTERS - 1)",
        why="a filter of a block is never written",
    ),
    one(
        BITS,
        "vectors.py",
        DIRECT,
        "builder.store(builder.call(fma, [factor, column, builder.load(total)]), total)",
        "sum_ = builder.call(fma, [factor, column, builder.load(total)]); "
        "large = builder.fmul(_splat(builder, ir.Constant(_F32, 8193.0)), sum_); "
        "builder.store(builder.fsub(large, builder.fsub(large, sum_)), total)",
        why="to the 11 bits of float16: Veltkamp's splitting",
    ),
    one(STRIDE, "conv2d.py", DIRECT, "c * steps[2, 1]", "c * steps[2, 2]"),
    one(
        MASK,
        "conv2d_filters.py",
        DIRECT_BACK,
        "min(sizes[WANTED] - term, TERMS)",
        "min(sizes[WANTED] - term, TERMS - 1)",
        why="a tap is never added up",
    ),
    one(
        BITS,
        "vectors.py",
        DIRECT_BACK,
        "builder.store(builder.call(fma, [factor, term, builder.load(total)]), total)",
        "sum_ = builder.call(fma, [factor, term, builder.load(total)]); "
        "large = builder.fmul(ir.Constant(kind, [8193.0] * RUN), sum_); "
        "builder.store(builder.fsub(large, builder.fsub(large, sum_)), total)",
        why="to the 11 bits of float16: Veltkamp's splitting",
    ),
    one(STRIDE, "conv2d_filters.py", DIRECT_BACK, "c * steps[2, 1]", "c * steps[2, 2]"),
)
