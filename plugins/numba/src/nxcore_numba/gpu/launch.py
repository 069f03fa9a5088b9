"""Launching Numba's CUDA kernels on torch's tensors and torch's current stream."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack  # numba-cuda's import asks for the name that numpy 2.5 took away

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # numba-cuda's import uses units that numpy gives up
    from numba import config, cuda

if config.ENABLE_CUDASIM:
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

SIMULATED = bool(config.ENABLE_CUDASIM)
"""Numba's simulator runs the kernels, on CPU tensors."""

THREADS = 16 if SIMULATED else 256
"""Threads of a block; the simulator starts a Python thread for each."""

TURN = 0.0005
"""Seconds that a simulated thread may run before another does."""

BLOCKS = 2 if SIMULATED else 1056
"""The most blocks that share out a loop over elements."""


def blocks_for(elements: int) -> int:
    """Return how many blocks run a loop over that many elements."""
    return max(1, min(-(-elements // THREADS), BLOCKS))


def array(tensor: torch.Tensor) -> Any:
    """Return the memory from a tensor's first element to its last as a one-dimensional device array."""
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    flat = torch.as_strided(tensor.detach(), (span,), (1,))
    if SIMULATED:  # wrapped: the simulator copies plain arrays, and `out` may be one of the inputs
        return FakeCUDAArray(flat.numpy())
    # Without sync: kernels run on torch's own stream, behind whatever wrote the tensor.
    return cuda.as_cuda_array(flat, sync=False)


class Launch:
    """A kernel with its grid, launched on torch's current stream.

    Parameters
    ----------
    kernel : dispatcher
        What ``cuda.jit`` made.
    blocks : int
        The size of the grid.
    """

    def __init__(self, kernel: Any, blocks: int) -> None:
        self.kernel, self.blocks = kernel, max(1, blocks)
        self._configured: dict[tuple[torch.device, int], Any] = {}

    def __call__(self, device: torch.device, *arguments: Any) -> None:
        """Launch; tensors among the arguments become arrays."""
        values = [array(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        with _simulating() if SIMULATED else torch.cuda.device(device):
            handle = 0 if SIMULATED else torch.cuda.current_stream(device).cuda_stream
            ready = self._configured.get((device, handle))
            if ready is None or SIMULATED:  # the simulator keeps one grid a kernel: that of its last launch
                ready = self._configured[device, handle] = self._configure(handle)
            ready(*values)

    def _configure(self, handle: int) -> Any:
        stream = cuda.external_stream(handle) if handle else 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a small tensor has a small grid, which Numba warns of
            return self.kernel[self.blocks, THREADS, stream]


@contextlib.contextmanager
def _simulating() -> Iterator[None]:
    """Silence numpy, which the simulator computes with, and let its threads take turns often.

    One thread polls the others, and each waits for its turn: Python's last 5 ms.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(TURN)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of NaN and overflow
            yield
    finally:
        sys.setswitchinterval(interval)
