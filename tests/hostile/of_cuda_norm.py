"""Mutations of batch_norm's CUDA C++ sources."""

from __future__ import annotations

from tests.hostile.mutations import BITS, FOREACH, MASK, NORM, NORM_BACK, NORM_SUMS, NORMS, STRIDE, one
from tests.hostile.of_cuda import half

MUTATIONS = (
    one(STRIDE, "foreach_batch_norm.cu", FOREACH[:1], "row = i * gridDim.y", "row = i", likely="edge"),
    one(STRIDE, "foreach_batch_norm_backward.cu", FOREACH[1:], "a.mean + row", "a.mean + i", likely="edge"),
    one(
        STRIDE,
        "foreach.cuh",
        FOREACH,
        "own = b.firsts[item + 1] - first",
        "own = b.firsts[item + 1] - b.firsts[0]",
        likely="edge",
    ),
    one(
        MASK,
        "foreach_sep_conv2d_backward.cu",
        FOREACH[1:],
        "a.begins[i] - COLUMNS * a.firsts[i]",
        "a.begins[i]",
        likely="edge",
    ),
    one(
        MASK,
        "channel.cuh",
        (*NORMS, *NORM_SUMS),
        "return end < c.terms ? end : c.terms;",
        "return end < c.terms ? end : c.terms + 1;",
    ),
    one(
        STRIDE,
        "batch_norm.cu",
        (NORM,),
        "out + locate(term, a.c.sizes, a.y_strides)",
        "out + locate(term, a.c.sizes, a.x_strides)",
        likely="expanded",
    ),
    one(
        BITS,
        "moments.cuh",
        (NORM, NORM_SUMS[0], "sep_conv2d_batch_norm"),
        "warp_sum(lane.squares + lane.count * off * off)",
        f"warp_sum({half('lane.squares + lane.count * off * off')})",
    ),
    one(
        MASK,
        "sep_conv2d.cu",
        ("sep_conv2d_batch_norm",),
        "sum += j < some ? tile[i][j] : 0.0f",
        "sum += tile[i][j]",
    ),
    one(
        BITS,
        "sep_conv2d.cu",
        ("sep_conv2d_batch_norm",),
        "over(squares[i] + count * off * off, lanes)",
        f"over({half('squares[i] + count * off * off')}, lanes)",
    ),
    one(
        STRIDE,
        "batch_norm_backward.cu",
        (NORM_BACK,),
        "out + locate(term, a.c.sizes, a.out_strides)",
        "out + locate(term, a.c.sizes, a.grad_strides)",
        likely="stride_zero",
    ),
    one(
        BITS,
        "batch_norm_backward.cu",
        (NORM_BACK,),
        "product += channel::tree(products);",
        f"product += {half('channel::tree(products)')};",
    ),
    one(
        STRIDE,
        "batch_norm_sum.cu",
        NORM_SUMS[:1],
        "out + locate(term, a.c.sizes, a.out_strides)",
        "out + locate(term, a.c.sizes, a.x_strides)",
        likely="expanded",
    ),
    one(
        STRIDE,
        "batch_norm_sum_backward.cu",
        NORM_SUMS[1:],
        "out + locate(term, a.c.sizes, a.out_strides)",
        "out + locate(term, a.c.sizes, a.grad_strides)",
        likely="stride_zero",
    ),
    one(
        BITS,
        "batch_norm_sum_backward.cu",
        NORM_SUMS[1:],
        "found[k] += channel::tree(products);",
        f"found[k] += {half('channel::tree(products)')};",
    ),
)
