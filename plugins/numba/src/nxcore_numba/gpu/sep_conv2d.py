"""sep_conv2d on CUDA: a launch each for ReLU, the depthwise convolution and the 1x1 convolution."""

from nxcore.plugin import window_of
from nxcore_numba.gpu import separable


def plan(problem):
    """Return a callable for calls like ``problem``."""
    x, filters, points, *where, relu = problem.args
    out = problem.outputs
    keep, image = separable.bind_positive(x) if relu else (lambda x: x, x)
    convolve, u = separable.bind_between(image, filters, window_of(x, filters, *where))
    mix = separable.bind_mix(out, u, points.strides[:2])

    def call(x, filters, points, *rest):  # noqa: ARG001  the rest is part of the plan
        result = out.empty()
        mix(result, convolve(keep(x), filters), points)
        return result

    return call
