"""global_max_pool2d_backward on CUDA: a thread an input, which looks whether it is the one."""

import numpy as np

from nxcore_numba.gpu.image import at, extent, place, planes
from nxcore_numba.gpu.launch import Launch, blocks_for, cuda


@cuda.jit
def spread(out, grad, offsets, walk, grads, taps, outs):
    """Write the channel's gradient where its maximum lies, and zeros elsewhere."""
    step = np.int64(cuda.gridDim.x) * cuda.blockDim.x
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    while i < walk[0]:
        n, c, y, x = place(i, walk)
        share = np.float32(0)
        if offsets[at(n, c, 0, 0, taps)] == y * walk[3] + x:
            share = np.float32(grad[at(n, c, 0, 0, grads)])
        out[at(n, c, y, x, outs)] = share
        i += step


def plan(problem):
    """Return a callable for calls like ``problem``."""
    grad, offsets, out = problem["grad"], problem["offsets"], problem.outputs
    launch, device = Launch(spread, blocks_for(out.numel())), out.device
    rest = extent(out), planes(grad), planes(offsets), planes(out)

    def call(grad, offsets, *size):  # noqa: ARG001  it is part of the plan
        result = out.empty()
        launch(device, result, grad, offsets, *rest)
        return result

    return call
