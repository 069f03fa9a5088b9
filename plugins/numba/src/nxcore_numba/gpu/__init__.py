"""The CUDA kernels: float32 and float16, one file an operator.

Not named ``cuda``: numba-cuda's import hook takes every module whose full name holds "numba.cuda" for its
own.
"""
