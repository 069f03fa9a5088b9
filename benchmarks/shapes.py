"""Arguments of every operator at ever new shapes: sequences and images in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import nxcore
from nxcore.ops import nxcore_ops
from nxcore.spec.problem import leaves, tensors_of
from nxcore.spec.spec import OpSpec

Args = tuple[Any, ...]


def image(n: int, channels: int = 16) -> Tensor:
    return torch.randn(4, channels, 28 + n % 20, 28 + n // 20)


def _rows(n: int) -> Tensor:
    return torch.randn(16, 100 + n, 64)


def _separable(n: int) -> Args:
    return image(n), torch.randn(16, 1, 3, 3), torch.randn(16, 16, 1, 1), 1, 1, 1, True


def _blend(n: int) -> Args:
    return tuple(_rows(n) for _ in range(4)), torch.randn(4)


def _along(n: int) -> Args:
    return _rows(n), 2


def _lists(n: int) -> Args:
    x = image(n)
    tensors = (x, x), (torch.randn(16, 1, 3, 3),) * 2, (torch.randn(16, 16, 1, 1),) * 2
    return *tensors, (1, 1), (1, 1), (1, 1)


def _lists_backward(n: int) -> Args:
    tensors, windows = _lists(n)[:3], _lists(n)[3:]
    made = torch.randn_like(tensors[0][0])
    kept = torch.zeros(2, 16), torch.ones(2, 16)
    return (made, made), *tensors, (made, made), *windows, *kept


ALONG = (
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "cumsum",
    "log_softmax",
    "max",
    "mean",
    "min",
    "softmax",
)

FORWARD: Mapping[str, Callable[[int], Args]] = {
    **dict.fromkeys(ALONG, _along),
    "add": lambda n: (_rows(n), _rows(n)),
    "avg_pool2d": lambda n: (image(n), 3, 1, 1),
    "batch_norm": lambda n: (image(n), torch.ones(16), torch.zeros(16)),
    "batch_norm_sum": lambda n: ((image(n), image(n), image(n)), torch.ones(3), (True, False, True)),
    "cross_entropy": lambda n: (torch.randn(100 + n, 64), torch.arange(100 + n) % 64),
    "column_sums": lambda n: (tuple(torch.randn(64, 100 + n) for _ in range(4)),),
    "conv2d": lambda n: (image(n, 4), torch.randn(8, 4, 3, 3), torch.randn(8), 1, 1),
    "depthwise_conv2d": lambda n: (image(n), torch.randn(16, 1, 3, 3), 1, 1),
    "embedding": lambda n: (torch.arange(100 + n) % 9, torch.randn(9, 64)),
    "embedding_dense_backward": lambda n: (torch.randn(100 + n, 64), torch.arange(100 + n) % 9, 9, -1, False),
    "entropy": lambda n: (_rows(n),),
    "foreach_sep_conv2d_batch_norm": _lists,
    "foreach_sep_conv2d_batch_norm_backward": _lists_backward,
    "global_avg_pool2d": lambda n: (image(n, 64),),
    "global_max_pool2d": lambda n: (image(n, 64),),
    "global_max_pool2d_with_offsets": lambda n: (image(n, 64),),
    "gumbel_softmax": lambda n: (_rows(n),),
    "index_add": lambda n: (torch.zeros(9, 64), 0, torch.arange(100 + n) % 9, torch.randn(100 + n, 64)),
    "layer_norm": lambda n: (_rows(n), (64,)),
    "group_norm": lambda n: (image(n), 4),
    "linear_cross_entropy": lambda n: (
        torch.randn(100 + n, 64),
        torch.randn(9, 64),
        torch.arange(100 + n) % 9,
    ),
    "matmul": lambda n: (torch.randn(64, 100 + n), torch.randn(100 + n, 64)),
    "max_pool2d": lambda n: (image(n), 3, 1, 1),
    "max_pool2d_with_offsets": lambda n: (image(n), 3, 1, 1),
    "pointwise_conv2d": lambda n: (image(n), torch.randn(16, 16, 1, 1), None, 1, True),
    "rms_norm": lambda n: (_rows(n), (64,)),
    "rope": lambda n: (torch.randn(4, 100 + n, 64), *torch.randn(2, 100 + n, 64)),
    "scaled_dot_product_attention": lambda n: (_rows(n),) * 3,
    "sep_conv2d": _separable,
    "sep_conv2d_batch_norm": _separable,
    "softmax_sum": _blend,
    "sum": lambda n: (_rows(n), (0, 1)),
    "sum_to_size": lambda n: (_rows(n), (64,)),
    "weighted_sum": _blend,
}
"""The arguments of the n-th shape of each operator; those of its gradient follow."""


def arguments(spec: OpSpec, n: int) -> Args:
    """Return all arguments of ``spec`` for the ``n``-th shape."""
    own = next((s for s in nxcore_ops() if s.gradient and s.gradient.op == spec.name), None)
    if own is None:
        return spec.bind(*FORWARD[spec.name](n))
    return nxcore.op(spec.name).frozen(_of_gradient(own, FORWARD[own.name](n)))


def _of_gradient(spec: OpSpec, args: Args) -> Args:
    """Return arguments of the gradient operator of ``spec``."""
    gradient, bound = spec.gradient, spec.bind(*args)
    assert gradient is not None
    forward = nxcore.op(gradient.forward or spec.name).spec
    grad, *kept = leaves(forward.reference(*bound[: len(forward.params)]))
    kept = kept if gradient.keeps or gradient.forward else [grad] * gradient.result
    return gradient.args(torch.randn_like(grad), (True,) * len(tensors_of(bound)), *bound, *kept)
