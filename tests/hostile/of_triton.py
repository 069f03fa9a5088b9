"""Mutations of Triton's kernels, which the interpreter runs."""

from __future__ import annotations

from tests.hostile.mutations import (
    BITS,
    BLENDS,
    FILTERED,
    GLOBAL_BACK,
    IMAGES,
    LARGEST,
    LARGEST_OF_ALL,
    MASK,
    MEANS,
    NAN,
    ROWS,
    SEPARABLE,
    STRIDE,
    SUMS,
    TOP,
    Edit,
    Mutation,
    one,
)

HALF = ".to(tl.float16).to(tl.float32)"

MUTATIONS = (
    one(MASK, "add.py", ("add",), "mask = at < n", "mask = at <= n"),
    one(
        BITS,
        "add.py",
        ("add",),
        "alpha * widen(tl.load(y + at, mask, other=0.0))",
        f"(alpha * widen(tl.load(y + at, mask, other=0.0))){HALF}",
    ),
    one(
        STRIDE,
        "add.py",
        ("add",),
        "offset(row, sizes, x_strides, RANK)",
        "offset(row, sizes, y_strides, RANK)",
    ),
    one(MASK, "sum.py", SUMS, "(term < terms)[None, :]", "(term >= 0)[None, :]"),
    Mutation(
        BITS,
        "sum.py",
        SUMS,
        (
            Edit(
                "sums += widen(tl.load(x + at, mask, other=0.0))",
                f"sums = (sums + tl.load(x + at, mask, other=0.0)){HALF}",
            ),
            # In steps as small as on a device: the interpreter's own is so large that it takes but one.
            Edit(
                "block, span_terms, parts = blocks\n    outputs",
                "block, span_terms, parts = blocks[0], 16, blocks[2]\n    outputs",
            ),
        ),
        likely="all_axes",
    ),
    one(
        STRIDE,
        "sum.py",
        SUMS,
        "offset(k, kept_sizes, kept_strides, KEPT)",
        "offset(k, kept_sizes, out_strides, KEPT)",
    ),
    one(MASK, "softmax_sum.py", ("softmax_sum",), "mask = at < n", "mask = at <= n"),
    one(
        BITS,
        "softmax_sum.py",
        ("softmax_sum",),
        "total += weights[i] * widen(tl.load(x + place, mask, other=0.0))",
        f"total = (total + weights[i] * widen(tl.load(x + place, mask, other=0.0))){HALF}",
    ),
    one(
        STRIDE,
        "softmax_sum.py",
        ("softmax_sum",),
        "place = offset(at.to(tl.int32), sizes, strides, RANK)",
        "place = at",
    ),
    Mutation(
        TOP,
        "weights.py",
        BLENDS,
        (
            Edit("exp(values[0] - top)", "exp(values[0])"),
            Edit("exp(values[i] - top)", "exp(values[i])"),
            Edit("exp(value - tl.max(value, 0))", "exp(value)"),
        ),
    ),
    Mutation(
        NAN,
        "weights.py",
        BLENDS,
        (
            # As the hardware's maximum drops it; the interpreter's doesn't.
            Edit("top = widen(tl.load(logits))\n", 'top = tl.full([], float("-inf"), tl.float32)\n'),
            Edit("top = tl.maximum(top, value)", "top = tl.where(value > top, value, top)"),
            Edit("tl.where(x < UNDERFLOW, UNDERFLOW, x)", "tl.where(x > UNDERFLOW, x, UNDERFLOW)"),
        ),
    ),
    one(
        MASK,
        "softmax_sum_backward.py",
        ("softmax_sum_backward",),
        "mask = at < n",
        "mask = at <= n",
    ),
    Mutation(
        BITS,
        "softmax_sum_backward.py",
        ("softmax_sum_backward",),
        (
            Edit(
                "(dots[i] + g * widen(tl.load(x + x_at, mask, other=0.0)),)",
                f"((dots[i] + g * widen(tl.load(x + x_at, mask, other=0.0))){HALF},)",
            ),
            Edit("tl.sum(dots[i], 0))", f"tl.sum(dots[i], 0){HALF})"),
        ),
    ),
    one(
        STRIDE,
        "softmax_sum_backward.py",
        ("softmax_sum_backward",),
        "offset(at.to(tl.int32), sizes, x_strides, RANK)",
        "offset(at.to(tl.int32), sizes, grad_strides, RANK)",
    ),
    one(MASK, "strip.py", IMAGES, "ok = ok & (row >= 0) & (row < size[0])", "ok = ok & (row < size[0])"),
    one(
        STRIDE,
        "strip.py",
        IMAGES,
        "start = _row(pointer, row, column, strides, aligned(FORM, False), FORM)",
        "start = _row(pointer, row, column, (strides[0], strides[1], strides[3], strides[2]), 1, FORM)",
    ),
    Mutation(
        NAN,
        "max_pool2d.py",
        LARGEST,
        (
            Edit(
                "tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)",
                "tl.where(value > best, value, best)",
            ),
            Edit("(value > best) | (value != value)", "value > best"),
        ),
    ),
    one(MASK, "global_max_pool2d.py", LARGEST_OF_ALL, "(term < terms)[None, :]", "(term >= 0)[None, :]"),
    one(
        STRIDE,
        "global_max_pool2d.py",
        LARGEST_OF_ALL,
        "x_at = offset(k, kept_sizes, kept_strides, KEPT)",
        "x_at = offset(k, kept_sizes, out_strides, KEPT)",
    ),
    Mutation(
        NAN,
        "global_max_pool2d.py",
        LARGEST_OF_ALL,
        (
            Edit(
                "tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)",
                "tl.where(value > best, value, best)",
            ),
            Edit("(value > best) | (value != value)", "value > best"),
        ),
    ),
    one(
        MASK,
        "global_max_pool2d_backward.py",
        GLOBAL_BACK,
        "(pixel < pixels)[None, :]",
        "(pixel >= 0)[None, :]",
    ),
    one(
        STRIDE,
        "global_max_pool2d_backward.py",
        GLOBAL_BACK,
        "offset(k, kept_sizes, grad_strides, KEPT)",
        "offset(k, kept_sizes, offset_strides, KEPT)",
    ),
    one(
        BITS,
        "max_pool2d_backward.py",
        ("max_pool2d_backward",),
        "total + seen[place(FORM, v, b)], total)",
        f"(total + seen[place(FORM, v, b)]){HALF}, total)",
    ),
    one(
        BITS,
        "mean.py",
        MEANS,
        "total += seen[place(FORM, v, b)]",
        f"total = (total + seen[place(FORM, v, b)]){HALF}",
    ),
    one(
        BITS,
        "depthwise_conv2d.py",
        FILTERED,
        "total += filters[b] * seen[place(FORM, v, b)]",
        f"total = (total + filters[b] * seen[place(FORM, v, b)]){HALF}",
    ),
    one(
        MASK,
        "any_window.py",
        ("avg_pool2d", "max_pool2d", "max_pool2d_with_offsets", "depthwise_conv2d"),
        "            on = ok & (i >= 0) & (i < x_size[0]) & (j >= 0) & (j < x_size[1])\n",
        "            on = ok\n",
    ),
    one(
        MASK,
        "any_window.py",
        ("avg_pool2d_backward", "max_pool2d_backward", "depthwise_conv2d_backward"),
        "on = ok & (down >= 0) & (down % stride[0] == 0) & (i < grad_size[0])",
        "on = ok & (down % stride[0] == 0) & (i < grad_size[0])",
    ),
    Mutation(
        STRIDE,
        "any_window.py",
        IMAGES,
        (
            Edit("_at(x, image, channel, i, j, x_strides)", "_at(x, image, channel, j, i, x_strides)", 2),
            Edit(
                "_at(grad, image, channel, i, j, grad_strides)",
                "_at(grad, image, channel, j, i, grad_strides)",
            ),
        ),
    ),
    one(NAN, "any_window.py", LARGEST, "(value > total) | (value != value)", "value > total"),
    Mutation(
        BITS,
        "any_window.py",
        (*MEANS, *FILTERED),
        (
            Edit("                total += value\n", f"                total = (total + value){HALF}\n"),
            Edit(
                "total += value * widen(tl.load(weight + at, on, other=0.0))",
                f"total = (total + value * widen(tl.load(weight + at, on, other=0.0))){HALF}",
                2,
            ),
            Edit("total += value / (n", f"total = total{HALF} + value / (n"),
            Edit("total += value * scale", f"total = (total + value * scale){HALF}"),
        ),
    ),
    one(MASK, "rows.py", ROWS, "(column < length)[None, :]", "(column <= length)[None, :]"),
    Mutation(STRIDE, "rows.py", ROWS, (Edit("column[None, :] * entry", "column[None, :]", 2),)),
    one(TOP, "rows.py", ROWS, "power = exp(below)", "power = exp(x)"),
    one(
        NAN,
        "rows.py",
        ROWS,
        "    below = x - ",
        '    x = tl.where(x == x, x, float("-inf"))\n    below = x - ',
        why="as the hardware's maximum drops it",
    ),
    one(
        MASK,
        "separable.py",
        SEPARABLE,
        "on = ok & (i >= 0) & (i < size[0]) & (j >= 0) & (j < size[1])",
        "on = ok & (i >= 0) & (i < size[0]) & (j >= 0)",
    ),
    one(
        BITS,
        "separable.py",
        SEPARABLE,
        "total += value * _filter(filters, channel, known, a, b, of_filter)[:, None]",
        f"total = (total + value * _filter(filters, channel, known, a, b, of_filter)[:, None]){HALF}",
    ),
    one(
        STRIDE,
        "separable.py",
        SEPARABLE,
        "row.to(tl.int64) * strides[2] + column.to(tl.int64) * strides[3]",
        "column.to(tl.int64) * strides[2] + row.to(tl.int64) * strides[3]",
    ),
    Mutation(
        NAN,
        "separable.py",
        SEPARABLE,
        (Edit("tl.where(value < 0, 0.0, value)", "tl.where(value > 0, value, 0.0)", 2),),
    ),
)
