"""Mutations of Numba's kernels on the CPU.

Where a whole mask gone would write over the allocator's own memory, it lets one element too many through.
"""

from tests.hostile.mutations import (
    BITS,
    BLENDS,
    ELEMENTS,
    FILTERED,
    FOLDS,
    GLOBAL_BACK,
    IMAGES,
    LARGEST,
    LARGEST_OF_ALL,
    MASK,
    MEANS,
    NAN,
    NORM,
    NORM_BACK,
    NORMS,
    ROWS,
    STRIDE,
    SUMS,
    TOP,
    Edit,
    Mutation,
    one,
)

CHEAPEST_FIRST = tuple(sorted(IMAGES, key=lambda op: op != "max_pool2d_backward"))
"""To compile: the first is what every run of the tests breaks."""

ROUND = "{0} = np.float32(8193) * {0} - (np.float32(8193) * {0} - {0})"
"""To the 11 bits of float16: Veltkamp's splitting."""

EIGHT = """
            part = peek(target, j) + r * load(a, k, token) + s * load(b, k, token) + t * load(c, k, token)
            part = part + u * load(d, k, token) + v * load(e, k, token) + w * load(f, k, token)
            store(target, j, part + y * load(g, k, token) + z * load(h, k, token), FLOAT)
"""
EIGHT_ROUNDED = f"""
            part = peek(target, j)
            for value in (
                r * load(a, k, token), s * load(b, k, token), t * load(c, k, token), u * load(d, k, token),
                v * load(e, k, token), w * load(f, k, token), y * load(g, k, token), z * load(h, k, token),
            ):
                part += value
                {ROUND.format("part")}
            store(target, j, part, FLOAT)
"""

MUTATIONS = (
    one(
        MASK,
        "memory.py",
        ("add", "softmax_sum_backward"),
        "min(chunk, length - start)",
        "min(chunk, length - start + 1)",
    ),
    one(
        BITS,
        "add.py",
        ("add",),
        " " * 12 + "store(out, ot + j, load(x, xt + j, x_token) + alpha * load(y, yt + j, y_token), token)\n",
        "            part = alpha * load(y, yt + j, y_token)\n"
        f"            {ROUND.format('part')}\n"
        "            store(out, ot + j, load(x, xt + j, x_token) + part, token)\n",
    ),
    one(
        STRIDE,
        "add.py",
        ("add",),
        "load(x, xt + j * xs, x_token) + alpha * load(y, yt + j * ys, y_token)",
        "load(x, xt + j * ys, x_token) + alpha * load(y, yt + j * xs, y_token)",
    ),
    one(MASK, "reduce.py", SUMS, "end = min(block + ROWS, last)", "end = block + ROWS"),
    Mutation(
        BITS,
        "reduce.py",
        SUMS,
        (
            Edit('@threads.jit(fastmath={"contract", "reassoc"})\ndef run(', "@threads.jit\ndef run("),
            Edit(
                "            total += load(x, at + j, token)\n",
                f"            total += load(x, at + j, token)\n            {ROUND.format('total')}\n",
            ),
            Edit(
                "            sums[j] += np.float64(peek(acc, j))\n",
                "            total = np.float32(sums[j]) + peek(acc, j)\n"
                f"            {ROUND.format('total')}\n"
                "            sums[j] = total\n",
            ),
        ),
    ),
    one(STRIDE, "reduce.py", SUMS, "return index * c[1]", "return index * b[1]"),
    one(
        MASK,
        "softmax_sum.py",
        ("softmax_sum",),
        "blend(out, xs, weights, start, min(CHUNK, size - start), width, token)",
        "blend(out, xs, weights, start, min(CHUNK, size - start + 1), width, token)",
    ),
    one(BITS, "softmax_sum.py", ("softmax_sum",), EIGHT, EIGHT_ROUNDED),
    one(STRIDE, "softmax_sum.py", ("softmax_sum",), "dims[-1, 2 + i]", "dims[-1, 1]"),
    one(TOP, "softmax_sum.py", BLENDS, "math.exp(weights[i] - top)", "math.exp(weights[i])"),
    one(
        NAN,
        "softmax_sum.py",
        BLENDS,
        "        top = max(top, weights[i])\n",
        "        weights[i] = weights[i] if weights[i] == weights[i] else -math.inf\n"
        "        top = max(top, weights[i])\n",
    ),
    Mutation(
        BITS,
        "softmax_sum_backward.py",
        ("softmax_sum_backward",),
        (
            Edit('@threads.jit(fastmath={"contract", "reassoc"})\ndef dot(', "@threads.jit\ndef dot("),
            Edit(
                "        total += load(a, at + j * a_step, a_token) * load(b, bt + j * b_step, token)\n",
                "        total += load(a, at + j * a_step, a_token) * load(b, bt + j * b_step, token)\n"
                f"        {ROUND.format('total')}\n",
            ),
        ),
    ),
    one(
        STRIDE,
        "softmax_sum_backward.py",
        ("softmax_sum_backward",),
        "xt, step = memory.offset(dims, row, start, 2 + i), dims[3, 2 + i]",
        "xt, step = memory.offset(dims, row, start, 2 + i), dims[3, 1]",
    ),
    one(
        MASK, "image.py", CHEAPEST_FIRST, "seen = high - low if 0 <= y < sizes[0] else 0", "seen = high - low"
    ),
    one(
        STRIDE,
        "image.py",
        CHEAPEST_FIRST,
        "start, next_one = base + y * step[2] + (left + low * gaps[1]) * step[3]",
        "start, next_one = base + y * step[3] + (left + low * gaps[1]) * step[2]",
    ),
    one(NAN, "max_pool2d.py", LARGEST, "(value > best) | (value != value)", "value > best"),
    one(MASK, "fold.py", FOLDS, "size = min(BLOCK, length - start)", "size = min(BLOCK, 2 * length)"),
    one(STRIDE, "fold.py", FOLDS, "base = split(o, kept[0], kept[1], kept[2])", "base = o"),
    Mutation(
        NAN,
        "fold.py",
        ELEMENTS,
        (
            Edit("return a if (a > b) | (a != a) else b", "return a if a > b else b"),
            Edit("return (value > best) | ((value != value) & (best == best))", "return value > best"),
            Edit("return NAN if total != total and odd(x, at, step, size, token) else top", "return top"),
            Edit("top = NAN if odd else larger(one, two)", "top = larger(one, two)"),
        ),
    ),
    one(
        NAN,
        "global_max_pool2d.py",
        LARGEST_OF_ALL,
        "return NAN if value != value else",
        "return np.int32(-NAN) if value != value else",
    ),
    Mutation(
        MASK,
        "global_max_pool2d.py",
        LARGEST_OF_ALL,
        (
            Edit("largest(x, at, 1, width, top, token)", "largest(x, at, 1, width + 1, top, token)"),
            Edit(
                "largest_numbered(x, at, 1, number, width, top, token)",
                "largest_numbered(x, at, 1, number, width + 1, top, token)",
            ),
        ),
    ),
    one(
        STRIDE,
        "global_max_pool2d.py",
        LARGEST_OF_ALL,
        "base, place = i * kept[0, 1] + j * kept[1, 1],",
        "base, place = i * kept[0, 2] + j * kept[1, 2],",
    ),
    one(
        MASK,
        "global_max_pool2d.py",
        GLOBAL_BACK,
        "min(image + many, images), min(start + size, pixels)",
        "image + many, min(start + size, pixels)",
    ),
    one(
        STRIDE,
        "global_max_pool2d.py",
        GLOBAL_BACK,
        "above * steps[0, 0] + plane * steps[0, 1]",
        "above * steps[1, 0] + plane * steps[1, 1]",
    ),
    one(
        BITS,
        "max_pool2d.py",
        ("max_pool2d_backward",),
        "        put(to, j, peek(to, j) + total if more else total, FIRST)\n",
        f"        {ROUND.format('total')}\n"
        "        put(to, j, peek(to, j) + total if more else total, FIRST)\n",
    ),
    one(
        BITS,
        "avg_pool2d.py",
        MEANS,
        "        put(to, j, peek(to, j) + total if more else total, token)\n",
        f"        {ROUND.format('total')}\n"
        "        put(to, j, peek(to, j) + total if more else total, token)\n",
    ),
    one(
        BITS,
        "depthwise.py",
        FILTERED,
        "            total += nw * take(tile, b + j, FIRST)\n",
        f"            total += nw * take(tile, b + j, FIRST)\n            {ROUND.format('total')}\n",
    ),
    one(
        NAN,
        "depthwise_filters.py",
        ("depthwise_conv2d_backward",),
        "            if total != total:\n",
        "            if False:\n",
        why="what lies beside the image counts: a zero times NaN is NaN",
    ),
    one(
        MASK,
        "rows.py",
        ROWS,
        "return found.count, found.length, table",
        "return found.count, found.length + 1, table",
    ),
    one(STRIDE, "rows.py", ROWS, "i * tensor[1]", "i"),
    one(TOP, "rows.py", ROWS, "math.exp(x[i] - top)", "math.exp(x[i])"),
    Mutation(
        NAN,
        "rows.py",
        ROWS,
        (
            Edit("top = max(top, x[i])", "top = x[i] if x[i] > top else top"),
            Edit(
                "        total += p[i]",
                "        if p[i] != p[i]:\n            p[i] = 0.0\n        total += p[i]",
            ),
        ),
    ),
    one(
        MASK,
        "channel.py",
        NORMS,
        "return min(BLOCK, table[2, 0] - run % blocks * BLOCK)",
        "return min(BLOCK, table[2, 0] - run % blocks * BLOCK) + 1",
    ),
    one(
        STRIDE,
        "batch_norm.py",
        (NORM,),
        "c * steps[1] + start(table, r, 2)",
        "c * steps[0] + start(table, r, 1)",
        likely="expanded",
    ),
    one(
        BITS,
        "batch_norm.py",
        (NORM,),
        "    mean = np.float32(exact)\n",
        f"    mean = np.float32(exact)\n    {ROUND.format('mean')}\n",
    ),
    one(
        STRIDE,
        "batch_norm.py",
        (NORM_BACK,),
        "to = c * steps[2] + start(table, r, 3)",
        "to = c * steps[1] + start(table, r, 2)",
        likely="stride_zero",
    ),
    one(
        BITS,
        "batch_norm.py",
        (NORM_BACK,),
        "np.float32(product / count * inverse * inverse)\n",
        f"np.float32(product / count * inverse * inverse)\n    {ROUND.format('level')}\n",
    ),
)
