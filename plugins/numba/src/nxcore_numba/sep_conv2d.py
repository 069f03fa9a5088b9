"""sep_conv2d on the CPU: rows of taps of an image, then a product of matrices, four channels at a time."""

from collections.abc import Callable
from typing import Any

from nxcore.plugin import Problem, window_of
from nxcore_numba import separable


def plan(problem: Problem) -> Callable[..., Any]:
    """Return a callable for calls like ``problem``."""
    x, dw, pw, *where, relu = problem.args
    out = problem.outputs
    kernel = separable.forward(window_of(x, dw, *where), out, x, dw, pw, relu)

    def call(x: Any, dw_weight: Any, pw_weight: Any, *rest: Any) -> Any:
        result = out.empty()
        kernel(result.data_ptr(), x.data_ptr(), dw_weight.data_ptr(), pw_weight.data_ptr())
        return result

    return call


def plan_backward(problem: Problem) -> Callable[..., Any]:
    """Return a callable for calls like ``problem``."""
    grad, x, dw, pw, *where, relu, _ = problem.args
    outputs = problem.outputs
    kernel = separable.backward(window_of(x, dw, *where), grad, x, dw, pw, outputs, relu)

    def call(grad: Any, x: Any, dw_weight: Any, pw_weight: Any, *rest: Any) -> Any:
        results = tuple(None if out is None else out.empty() for out in outputs)
        given = (*results, grad, x, dw_weight, pw_weight)
        kernel(*(0 if t is None else t.data_ptr() for t in given))
        return results

    return call
