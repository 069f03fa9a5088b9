"""sep_conv2d on the CPU."""

from nxcore.plugin import window_of
from nxcore_numba import separable


def plan(problem):
    """Return a callable for calls like ``problem``."""
    x, dw, pw, *where, relu = problem.args
    out = problem.outputs
    kernel = separable.forward(window_of(x, dw, *where), out, x, dw, pw, relu)

    def call(x, dw_weight, pw_weight, *rest):  # noqa: ARG001  the rest is part of the plan
        result = out.empty()
        kernel(result.data_ptr(), x.data_ptr(), dw_weight.data_ptr(), pw_weight.data_ptr())
        return result

    return call
