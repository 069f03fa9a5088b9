"""Mutations of CUDA C++ sources: of the outputs of separable convolutions on square planes."""

from tests.hostile.mutations import BITS, FOREACH, MASK, NAN, SEPARABLE, STRIDE, one
from tests.hostile.of_cuda import half

SOURCE, PARTS = "sep_conv2d_planes.cu", "sep_conv2d_parts.cu"
SINGLE, BLOCK, LIST = SEPARABLE[:1], ("sep_conv2d_batch_norm",), FOREACH[:1]

MUTATIONS = (
    one(MASK, SOURCE, SINGLE, "strip > 0 ? before : 0.0f", "before", likely="square"),
    one(MASK, SOURCE, LIST, "row >= 0 && row < B::SIDE ?", "row >= 0 ?", likely="square"),
    one(
        MASK,
        SOURCE,
        BLOCK,
        "i < planes * B::STRIPS; i += B::THREADS",
        "i < (planes - 1) * B::STRIPS; i += B::THREADS",
        likely="square",
    ),
    one(
        STRIDE,
        SOURCE,
        SINGLE,
        "row / DILATION % ROWS * (SIDE / ROWS) + row / (DILATION * ROWS) * DILATION + row % DILATION",
        "row / DILATION % ROWS * (SIDE / ROWS) + row / (DILATION * ROWS) * DILATION",
        likely="square_planes_dilated",
    ),
    one(
        BITS,
        SOURCE,
        LIST,
        "fmaf(four[e], u[s][p], sum[o + e][p])",
        half("fmaf(four[e], u[s][p], sum[o + e][p])"),
        likely="square",
    ),
    one(
        BITS,
        SOURCE,
        BLOCK,
        "squares[split * B::OUTS + o] = total;",
        f"squares[split * B::OUTS + o] = {half('total')};",
        likely="square",
    ),
    one(
        MASK,
        "planes.cuh",
        SINGLE,
        "return band == 0 ? 0 : band == BANDS - 1 ? HELD - BAND : HALF;",
        "return band == 0 ? 0 : HALF;",
        likely="square_planes_of_36_channels",
    ),
    one(
        BITS,
        PARTS,
        LIST,
        "fmaf(w[e], u[p / STRIP][p % STRIP], sum[o + e][p])",
        half("fmaf(w[e], u[p / STRIP][p % STRIP], sum[o + e][p])"),
        likely="square_planes_of_36_channels",
    ),
    one(
        BITS,
        PARTS,
        BLOCK,
        "Moments{(float)S::PIXELS, means[channel + o], total}",
        "Moments{(float)S::PIXELS, means[channel + o], 0.5f * total}",
        likely="square_planes_of_36_channels",
    ),
    one(
        STRIDE,
        "foreach_sep_conv2d_parts.cu",
        LIST,
        "a.points[i]",
        "a.points[0]",
        likely="square_planes_of_36",
    ),
    one(STRIDE, "foreach_sep_conv2d_planes.cu", LIST, "a.points[i]", "a.points[0]", likely="square"),
    one(
        NAN,
        "planes.cuh",
        SINGLE,
        "return x < 0.0f ? 0.0f : x;",
        "return x > 0.0f ? x : 0.0f;",
        likely="square_planes_nan",
    ),
)
