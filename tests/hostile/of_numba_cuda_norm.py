"""Mutations of batch_norm's kernels in Numba for CUDA."""

from __future__ import annotations

from tests.hostile.mutations import BITS, MASK, NORM, NORM_BACK, STRIDE, Edit, Mutation, one
from tests.hostile.of_numba_cuda import ENDS, addition

MUTATIONS = (
    Mutation(
        MASK,
        "gpu/batch_norm.py",
        (NORM,),
        (Edit("(split + 1) * count // splits\n", "(split + 1) * count // splits + 1\n", 4),),
        raises=ENDS,
    ),
    one(
        STRIDE,
        "gpu/batch_norm.py",
        (NORM,),
        "y[channel * y_step + place(i, table, 2)]",
        "y[channel * y_step + place(i, table, 1)]",
        likely="expanded",
    ),
    Mutation(BITS, "gpu/batch_norm.py", (NORM,), (addition("total", "value"),)),
    Mutation(
        MASK,
        "gpu/batch_norm.py",
        (NORM_BACK,),
        (Edit("(split + 1) * count // splits\n", "(split + 1) * count // splits + 1\n", 4),),
        raises=ENDS,
    ),
    one(
        STRIDE,
        "gpu/batch_norm.py",
        (NORM_BACK,),
        "x_grad[channel * steps[2] + place(i, table, 3)]",
        "x_grad[channel * steps[2] + place(i, table, 2)]",
        likely="stride_zero",
    ),
    Mutation(BITS, "gpu/batch_norm.py", (NORM_BACK,), (addition("total", "np.float64(g)"),)),
)
