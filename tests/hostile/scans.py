"""Mutations of the kernels of scans, in every toolkit."""

from tests.hostile.mutations import BITS, MASK, SCANS, SCATTERS, STRIDE, Edit, Mutation, one
from tests.hostile.of_cuda import half
from tests.hostile.of_triton import HALF

CUDA = (
    Mutation(
        MASK,
        "scans.cu",
        SCANS,
        (Edit("line < a.count ? a.length : 0", "a.length", 2),),
        why="threads past the last line write",
    ),
    Mutation(
        BITS,
        "scans.cu",
        SCANS,
        (
            Edit("    carry = total;", f"    carry = {half('total')};"),
            Edit("base[u] = total;", f"base[u] = {half('total')};"),
            Edit("carry + before : carry", f"{half('carry + before')} : carry"),
            Edit("go[e] + found[e]", half("go[e] + found[e]")),
        ),
    ),
    one(STRIDE, "scans.cu", SCANS, "line % a.inner * a.within[which]", "line % a.inner * a.outer[which]"),
    one(MASK, "scatters.cu", SCATTERS, "if (first + u < last) {", "if (true) {", count=2),
    one(
        BITS,
        "scatters.cu",
        SCATTERS,
        "sums[e] += widen(found[u][e]);",
        f"sums[e] = {half('sums[e] + widen(found[u][e])')};",
    ),
    one(STRIDE, "scatters.cu", SCATTERS, "row * a.columns * V)", "row * V)"),
)

TRITON = (
    one(MASK, "scans.py", SCANS, "line < count", "line <= count"),
    one(BITS, "scans.py", SCANS, "tl.cumsum(value, 1).to(tl.float32)", f"tl.cumsum(value, 1){HALF}"),
    one(STRIDE, "scans.py", SCANS, "at[None, :] * steps[5]", "at[None, :] * steps[2]"),
)
