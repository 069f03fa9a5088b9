"""Mutations of the CUDA C++ sources, which g++ compiles for the emulator. CuPy launches the same sources.

Where a whole mask gone would write over the allocator's own memory, it lets one element too many through.
"""

from tests.hostile.mutations import (
    BITS,
    BLENDS,
    FILTERED,
    GLOBAL_BACK,
    LARGEST,
    LARGEST_OF_ALL,
    MASK,
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

BACK = ("depthwise_conv2d_backward",)
MISALIGNED = "misaligned address"
"""What the emulator itself finds out."""


def half(value: str) -> str:
    """Return C++ that rounds a float to 16 bits."""
    return f"widen(narrow<float16>({value}))"


MUTATIONS = (
    one(MASK, "add.cu", ("add",), "at < start + VECTOR && at < a.n", "at < start + VECTOR && at <= a.n"),
    one(BITS, "add.cu", ("add",), "fmaf(alpha, y, x)", f"{half('alpha * y')} + x"),
    one(
        STRIDE,
        "add.cu",
        ("add",),
        "static_cast<const X*>(a.x) + at[0]",
        "static_cast<const X*>(a.x) + at[1]",
        raises=MISALIGNED,
    ),
    one(MASK, "terms.cuh", SUMS, "if (ALL || at < last) {", "if (true) {"),
    Mutation(
        BITS,
        "sum.cu",
        SUMS,
        (
            Edit("sums[u] += sums[u + half];", f"sums[u] = {half('sums[u] + sums[u + half]')};"),
            Edit("totals[e] += sums[0];", f"totals[e] = {half('totals[e] + sums[0]')};"),
            Edit("totals[e] += totals[e + half];", f"totals[e] = {half('totals[e] + totals[e + half]')};"),
        ),
    ),
    Mutation(
        STRIDE,
        "sum.cu",
        SUMS,
        (
            Edit("(output, a.kept, a.x_kept)", "(output, a.kept, a.out_kept)"),
            Edit("(column, a.kept, a.x_kept)", "(column, a.kept, a.out_kept)"),
        ),
        raises=MISALIGNED,
    ),
    one(
        MASK,
        "reduce.cuh",
        SUMS,
        "for (int r = 1; r < rows; ++r)",
        "for (int r = 0; r < rows; ++r)",
        why="the first row of threads counts twice",
        slow=True,
    ),
    Mutation(
        TOP,
        "softmax.cuh",
        BLENDS,
        (
            Edit("expf(logit - top)", "expf(logit)"),
            Edit("expf(read(logits, kind, i * step) - top)", "expf(read(logits, kind, i * step))"),
        ),
    ),
    Mutation(
        NAN,
        "softmax.cuh",
        BLENDS,
        (
            Edit("< COUNT ? expf(logit - top)", "< COUNT && !is_nan(logit) ? expf(logit - top)"),
            Edit(
                "const float power = expf(read(logits, kind, i * step) - top);",
                "const float found = read(logits, kind, i * step);\n"
                "      const float power = is_nan(found) ? 0.0f : expf(found - top);",
            ),
        ),
    ),
    one(MASK, "softmax_sum.cu", ("softmax_sum",), "rest < a.n", "rest <= a.n"),
    Mutation(
        BITS,
        "softmax_sum.cu",
        ("softmax_sum",),
        (
            Edit(
                "total = fmaf(weights[i], widen(x[item][i][e]), total)",
                f"total = {half('fmaf(weights[i], widen(x[item][i][e]), total)')}",
            ),
            Edit(
                "totals[e] = fmaf(weight, widen(x[e]), totals[e])",
                f"totals[e] = {half('fmaf(weight, widen(x[e]), totals[e])')}",
            ),
        ),
    ),
    Mutation(
        STRIDE,
        "softmax_sum.cu",
        ("softmax_sum",),
        (
            Edit("locate(index, a.sizes, a.x_strides[0])", "locate(index, a.sizes, a.out_strides)"),
            Edit("locate(index, a.sizes, a.x_strides[i])", "locate(index, a.sizes, a.out_strides)"),
        ),
        raises=MISALIGNED,
    ),
    one(
        MASK,
        "softmax_sum_backward.cu",
        ("softmax_sum_backward",),
        "for (; at < a.n; ++at) {",
        "for (; at <= a.n; ++at) {",
    ),
    Mutation(
        BITS,
        "softmax_sum_backward.cu",
        ("softmax_sum_backward",),
        (
            Edit(
                "dots[i] = fmaf(g[e], widen(x[e]), dots[i])",
                f"dots[i] = {half('fmaf(g[e], widen(x[e]), dots[i])')}",
            ),
            Edit("dot = fmaf(g[e], widen(x[k][e]), dot)", f"dot = {half('fmaf(g[e], widen(x[k][e]), dot)')}"),
            Edit(
                "total += shared[w * COUNT + threadIdx.x]",
                f"total = {half('total + shared[w * COUNT + threadIdx.x]')}",
            ),
        ),
    ),
    Mutation(
        STRIDE,
        "softmax_sum_backward.cu",
        ("softmax_sum_backward",),
        (
            Edit("locate(index, a.sizes, a.x_strides[0])", "locate(index, a.sizes, a.grad_strides)"),
            Edit("locate(index, a.sizes, a.x_strides[i])", "locate(index, a.sizes, a.grad_strides)"),
        ),
        raises=MISALIGNED,
    ),
    # Pools: what slides, then any window.
    one(
        MASK,
        "pool.cuh",
        ("avg_pool2d", *LARGEST, "avg_pool2d_backward"),
        "line.read((unsigned)(first + k) < (unsigned)height, own, source, values);",
        "line.read(true, own, source, values);",
    ),
    one(
        STRIDE,
        "pool.cuh",
        ("avg_pool2d", *LARGEST, "avg_pool2d_backward"),
        "    own += step;\n    Item items",
        "    own += line.step;\n    Item items",
        raises=MISALIGNED,
    ),
    one(
        MASK,
        "pool.cuh",
        ("avg_pool2d", *LARGEST),
        "last = most < w.kernel[axis] ? most : w.kernel[axis];",
        "last = w.kernel[axis];",
        likely="unroll",
        slow=True,
    ),
    one(
        MASK,
        "pool.cuh",
        ("avg_pool2d_backward", "max_pool2d_backward"),
        "last = most < w.outputs[axis] ? most : w.outputs[axis] - 1;",
        "last = most;",
        likely="unroll",
        slow=True,
    ),
    one(BITS, "avg_pool2d.cu", ("avg_pool2d",), "return x + y;", f"return {half('x + y')};"),
    one(
        BITS,
        "avg_pool2d.cu",
        ("avg_pool2d",),
        "sum += part;",
        f"sum = {half('sum + part')};",
        likely="unroll",
        slow=True,
    ),
    Mutation(
        BITS,
        "avg_pool2d_backward.cu",
        ("avg_pool2d_backward",),
        (
            Edit("return x + y;", f"return {half('x + y')};"),
            Edit("sums[r][q][l] += part;", f"sums[r][q][l] = {half('sums[r][q][l] + part')};"),
            Edit("sum += part;", f"sum = {half('sum + part')};"),
        ),
    ),
    one(
        MASK,
        "avg_pool2d_backward.cu",
        ("avg_pool2d_backward",),
        "line.read((unsigned)row < (unsigned)a.outputs[0], own,",
        "line.read(true, own,",
        likely="reduction",
        slow=True,
    ),
    one(NAN, "largest.cuh", (*LARGEST, *LARGEST_OF_ALL), "return b > a || is_nan(b);", "return b > a;"),
    one(
        MASK,
        "max_pool2d_backward.cu",
        ("max_pool2d_backward",),
        "const bool in = (unsigned)(place.row / S + i) < (unsigned)a.outputs[0];",
        "const bool in = true;",
    ),
    one(
        BITS,
        "max_pool2d_backward.cu",
        ("max_pool2d_backward",),
        "sums[r][q][l] += value;",
        f"sums[r][q][l] = {half('sums[r][q][l] + value')};",
        likely="three",
    ),
    one(
        STRIDE,
        "max_pool2d_backward.cu",
        ("max_pool2d_backward",),
        "    grad += a.grad_strides.row;\n    taps",
        "    grad += a.grad_strides.column;\n    taps",
        raises=MISALIGNED,
    ),
    one(
        BITS,
        "max_pool2d_backward.cu",
        ("max_pool2d_backward",),
        "sums[in ? at : beside] += widen(now.grads[k]);",
        f"sums[in ? at : beside] = {half('sums[in ? at : beside] + widen(now.grads[k])')};",
        likely="seven",
        slow=True,
    ),
    one(
        MASK,
        "max_pool2d_backward.cu",
        ("max_pool2d_backward",),
        "const bool in = on && found.column + k < a.outputs[1];",
        "const bool in = on;",
        likely="seven",
        slow=True,
    ),
    one(MASK, "global_max_pool2d.cu", LARGEST_OF_ALL, "if (ALL || at < a.terms) {", "if (true) {"),
    Mutation(
        STRIDE,
        "global_max_pool2d.cu",
        LARGEST_OF_ALL,
        (
            Edit("locate(output, a.kept, a.x_kept)", "locate(output, a.kept, a.out_kept)"),
            Edit("locate(column, a.kept, a.x_kept)", "locate(column, a.kept, a.out_kept)"),
        ),
        raises=MISALIGNED,
    ),
    one(MASK, "global_max_pool2d_backward.cu", GLOBAL_BACK, "if (start + VECTOR <= a.n) {", "if (true) {"),
    one(
        STRIDE, "global_max_pool2d_backward.cu", GLOBAL_BACK, "T share = grad[at[0]]", "T share = grad[at[1]]"
    ),
    # Depthwise convolutions: over planes, over pixels, spread apart, any.
    one(
        MASK,
        "depthwise_rows.cuh",
        FILTERED,
        "inside && (unsigned)(first - pad + i) < (unsigned)width",
        "inside",
    ),
    one(
        BITS,
        "depthwise_slide.cuh",
        FILTERED,
        "sum[k][j] = __fmaf_rn(taps[tap * K + b], value[S * j + D * b], sum[k][j]);",
        f"sum[k][j] = {half('__fmaf_rn(taps[tap * K + b], value[S * j + D * b], sum[k][j])')};",
    ),
    one(
        STRIDE,
        "depthwise_slide.cuh",
        FILTERED,
        "from + t * (long long)a.window_row * D, column",
        "from + t * (long long)a.out_width * D, column",
        raises=MISALIGNED,
    ),
    one(NAN, "depthwise_filters.cuh", BACK, "if (__syncthreads_or(odd)) {", "if (__syncthreads_or(false)) {"),
    one(NAN, "depthwise_pixels.cuh", BACK, "warp == 0 && is_nan(sum)", "false"),
    one(
        MASK,
        "depthwise_pixels.cuh",
        FILTERED,
        "inside && (unsigned)(left + i * D) < (unsigned)a.window_width",
        "inside",
        likely="channels_last",
    ),
    one(
        BITS,
        "depthwise_pixels.cuh",
        FILTERED,
        "sum[k][j][c] = __fmaf_rn(taps[tap * K + b][c], seen_value, sum[k][j][c]);",
        f"sum[k][j][c] = {half('__fmaf_rn(taps[tap * K + b][c], seen_value, sum[k][j][c])')};",
        likely="channels_last",
    ),
    one(
        STRIDE,
        "depthwise_pixels.cuh",
        FILTERED,
        "t * D * (long long)a.window_row + i * D * (long long)a.window_column",
        "t * D * (long long)a.window_column + i * D * (long long)a.window_row",
        likely="channels_last",
        raises=MISALIGNED,
    ),
    one(
        BITS,
        "depthwise_spread.cuh",
        BACK,
        "sum[k][j] = __fmaf_rn(taps[tap * K + b], value[twice / 2], sum[k][j]);",
        f"sum[k][j] = {half('__fmaf_rn(taps[tap * K + b], value[twice / 2], sum[k][j])')};",
        likely="strided",
        slow=True,
    ),
    one(
        MASK,
        "depthwise_spread.cuh",
        BACK,
        "(unsigned)(seen + t) < (unsigned)height",
        "true",
        likely="strided",
        slow=True,
    ),
    one(
        MASK,
        "depthwise_any.cuh",
        FILTERED,
        "      if (column < 0 || column >= s.width) continue;\n",
        "",
        likely="unroll",
    ),
    one(
        BITS,
        "depthwise_any.cuh",
        FILTERED,
        "widen(from[row * a.from_step.row + column * a.from_step.column]), sum);",
        "widen(from[row * a.from_step.row + column * a.from_step.column]), sum);\n      sum = "
        f"{half('sum')};",
        likely="unroll",
    ),
    one(
        STRIDE,
        "depthwise_any.cuh",
        FILTERED,
        "row * a.from_step.row + column * a.from_step.column",
        "row * a.from_step.column + column * a.from_step.row",
        likely="unroll",
        raises=MISALIGNED,
    ),
    one(
        MASK,
        "depthwise_any.cuh",
        BACK,
        "if (row >= 0 && row < s.height && column >= 0 && column < s.width)",
        "if (row >= 0 && row < s.height)",
        likely="unroll",
        slow=True,
    ),
    one(MASK, "rows.cuh", ROWS, "i < r.length", "i <= r.length"),
    one(STRIDE, "rows.cuh", ROWS, "i * r.entry[which]", "i"),
    one(TOP, "rows.cuh", ROWS, "expf(x[k] - top)", "expf(x[k])"),
    one(NAN, "rows.cuh", ROWS, "expf(x[k] - top)", "is_nan(x[k]) ? 0.0f : expf(x[k] - top)"),
    one(MASK, "sep_conv2d.cu", SEPARABLE[:1], "    clear(xs, count * b.x_rows * b.x_pitch);\n", ""),
    one(MASK, "sep_conv2d_backward.cu", SEPARABLE[1:], "    clear(zs, count * b.z_rows * b.z_pitch);\n", ""),
    one(BITS, "separable.cuh", SEPARABLE, "fmaf(l[i], r[j], sum[i][j])", half("fmaf(l[i], r[j], sum[i][j])")),
    one(STRIDE, "separable.cuh", SEPARABLE, "row * step.row +", "row * step.column +", raises=MISALIGNED),
    one(NAN, "separable.cuh", SEPARABLE, "relu && value[e] < 0.0f", "relu && !(value[e] > 0.0f)"),
)
