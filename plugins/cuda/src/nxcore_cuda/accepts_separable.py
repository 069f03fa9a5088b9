"""Which calls of sep_conv2d and of its gradients the kernels take. Imports no toolkit."""

from __future__ import annotations

from nxcore.plugin import YES, Problem, TensorMeta, Verdict, no, overlaps
from nxcore_cuda import separable
from nxcore_cuda.accepts import tensors
from nxcore_cuda.separable import Layer


def _separable(problem: Problem, y: TensorMeta, outputs: tuple[TensorMeta | None, ...]) -> Verdict:
    if not (found := tensors(problem)):
        return found
    x = problem["x"]
    for out in outputs:
        if out is not None and overlaps(out):
            return no(f"needs outputs whose elements don't share memory, got strides {out.strides}")
    seen = separable.window(problem)
    if separable.square(seen) is None:
        return no(
            "takes square filters of 1, 3, 5 or 7 and a stride and a dilation of 1 or 2, got "
            f"{seen.kernel}, {seen.stride} and {seen.dilation}"
        )
    layer, back = Layer.of(problem, y), problem.op == "sep_conv2d_backward"
    if back and max(layer.pads) > layer.reach:
        return no(f"takes a padding of at most what a filter reaches over, {layer.reach}, got {layer.pads}")
    if separable.choose(layer, x.device, back=back) is None:
        return no(
            f"a row of outputs doesn't fit into {separable.memory(x.device)} bytes of shared memory: "
            f"x has shape {x.shape}, pw_weight {problem['pw_weight'].shape}"
        )
    return YES


def accepts_sep_conv2d(problem: Problem) -> Verdict:
    """Take ordinary windows of any layout, where a row of outputs fits into shared memory."""
    return _separable(problem, problem.outputs, (problem.outputs,))


def accepts_sep_conv2d_backward(problem: Problem) -> Verdict:
    """Likewise, and at least one gradient to make."""
    return _separable(problem, problem["grad"], problem.outputs)
