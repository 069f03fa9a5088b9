"""Images on CUDA, shared by the operators on them. One thread writes an element and steps on.

Neighbouring threads write neighbours in memory: columns, or channels where those lie closest.
"""

# mypy: ignore-errors

from nxcore_numba.gpu.launch import cuda


def planes(meta):
    """Return an image's strides with four dimensions: image, channel, row, column."""
    return tuple(meta.strides) if meta.ndim == 4 else (0, *meta.strides)


def extent(meta):
    """Return how a kernel walks what it writes: its elements, channels, height, width, channels closest."""
    channels, height, width = meta.shape[-3:]
    return meta.numel(), channels, height, width, channels > 1 and meta.strides[-3] == 1


@cuda.jit(device=True)
def place(i, walk):
    """Return the image, channel, row and column of the element that is written ``i``-th."""
    if walk[4]:
        c, rest = i % walk[1], i // walk[1]
        x, rest = rest % walk[3], rest // walk[3]
        return rest // walk[2], c, rest % walk[2], x
    x, rest = i % walk[3], i // walk[3]
    y, rest = rest % walk[2], rest // walk[2]
    return rest // walk[1], rest % walk[1], y, x


@cuda.jit(device=True)
def at(n, c, y, x, strides):
    """Return where an element lies in memory."""
    return n * strides[0] + c * strides[1] + y * strides[2] + x * strides[3]


@cuda.jit(device=True)
def least(a, b):
    """Return the smaller of two integers: not every Numba compiles ``min`` of them for CUDA."""
    return a if a < b else b  # noqa: FURB136  not every Numba compiles min and max


@cuda.jit(device=True)
def most(a, b):
    """Return the larger of two integers."""
    return a if a > b else b  # noqa: FURB136  not every Numba compiles min and max
