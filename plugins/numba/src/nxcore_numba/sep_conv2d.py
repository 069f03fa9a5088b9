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


def plan_backward(problem):
    """Return a callable for calls like ``problem``."""
    grad, x, dw, pw, *where, relu, _ = problem.args
    outputs = problem.outputs
    kernel = separable.backward(window_of(x, dw, *where), grad, x, dw, pw, outputs, relu)

    def call(grad, x, dw_weight, pw_weight, *rest):  # noqa: ARG001  the rest is part of the plan
        results = tuple(None if out is None else out.empty() for out in outputs)
        given = (*results, grad, x, dw_weight, pw_weight)
        kernel(*(0 if t is None else t.data_ptr() for t in given))
        return results

    return call
