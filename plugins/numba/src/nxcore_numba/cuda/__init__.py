"""The CUDA kernels: float32 and float16, one file an operator."""
