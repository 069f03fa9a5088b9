"""depthwise_conv2d on CUDA: a thread an output."""

import numpy as np

from nxcore.plugin import window_of
from nxcore_numba.gpu.image import at, extent, place, planes
from nxcore_numba.gpu.launch import Launch, blocks_for, cuda


@cuda.jit
def convolve(out, x, weight, walk, image, kernel, stride, padding, dilation, xs, weights, outs):
    """Write the sum over the taps on the image; pairs are (vertical, horizontal)."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < walk[0]:
        n, c, p, q = place(i, walk)
        top, left = p * stride[0] - padding[0], q * stride[1] - padding[1]
        total = np.float32(0)
        for a in range(kernel[0]):
            row = top + a * dilation[0]
            if 0 <= row < image[0]:
                for b in range(kernel[1]):
                    column = left + b * dilation[1]
                    if 0 <= column < image[1]:
                        value = np.float32(x[at(n, c, row, column, xs)])
                        total += np.float32(weight[at(c, 0, a, b, weights)]) * value
        out[at(n, c, p, q, outs)] = total
        i += step


def plan(problem):
    """Return a callable for calls like ``problem``."""
    x, out = problem["x"], problem.outputs
    window = window_of(*problem.args)
    launch, device = Launch(convolve, blocks_for(out.numel())), x.device
    rest = (
        extent(out), window.image, window.kernel, window.stride, window.padding, window.dilation,
        planes(x), planes(problem["weight"]), planes(out),
    )  # fmt: skip

    def call(x, weight, *where):  # noqa: ARG001  the window is part of the plan
        result = out.empty()
        launch(device, result, x, weight, *rest)
        return result

    return call
