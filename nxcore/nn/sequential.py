"""Sequential: torch's own, which computes separable convolutions among its layers by one operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from nxcore import session
from nxcore.errors import InvalidInputError
from nxcore.graphs.hooks import hooked, saving
from nxcore.graphs.raw import leaves
from nxcore.graphs.together import weights_of
from nxcore.nn import normed
from nxcore.nn.activations import ReLU
from nxcore.nn.exchange import kinds
from nxcore.nn.modules import BatchNorm2d, Conv2d, track
from nxcore.nn.normed import NORMS, Call
from nxcore.nn.served import LEFT, Served, is_compiling, left, with_rest

_sep_conv2d = session.default().op("sep_conv2d")
_block = session.default().op("sep_conv2d_batch_norm")

CONVOLUTIONS, RELUS = kinds(Conv2d), kinds(ReLU)

LAYERS = 4  # of a block: ReLU, depthwise convolution, 1x1 convolution, batch norm


@with_rest
class Sequential(nn.Sequential, Served):
    """``torch.nn.Sequential``; the operator ``sep_conv2d_batch_norm`` computes blocks of four layers at once.

    A block is a ReLU that is not in place, a depthwise ``Conv2d``, a 1x1 one, both without bias, and a
    ``BatchNorm2d``, with input (N, C, H, W). In evaluation, ``sep_conv2d`` computes the first three. The four
    layers run one by one where torch is faster, a layer has hooks, or autograd has hooks on saved tensors.

    In evaluation without gradients, an operator such as ``normed_silu`` computes any other ``BatchNorm2d``
    and the activation after it.

    >>> depthwise = torch.nn.Conv2d(4, 4, 3, groups=4, bias=False)
    >>> pointwise = torch.nn.Conv2d(4, 8, 1, bias=False)
    >>> block = nxcore.nn.Sequential(torch.nn.ReLU(), depthwise, pointwise, torch.nn.BatchNorm2d(8))
    >>> block(torch.ones(2, 4, 8, 8)).shape
    torch.Size([2, 8, 6, 6])
    """

    @staticmethod
    def concerns(module: Any) -> bool:
        """Return whether ``module`` has such a block, or such a pair."""
        return any(len(part) > 1 for part in _parts(tuple(module)))

    @staticmethod
    def idles(module: Any) -> bool:
        """Return whether ``module`` is in training and has pairs alone."""
        return module.training and not any(len(part) == LAYERS for part in _parts(tuple(module)))

    def forward(self, input: Any) -> Any:
        """Return the output of the last layer."""
        if isinstance(input, Proxy):  # a look at the layers would leave its trace in the graph
            return nn.Sequential.forward(self, input)  # type: ignore[no-untyped-call]  # torch has no types for it
        calls: list[Any] = []
        torchs = True
        for part in _parts(tuple(self._modules.values())):
            if len(part) == 1:
                input = part[0](input)
                continue
            run = _served if len(part) == LAYERS else normed.served
            input, call = run(part, input)
            torchs = torchs and call is not None
            calls += call or ()
        if torchs:
            left(self, *calls)
        elif not is_compiling() and vars(self).get(LEFT):
            vars(self)[LEFT] = 0
        return input


def _parts(layers: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield layers that run together: the four layers of a block, a norm and its activation, or one."""
    i = 0
    while i < len(layers):
        part = layers[i : i + LAYERS]
        if not is_block(part):
            part = part[:2] if normed.is_pair(part[:2]) else part[:1]
        yield part
        i += len(part)


def is_block(layers: Sequence[Any]) -> bool:
    """Return whether four layers are a block: ReLU, depthwise convolution, 1x1 convolution, batch norm."""
    if len(layers) < LAYERS:
        return False
    relu, depthwise, pointwise, norm = layers
    return (
        type(relu) in RELUS
        and not relu.inplace
        and type(depthwise) in CONVOLUTIONS
        and type(pointwise) in CONVOLUTIONS
        and type(norm) in NORMS
        and not Conv2d.refusal(depthwise)
        and depthwise.padding_mode == "zeros"
        and pointwise.kernel_size == pointwise.stride == (1, 1)
        and pointwise.groups == 1
        and pointwise.padding in ((0, 0), "valid", "same")
        and depthwise.bias is None
        and pointwise.bias is None
        and not BatchNorm2d.refusal(norm)
        and not any("forward" in vars(layer) for layer in layers)  # replaced by a user
    )


def run_block(layers: Sequence[Any], x: Tensor) -> Any:
    """Return the output of a block."""
    return _served(layers, x)[0]


def _served(layers: Sequence[Any], x: Any) -> tuple[Any, tuple[Call, ...] | None]:
    """Run a block; layer by layer where no kernel is chosen, or hooks read intermediate results.

    Also return the call that torch serves instead: none where it always does; None where it may not.
    """
    _, depthwise, pointwise, norm = layers
    calls: tuple[Call, ...] | None = None
    if isinstance(x, Tensor) and x.ndim == 4 and not hooked(*layers) and not saving():
        given: tuple[Any, ...] = (
            x,
            depthwise.weight,
            pointwise.weight,
            depthwise.stride,
            depthwise.padding,
            depthwise.dilation,
            True,
        )
        calls = ()
        try:
            if not norm.training:
                y = _sep_conv2d.by_kernel(*given)
                if y is not None:
                    return norm(y), None
                calls = ((_sep_conv2d, given),)
            elif (raw := leaves(norm)) is not None:
                y = _sep_conv2d.by_kernel(x, *weights_of(*given[1:3]), *given[3:])
                if y is not None:
                    raw.leave(y)
                    return y, None
            elif norm.weight is None or x.is_meta or not torch.is_autocast_enabled(x.device.type):
                given = (*given, norm.weight, norm.bias, norm.eps)
                found = _block.by_kernel(x, *weights_of(*given[1:3]), *given[3:])
                if found is not None:
                    track(norm, *found[2:])
                    return found[0], None
                calls = ((_block, given),)
        except InvalidInputError:
            pass  # torch's layers raise their own message
    for layer in layers:
        x = layer(x)
    return x, calls
