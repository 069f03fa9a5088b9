"""depthwise_conv2d on the CPU: nine taps a pass over a tile; filters by dot products of tiles."""

from collections.abc import Callable
from typing import Any

from nxcore.plugin import Problem, window_of
from nxcore_numba import depthwise, depthwise_filters


def plan(problem: Problem) -> Callable[..., Any]:
    """Return a callable for calls like ``problem``."""
    out = problem.outputs
    kernel = depthwise.compiled(window_of(*problem.args), out, problem["x"], problem["weight"])

    def call(x: Any, weight: Any, *where: Any) -> Any:
        result = out.empty()
        kernel(result.data_ptr(), x.data_ptr(), weight.data_ptr())
        return result

    return call


def plan_backward(problem: Problem) -> Callable[..., Any]:
    """Return a callable for calls like ``problem``."""
    grad, x, weight = problem["grad"], problem["x"], problem["weight"]
    x_out, weight_out = problem.outputs
    seen = window_of(x, weight, *problem.args[3:6])
    to_image = depthwise.compiled(seen, x_out, grad, weight, backward=True) if x_out else None
    to_filters = depthwise_filters.compiled(seen, weight_out, grad, x) if weight_out else None

    def call(grad: Any, x: Any, weight: Any, *rest: Any) -> Any:
        x_grad = weight_grad = None
        if to_image:
            x_grad = x_out.empty()
            to_image(x_grad.data_ptr(), grad.data_ptr(), weight.data_ptr())
        if to_filters:
            weight_grad = weight_out.empty()
            to_filters(weight_grad.data_ptr(), grad.data_ptr(), x.data_ptr())
        return x_grad, weight_grad

    return call
