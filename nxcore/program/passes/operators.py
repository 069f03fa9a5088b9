"""Operators: torch's functions of a graph, computed by operators of nxcore's where a kernel is chosen.

A node keeps its arguments. A function that stands in for torch's has the same parameters, and calls torch's
where torch serves the call: so nothing is added to what torch launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from nxcore.errors import InvalidInputError
from nxcore.graphs.hooks import saving
from nxcore.session import default

Function = Callable[..., Any]

FEWEST = 1 << 18
"""The fewest elements for an activation's operator: below, its call costs the host what a kernel may save."""


def operators(graph: fx.Graph) -> int:
    """Put operators in place of functions; return the number of nodes."""
    found = [node for node in graph.nodes if node.op == "call_function" and node.target in STAND_INS]
    for node in (changed := [node for node in found if _fits(node)]):
        node.target = STAND_INS[node.target]
    return len(changed)


def by_kernel(name: str, *args: Any) -> Any:
    """Return the result of an operator; None where torch serves the call, or refuses it in its own words."""
    if saving() or (name in FORMATS and not FORMATS[name](args[0])):
        return None
    try:
        return default().op(name).by_kernel(*args)
    except InvalidInputError:
        return None


def activation(name: str, x: Tensor, *numbers: Any) -> Tensor | None:
    """Return an activation by a kernel; None where torch serves it."""
    if x.numel() < FEWEST or (name == "relu" and not default().chooser.recorded.won(name)):
        return None
    found: Tensor | None = by_kernel(name, x, *numbers, None)
    return found


def track(running: tuple[Tensor | None, Tensor | None], mean: Tensor, var: Tensor, momentum: float) -> None:
    """Update running statistics by those of a batch, unseen by autograd as torch's own kernel does.

    A call that torch served has saved them, and its backward pass would take the update for an error.
    """
    held_mean, held_var = running
    if held_mean is None or held_var is None:
        return
    if mean.dtype is not held_mean.dtype:
        mean, var = mean.to(held_mean.dtype), var.to(held_mean.dtype)
    torch._foreach_lerp_([held_mean.data, held_var.data], [mean, var], momentum)


def in_format(x: Tensor, *, last: bool = True) -> bool:
    """Return whether ``x`` lies row by row; or, with ``last``, channels last.

    Torch's norms lay a result out so, and nxcore's as any ``x``: a view of it would raise in one of them.
    """
    if x.is_contiguous() or not last or x.ndim != 4:
        return x.is_contiguous()
    _, c, h, w = x.shape  # under vmap torch doesn't answer ``is_contiguous`` for another format
    return x.stride() == (h * w * c, 1, w * c, c)


FORMATS: dict[str, Callable[[Tensor], bool]] = {
    "batch_norm": in_format,
    "group_norm": lambda x: in_format(x, last=x.is_cpu),  # its kernel for CUDA copies ``x``
    "rms_norm": lambda x: x.is_cuda or x.is_contiguous(),  # on a CPU it has no kernel
}
"""Norm -> whether torch's function and the operator lay the result out alike."""


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Stand in for torch's function."""
    if training and x.ndim == 4 and x.is_floating_point() and x.numel() >= 2 * x.shape[1]:
        found = by_kernel("batch_norm", x, weight, bias, eps)
        if found is not None:
            track((running_mean, running_var), found[1], found[2], momentum)
            out: Tensor = found[0]
            return out
    return functional.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Stand in for torch's function, of a depthwise convolution."""
    out: Tensor | None = None
    if bias is None or bias.dtype == x.dtype:
        out = by_kernel("depthwise_conv2d", x, weight, stride, padding, dilation)
    if out is None:
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    if bias is not None:
        out = default().op("add")(out, bias.to(out.dtype).view(-1, 1, 1))
    return out


def _windowed(name: str, torchs: Function) -> Function:
    """Return what stands in for a function whose parameters are the operator's."""

    def pool(*args: Any, **kwargs: Any) -> Any:
        """Stand in for torch's function."""
        found = by_kernel(name, *default().op(name).spec.bind(*args, **kwargs))
        return torchs(*args, **kwargs) if found is None else found

    return pool


def _global(name: str, torchs: Function) -> Function:
    """Return what stands in for an adaptive pool."""

    def pool(x: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        """Stand in for torch's function."""
        if return_indices:
            return torchs(x, output_size, return_indices)
        found = by_kernel(name, x)
        return torchs(x, output_size) if found is None else found

    return pool


def _pointwise(name: str, torchs: Function, numbers: Mapping[str, float]) -> Function:
    """Return what stands in for an activation with these numbers by default."""

    def function(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Stand in for torch's function."""
        given = [*args, *(kwargs.get(each, number) for each, number in [*numbers.items()][len(args) :])]
        found = activation(name, x, *given[: len(numbers)])
        return torchs(x, *given[: len(numbers)]) if found is None else found

    return function


def _row(name: str, torchs: Any) -> Any:
    """Return what stands in for a softmax or its logarithm."""

    def softmax(x: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
        """Stand in for torch's function."""
        found: Tensor | None = None if dim is None else by_kernel(name, x, dim, dtype)
        return torchs(x, dim, dtype=dtype) if found is None else found

    return softmax


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Stand in for torch's function."""
    found = activation("gelu_tanh" if approximate == "tanh" else "gelu", x)
    return functional.gelu(x, approximate=approximate) if found is None else found


ACTIVATIONS: dict[Any, tuple[str, Mapping[str, float]]] = {
    functional.elu: ("elu", {"alpha": 1.0}),
    functional.hardsigmoid: ("hardsigmoid", {}),
    functional.hardswish: ("hardswish", {}),
    functional.leaky_relu: ("leaky_relu", {"negative_slope": 0.01}),
    functional.mish: ("mish", {}),
    functional.relu: ("relu", {}),
    torch.relu: ("relu", {}),
    torch.sigmoid: ("sigmoid", {}),
    functional.silu: ("silu", {}),
    functional.softplus: ("softplus", {"beta": 1.0, "threshold": 20.0}),
    torch.tanh: ("tanh", {}),
}
"""Torch's function -> the operator, and its numbers."""

attention = functional.scaled_dot_product_attention
STAND_INS: dict[Any, Function] = {
    functional.batch_norm: batch_norm,
    torch.conv2d: conv2d,
    functional.max_pool2d: _windowed("max_pool2d", functional.max_pool2d),
    functional.avg_pool2d: _windowed("avg_pool2d", functional.avg_pool2d),
    functional.adaptive_avg_pool2d: _global("global_avg_pool2d", functional.adaptive_avg_pool2d),
    functional.adaptive_max_pool2d: _global("global_max_pool2d", functional.adaptive_max_pool2d),
    functional.gelu: gelu,
    functional.softmax: _row("softmax", functional.softmax),
    functional.log_softmax: _row("log_softmax", functional.log_softmax),
    functional.embedding: _windowed("embedding", functional.embedding),
    functional.layer_norm: _windowed("layer_norm", functional.layer_norm),
    functional.group_norm: _windowed("group_norm", functional.group_norm),
    **{norm: _windowed("rms_norm", norm) for norm in (functional.rms_norm, torch.rms_norm)},
    attention: _windowed("scaled_dot_product_attention", attention),
    **{torchs: _pointwise(name, torchs, numbers) for torchs, (name, numbers) in ACTIVATIONS.items()},
}
"""Torch's function -> what stands in for it."""


def given(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    """Return an argument of a node, by its place or its name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of what a node computes; empty where it isn't known."""
    found = value.meta.get("example_value") if isinstance(value, fx.Node) else None
    return tuple(found.shape) if isinstance(found, Tensor) else ()


def is_depthwise(node: fx.Node) -> bool:
    """Return whether a convolution has a filter a channel."""
    filters = shape_of(given(node, 1, "weight"))
    return len(filters) == 4 and filters[1] == 1 and given(node, 6, "groups", 1) == filters[0]


def _fits(node: fx.Node) -> bool:
    """Return whether an operator can compute a node."""
    if not node.args or {"input", "out"} & node.kwargs.keys():
        return False
    if node.target is torch.conv2d:
        return is_depthwise(node)
    if node.target is functional.batch_norm:
        return given(node, 5, "training", False) is True
    if node.target in (functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d):
        return given(node, 1, "output_size") in (1, (1, 1), [1, 1])
    if node.target in ACTIVATIONS:
        return not given(node, len(ACTIVATIONS[node.target][1]) + 1, "inplace", False)
    return True
