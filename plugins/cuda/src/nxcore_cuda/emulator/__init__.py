"""The same kernels on the CPU, for machines without a GPU: a header in place of CUDA's, and its handles."""
