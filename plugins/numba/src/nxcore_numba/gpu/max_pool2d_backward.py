"""max_pool2d_backward on CUDA: a thread an input, which looks at the windows that it lies in."""

import numpy as np

from nxcore.plugin import Window
from nxcore_numba.gpu.image import at, extent, place, planes
from nxcore_numba.gpu.launch import Launch, blocks_for, cuda


@cuda.jit
def spread(out, grad, offsets, walk, outputs, kernel, stride, padding, dilation, grads, taps, outs):
    """Add the gradients of the windows that name this input's tap; pairs are (vertical, horizontal)."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < walk[0]:
        n, c, y, x = place(i, walk)
        total = np.float32(0)
        for a in range(kernel[0]):
            row = y + padding[0] - a * dilation[0]
            if row >= 0 and row % stride[0] == 0 and row // stride[0] < outputs[0]:
                for b in range(kernel[1]):
                    column = x + padding[1] - b * dilation[1]
                    if column >= 0 and column % stride[1] == 0 and column // stride[1] < outputs[1]:
                        p, q = row // stride[0], column // stride[1]
                        if offsets[at(n, c, p, q, taps)] == a * kernel[1] + b:
                            total += np.float32(grad[at(n, c, p, q, grads)])
        out[at(n, c, y, x, outs)] = total
        i += step


def plan(problem):
    """Return a callable for calls like ``problem``."""
    grad, offsets, out = problem["grad"], problem["offsets"], problem.outputs
    window = Window.of_pool(out.shape, *problem.args[3:8])
    launch, device = Launch(spread, blocks_for(out.numel())), out.device
    rest = (
        extent(out), window.outputs, window.kernel, window.stride, window.padding, window.dilation,
        planes(grad), planes(offsets), planes(out),
    )  # fmt: skip

    def call(grad, offsets, *window):  # noqa: ARG001  the window is part of the plan
        result = out.empty()
        launch(device, result, grad, offsets, *rest)
        return result

    return call
