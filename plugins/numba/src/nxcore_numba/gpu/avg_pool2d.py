"""avg_pool2d on CUDA: a thread an output."""

import numpy as np

from nxcore.plugin import Window
from nxcore_numba.gpu.image import at, extent, least, most, place, planes
from nxcore_numba.gpu.launch import Launch, blocks_for, cuda


@cuda.jit(device=True)
def counted(first, kernel, padding, size, padded):
    """Return how many places of an axis a window counts that begins at ``first``."""
    last = least(first + kernel, size + padding)
    return last - first if padded else least(last, size) - most(first, 0)


@cuda.jit
def pool(out, x, walk, image, kernel, stride, padding, xs, outs, divisor, padded):
    """Write the mean of each window; pairs are (vertical, horizontal)."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < walk[0]:
        n, c, p, q = place(i, walk)
        top, left = p * stride[0] - padding[0], q * stride[1] - padding[1]
        total = np.float32(0)
        for row in range(most(top, 0), least(top + kernel[0], image[0])):
            for column in range(most(left, 0), least(left + kernel[1], image[1])):
                total += np.float32(x[at(n, c, row, column, xs)])
        count = divisor
        if count == 0:
            count = counted(top, kernel[0], padding[0], image[0], padded)
            count *= counted(left, kernel[1], padding[1], image[1], padded)
        out[at(n, c, p, q, outs)] = total / np.float32(count)
        i += step


def plan(problem):
    """Return a callable for calls like ``problem``."""
    x, out = problem["x"], problem.outputs
    kernel_size, stride, padding, ceil_mode, padded, divisor = problem.args[1:7]
    window = Window.of_pool(x.shape, kernel_size, stride, padding, 1, ceil_mode)
    launch, device = Launch(pool, blocks_for(out.numel())), x.device
    rest = (
        extent(out), window.image, window.kernel, window.stride, window.padding, planes(x), planes(out),
        divisor or 0, bool(padded),
    )  # fmt: skip

    def call(x, *window):  # noqa: ARG001  the window is part of the plan
        result = out.empty()
        launch(device, result, x, *rest)
        return result

    return call
