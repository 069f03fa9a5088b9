"""Mutations of Numba's CUDA kernels, which the simulator runs: it refuses an index past the end by itself."""

from tests.hostile.mutations import (
    BITS,
    GLOBAL_BACK,
    LARGEST,
    LARGEST_OF_ALL,
    MASK,
    MEANS,
    NAN,
    STRIDE,
    SUMS,
    TOP,
    Edit,
    Mutation,
    one,
)

POOLS = (*LARGEST, "max_pool2d_backward", *MEANS)
ENDS = "IndexError"


def half(value: str) -> str:
    """Return Python that rounds a number to 16 bits."""
    return f"np.float32(np.float16({value}))"


def addition(target: str, value: str, find: str = "", count: int = 1) -> Edit:
    """Return the edit that rounds ``target += value`` to 16 bits."""
    return Edit(find or f"{target} += {value}\n", f"{target} = {half(f'{target} + {value}')}\n", count)


TAP = "np.float32(x[at(n, c, row, column, xs)])"

MUTATIONS = (
    one(
        MASK,
        "gpu/add.py",
        ("add",),
        "while i < size:\n        out[i]",
        "while i <= size:\n        out[i]",
        raises=ENDS,
    ),
    one(BITS, "gpu/add.py", ("add",), "alpha * np.float32(y[i])", half("alpha * np.float32(y[i])")),
    one(
        STRIDE,
        "gpu/add.py",
        ("add",),
        "x[u * a[2] + v * b[2] + w * c[2] + z * d[2]]",
        "x[u * a[3] + v * b[3] + w * c[3] + z * d[3]]",
        raises=ENDS,
    ),
    Mutation(
        MASK,
        "gpu/reduce.py",
        SUMS,
        (
            Edit("end = (p + 1) * terms // parts\n", "end = (p + 1) * terms // parts + 1\n"),
            Edit(
                "for i in range(start, (p + 1) * terms // parts):",
                "for i in range(start, (p + 1) * terms // parts + 1):",
            ),
        ),
        raises=ENDS,
    ),
    Mutation(
        BITS,
        "gpu/reduce.py",
        SUMS,
        (
            Edit("FLUSH = 64\n", "FLUSH = 1\n"),
            Edit("total += np.float64(part)\n", f"total = {half('total + part')}\n", 3),
            Edit("sums[lane] += sums[lane + half]", f"sums[lane] = {half('sums[lane] + sums[lane + half]')}"),
        ),
    ),
    Mutation(
        STRIDE,
        "gpu/reduce.py",
        SUMS,
        (
            Edit(
                "base = k0 * kept[0][1] + k1 * kept[1][1] + k2 * kept[2][1]",
                "base = k0 * kept[0][2] + k1 * kept[1][2] + k2 * kept[2][2]",
                2,
            ),
        ),
        raises=ENDS,
    ),
    one(
        MASK,
        "gpu/softmax_sum.py",
        ("softmax_sum",),
        "while i < size:",
        "while i <= size:",
        count=2,
        raises=ENDS,
    ),
    Mutation(
        BITS,
        "gpu/softmax_sum.py",
        ("softmax_sum",),
        (
            Edit("part = weights[0] * np.float32(a[i])", f"part = {half('weights[0] * np.float32(a[i])')}"),
            *(
                addition("part", f"weights[{k}] * np.float32({x}[i])")
                for k, x in enumerate("bcdefgh", start=1)
            ),
        ),
    ),
    one(
        STRIDE,
        "gpu/softmax_sum.py",
        ("softmax_sum",),
        "np.float32(logits[(first + k) * stride])",
        "np.float32(logits[first + k])",
        likely="strided_logits",
        why="the logits' stride is taken for 1: the candidates themselves must be dense",
    ),
    Mutation(
        TOP,
        "gpu/softmax_sum.py",
        ("softmax_sum",),
        (
            Edit("np.float32(logits[k * stride]) - top", "np.float32(logits[k * stride])", 2),
            Edit("weights[k] - top", "weights[k]"),
        ),
        raises="OverflowError",  # of Python's math.exp, which the simulator calls
    ),
    Mutation(
        NAN,
        "gpu/softmax_sum.py",
        ("softmax_sum",),
        (
            Edit(
                "np.float32(math.exp(np.float32(logits[k * stride]) - top))",
                "np.nan_to_num(np.float32(math.exp(np.float32(logits[k * stride]) - top)))",
                2,
            ),
            Edit(
                "np.float32(math.exp(weights[k] - top))",
                "np.nan_to_num(np.float32(math.exp(weights[k] - top)))",
            ),
        ),
    ),
    one(
        MASK,
        "gpu/softmax_sum.py",
        ("softmax_sum_backward",),
        "while i < size:",
        "while i <= size:",
        count=2,
        raises=ENDS,
    ),
    Mutation(
        BITS,
        "gpu/softmax_sum.py",
        ("softmax_sum_backward",),
        (
            Edit(
                "dot += np.float64(g * np.float32(x[i]))",
                "dot = np.float64(np.float16(dot + np.float64(g * np.float32(x[i]))))",
            ),
            Edit(
                "parts[lane] += parts[lane + half]",
                "parts[lane] = np.float16(parts[lane] + parts[lane + half])",
            ),
            Edit("part += dots[lane * blocks + b]", "part = np.float16(part + dots[lane * blocks + b])"),
        ),
    ),
    one(
        STRIDE,
        "gpu/softmax_sum.py",
        ("softmax_sum_backward",),
        "np.float32(logits[index * stride])",
        "np.float32(logits[index])",
        likely="strided_logits",
        why="the logits' stride is taken for 1: the candidates themselves must be dense",
    ),
    Mutation(
        TOP,
        "gpu/softmax_sum.py",
        ("softmax_sum_backward",),
        (
            Edit("np.float32(logits[k * stride]) - top", "np.float32(logits[k * stride])", 2),
            Edit("weight - top", "weight"),
        ),
        raises="OverflowError",
    ),
    Mutation(
        NAN,
        "gpu/softmax_sum.py",
        ("softmax_sum_backward",),
        (
            Edit(
                "weights[lane] = math.exp(",
                "weights[lane] = 0 if np.isnan(np.float32(logits[lane * stride])) else math.exp(",
            ),
            Edit(
                "scale += math.exp(np.float64(np.float32(logits[k * stride])) - top)",
                "scale += np.nan_to_num(math.exp(np.float64(np.float32(logits[k * stride])) - top))",
            ),
        ),
    ),
    one(
        STRIDE,
        "gpu/image.py",
        POOLS,
        "return n * strides[0] + c * strides[1] + y * strides[2] + x * strides[3]",
        "return n * strides[0] + c * strides[1] + y * strides[3] + x * strides[2]",
        raises=ENDS,
    ),
    one(MASK, "gpu/max_pool2d.py", LARGEST, "if 0 <= row < image[0]:", "if row < image[0]:", raises=ENDS),
    one(
        NAN,
        "gpu/max_pool2d.py",
        LARGEST,
        "if value > best or value != value or not seen:",
        "if value > best or not seen:",
    ),
    one(
        MASK,
        "gpu/max_pool2d.py",
        ("max_pool2d_backward",),
        "row % stride[0] == 0 and row // stride[0] < outputs[0]:",
        "row % stride[0] == 0:",
        raises=ENDS,
    ),
    Mutation(
        BITS,
        "gpu/max_pool2d.py",
        ("max_pool2d_backward",),
        (addition("total", "np.float32(grad[at(n, c, p, q, grads)])"),),
    ),
    one(
        MASK,
        "gpu/avg_pool2d.py",
        ("avg_pool2d",),
        "for row in range(most(top, 0), least(top + kernel[0], image[0])):",
        "for row in range(top, least(top + kernel[0], image[0])):",
        raises=ENDS,
    ),
    Mutation(BITS, "gpu/avg_pool2d.py", ("avg_pool2d",), (addition("total", TAP),)),
    one(
        MASK,
        "gpu/avg_pool2d.py",
        ("avg_pool2d_backward",),
        "least(y // stride[0] + 1, outputs[0])",
        "y // stride[0] + 1",
        raises=ENDS,
    ),
    Mutation(
        BITS,
        "gpu/avg_pool2d.py",
        ("avg_pool2d_backward",),
        (addition("total", "np.float32(grad[at(n, c, p, q, grads)]) / np.float32(count)"),),
    ),
    one(
        MASK,
        "gpu/global_max_pool2d.py",
        LARGEST_OF_ALL,
        "if thread < outputs * parts:",
        "if thread <= outputs * parts:",
        raises=ENDS,
    ),
    Mutation(
        STRIDE,
        "gpu/global_max_pool2d.py",
        LARGEST_OF_ALL,
        (Edit("base = k0 * kept[0][1] + k1 * kept[1][1]", "base = k0 * kept[0][2] + k1 * kept[1][2]", 2),),
        raises=ENDS,
    ),
    Mutation(
        NAN,
        "gpu/global_max_pool2d.py",
        LARGEST_OF_ALL,
        (
            Edit("if value > best or value != value:", "if value > best:"),
            Edit("        return best == best or number > tap\n", "        return False\n"),
        ),
    ),
    one(
        MASK,
        "gpu/global_max_pool2d.py",
        GLOBAL_BACK,
        "while i < walk[0]:",
        "while i <= walk[0]:",
        raises=ENDS,
    ),
    one(
        STRIDE,
        "gpu/global_max_pool2d.py",
        GLOBAL_BACK,
        "grad[at(n, c, 0, 0, grads)]",
        "grad[at(n, c, 0, 0, taps)]",
    ),
)
