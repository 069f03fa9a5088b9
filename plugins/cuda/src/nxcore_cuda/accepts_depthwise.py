"""Which calls of depthwise_conv2d and of its gradients the kernels take. Imports no toolkit."""

from __future__ import annotations

from nxcore.plugin import YES, Problem, TensorMeta, Verdict, no, overlaps
from nxcore_cuda.accepts import tensors


def _depthwise(problem: Problem, outputs: tuple[TensorMeta, ...]) -> Verdict:
    if not (found := tensors(problem)):
        return found
    for out in outputs:
        if overlaps(out):
            return no(f"needs outputs whose elements don't share memory, got strides {out.strides}")
    return YES


def accepts_depthwise_conv2d(problem: Problem) -> Verdict:
    """Take any filter, stride, padding, dilation and layout."""
    return _depthwise(problem, (problem.outputs,))


def accepts_depthwise_conv2d_backward(problem: Problem) -> Verdict:
    """Take any filter, stride, padding, dilation and layouts, and at least one gradient to make."""
    wanted = tuple(out for out in problem.outputs if out is not None)
    return _depthwise(problem, wanted)
