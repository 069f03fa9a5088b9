"""Points: operations of a ReLU, 1x1 convolutions and a norm, whose first layers are computed by one operator.

An operation with two convolutions puts the results of the image, and of the image without its first row and
column, side by side, as DARTS' factorized reduction does. An operation is known by its layers, and by a trial
of a copy: results and gradients must be those of these layers.
"""

import functools
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nxcore import session
from nxcore.call.unusual import PLAIN, unusual
from nxcore.errors import InvalidInputError
from nxcore.graphs.hooks import hooked, saving
from nxcore.graphs.late import LATE
from nxcore.graphs.together import weights_of
from nxcore.nas.casts import half_of, rounded
from nxcore.nas.chains import Form, agreed, form_of, holds
from nxcore.nas.proof import IMAGE
from nxcore.nas.watch import AUDIT, Watch, before
from nxcore.nn.normed import NORMS
from nxcore.nn.sequential import CONVOLUTIONS, RELUS

_tried: weakref.WeakKeyDictionary[nn.Module, tuple[Form, Watch | None]] = weakref.WeakKeyDictionary()
"""Operation -> its form at its trial, and a watch over what its code reads, if that agreed."""

SLICES = tuple(("slice", begin, None, None) for begin in (None, None, 1, 1))
"""The part of an image that the second convolution sees."""


class Layers(NamedTuple):
    """The layers of an operation: a ReLU, one convolution or two, and a norm."""

    relu: nn.Module
    convolutions: tuple[Any, ...]
    norm: nn.Module

    @property
    def all(self) -> tuple[nn.Module, ...]:
        """All layers, in their order."""
        return self.relu, *self.convolutions, self.norm

    @property
    def form(self) -> Any:
        """The form that they compute, as of ``nxcore.nas.symbols``."""
        image = "call", 0, IMAGE
        made = [
            ("call", i, image if i == 1 else ("item", image, SLICES)) for i in range(1, len(self.all) - 1)
        ]
        return "call", len(self.all) - 1, made[0] if len(made) == 1 else ("cat", tuple(made), 1)

    def run(self, x: Tensor) -> Tensor:
        """Return the result of the layers, one by one."""
        image = self.relu(x)
        shifts = range(len(self.convolutions))
        made = [one(image[:, :, i:, i:]) for i, one in zip(shifts, self.convolutions, strict=True)]
        out: Tensor = self.norm(made[0] if len(made) == 1 else torch.cat(made, 1))
        return out


def layers_of(op: nn.Module) -> Layers | None:
    """Return the layers of an operation; None if it has others, or hooks, or parameters of its own.

    >>> layers_of(torch.nn.Sequential(torch.nn.ReLU())) is None
    True
    """
    modules = list(op.modules())
    layers: list[Any] = [m for m in modules if next(m.children(), None) is None]
    if not 3 <= len(layers) <= 4 or hooked(*modules) or any("forward" in vars(m) for m in modules):
        return None
    relu, *convolutions, norm = layers
    if type(relu) not in RELUS or relu.inplace or type(norm) not in NORMS:
        return None
    if not all(_is_point(one) for one in convolutions) or len({one.stride for one in convolutions}) > 1:
        return None
    if norm.num_features != sum(one.out_channels for one in convolutions):
        return None
    held = {id(t) for t in (*op.parameters(), *op.buffers())}
    own = {id(t) for layer in layers for t in (*layer.parameters(), *layer.buffers())}
    return Layers(relu, tuple(convolutions), norm) if held == own else None


def _is_point(layer: Any) -> bool:
    """Return whether a layer is a 1x1 convolution without padding and bias, of one stride both ways."""
    return (
        type(layer) in CONVOLUTIONS
        and layer.kernel_size == (1, 1)
        and layer.stride[0] == layer.stride[1]
        and layer.padding in ((0, 0), "valid")
        and layer.groups == 1
        and layer.bias is None
    )


def convolved(layers: Layers, x: Any) -> Tensor | None:
    """Return the result of an operation in training, its first layers by a kernel; None without one."""
    if type(x) not in PLAIN or x.ndim != 4 or saving():
        return None
    weights = weights_of(*(one.weight for one in layers.convolutions))
    half = half_of(x) if len(weights) > 1 and LATE.get() is not None else None
    if half is not None and {weight.dtype for weight in weights} == {torch.float32}:
        weights = rounded(weights, half)  # in one launch, where autocast takes one for each
    try:
        y = _operator().by_kernel(x, *(*weights, None)[:2], layers.convolutions[0].stride[0], True)
    except InvalidInputError:
        return None  # the layers raise their own message
    if y is None:
        return None
    out: Tensor = layers.norm(y)
    return out


def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for the ``forward`` of an operation that was taken."""
    if len(args) == 1 and not kwargs and not torch.compiler.is_compiling():
        audit: Any = vars(self).get(AUDIT)
        found = None
        if audit is None or audit.passes(self, args, kwargs):
            found = _trained(known(self), args[0])
        if found is not None:
            return found
    return before(self, *args, **kwargs)


def _trained(layers: Layers | None, x: Any) -> Tensor | None:
    return convolved(layers, x) if layers is not None and layers.norm.training else None


def known(op: nn.Module) -> Layers | None:
    """Return the layers of an operation, if a trial of it in its present form agreed."""
    form, watch = _tried.get(op, (None, None))
    if form is not None and holds(op, form):
        return layers_of(op) if watch is not None and watch.holds() else None
    layers = layers_of(op)
    if layers is None or unusual():
        return None
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return None
    reads = agreed(op, layers_of)
    _tried[op] = form_of(op), None if reads is None else reads.watch(op)
    return layers if reads is not None else None


def watch_of(op: nn.Module) -> Watch:
    """Return the watch over what the code of an operation reads whose trial agreed."""
    return _tried[op][1] or Watch([])


def take(op: nn.Module) -> None:
    """Note that an operation whose trial agreed has another class and another attribute now."""
    _tried[op] = form_of(op), watch_of(op)


def leave(op: nn.Module) -> None:
    """Note that an operation is what it was again."""
    _tried[op] = form_of(op), None


def by_layers(op: nn.Module, x: Tensor) -> Tensor:
    """Return the result of an operation's layers, one by one."""
    layers = layers_of(op)
    found: Tensor = before(op, x) if layers is None else layers.run(x)
    return found


@functools.cache
def _operator() -> Any:
    return session.default().op("pointwise_conv2d")
