"""The average pools on CUDA, forward and backward: a window's divisor, and the launch."""

# mypy: ignore-errors

from nxcore.plugin import Window
from nxcore_numba.gpu.image import extent, least, most, planes
from nxcore_numba.gpu.launch import Launch, blocks_for, cuda


@cuda.jit(device=True)
def counted(first, kernel, padding, size, padded):
    """Return how many places of an axis a window counts that begins at ``first``."""
    last = least(first + kernel, size + padding)
    return last - first if padded else least(last, size) - most(first, 0)


def bind(kernel, problem, *, back=False):
    """Return a callable for calls like ``problem``; ``back`` where the image's gradient is written."""
    read, out = problem.args[0], problem.outputs
    image = out if back else read
    steps = (problem["kernel_size"], problem["stride"], problem["padding"])
    window = Window.of_pool(image.shape, *steps, 1, problem["ceil_mode"])
    launch, device = Launch(kernel, blocks_for(out.numel())), out.device
    rest = (
        extent(out), window.outputs if back else window.image, window.kernel, window.stride, window.padding,
        planes(read), planes(out), problem["divisor_override"] or 0, bool(problem["count_include_pad"]),
    )  # fmt: skip

    def call(x, *window):
        result = out.empty()
        launch(device, result, x, *rest)
        return result

    return call
