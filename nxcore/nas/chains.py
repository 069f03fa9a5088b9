"""Chains: operations that are separable convolutions with their norms, one behind the other.

An operation is known by its layers, and by a trial of a copy: its result must be that of these layers.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nxcore.call.unusual import unusual
from nxcore.context import in_force
from nxcore.errors import FOREIGN
from nxcore.graphs.hooks import hooked
from nxcore.graphs.late import LATE
from nxcore.graphs.snapshot import as_they_are, attributes
from nxcore.graphs.structure import structure
from nxcore.nas import proof
from nxcore.nas.proof import IMAGE
from nxcore.nas.reading import Reads, Unclear
from nxcore.nas.watch import Watch
from nxcore.nn.exchange import awake
from nxcore.nn.sequential import LAYERS, is_block

TRIAL = (2, 8, 8)
"""Batch size, height and width of a trial."""

MOST = 1024
"""The most structures whose trials are kept."""


class Block(NamedTuple):
    """The layers of a separable convolution and its norm."""

    relu: nn.Module
    depthwise: Any
    pointwise: Any
    norm: Any

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        """The weights of both convolutions."""
        return self.depthwise.weight, self.pointwise.weight

    @property
    def square(self) -> bool:
        """Whether the window is the same along both axes."""
        pairs = self.depthwise.stride, self.depthwise.padding, self.depthwise.dilation
        return all(not isinstance(pair, str) and pair[0] == pair[1] for pair in pairs)

    @property
    def window(self) -> tuple[int, int, int]:
        """Stride, padding and dilation of a square window."""
        return self.depthwise.stride[0], self.depthwise.padding[0], self.depthwise.dilation[0]


Chain = tuple[Block, ...]

Form = list[tuple[type, list[tuple[str, Any]]]]
"""The classes of an operation's modules, with the attributes of those that aren't torch's or ours."""

_tried: weakref.WeakKeyDictionary[nn.Module, tuple[Form, Watch]] = weakref.WeakKeyDictionary()
"""Operation -> its form when a trial agreed, and a watch over what its code reads."""

_agreed: dict[Any, Reads | None] = {}
"""Structure -> what its code reads, if its trial agreed."""


def chain_of(op: nn.Module) -> Chain:
    """Return the blocks that an operation consists of now; none if it is no chain, or was never tried."""
    form, watch = _tried.get(op, (None, None))
    if form is None or watch is None or not _hold(modules := _modules(op), form) or not watch.holds():
        return ()
    return _blocks(modules)


def try_out(op: nn.Module) -> None:
    """Find out whether an operation in training is a chain, unless that is known or can't be tried now."""
    (form, _), modules = _tried.get(op, (None, None)), _modules(op)
    if (form is not None and _hold(modules, form)) or not _blocks(modules) or unusual():
        return
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return
    key = structure(op)
    known = key is not None and key in _agreed
    reads = _agreed[key] if known else None
    if not known or (reads is not None and not reads.watch(op).holds()):
        reads = _proven(op) if _agrees(op) else None
        if key is not None:
            if len(_agreed) >= MOST:
                _agreed.clear()
            _agreed[key] = reads
    if reads is not None:
        _tried[op] = form_of(op), reads.watch(op)


def _proven(op: nn.Module) -> Reads | None:
    """Return what an operation's code reads, if it calls its layers in turn; None if it may not."""
    layers, reads = [layer for block in _blocks(_modules(op)) for layer in block], Reads()
    form: Any = IMAGE
    for i in range(len(layers)):
        form = "call", i, form
    try:
        proof.layers(op, layers, form, reads)
    except Unclear:
        return None
    return reads


def _modules(op: nn.Module) -> list[nn.Module]:
    """Return what ``op.modules()`` yields, sooner: a step needs it thousands of times."""
    found: dict[nn.Module, None] = {}
    left: list[Any] = [op]
    while left:
        module = left.pop()
        if module is not None and module not in found:
            found[module] = None
            left += reversed(vars(module)["_modules"].values())
    return list(found)


def _blocks(modules: Sequence[nn.Module]) -> Chain:
    """Return the layers of an operation, four by four; none unless all are of separable convolutions."""
    layers = [m for m in modules if not vars(m)["_modules"]]
    if len(layers) % LAYERS or hooked(*modules) or any("forward" in vars(m) for m in modules):
        return ()
    blocks = tuple(Block(*layers[i : i + LAYERS]) for i in range(0, len(layers), LAYERS))
    if not all(is_block(block) and block.square and _normal(block.norm) for block in blocks):
        return ()
    others = (vars(m) for m in modules if vars(m)["_modules"])
    return () if any(own["_parameters"] or own["_buffers"] for own in others) else blocks


def _normal(norm: Any) -> bool:
    """Return whether a norm normalises by the statistics of its batch alone, and tracks them."""
    tracks = norm.track_running_stats and norm.momentum is not None and norm.running_mean is not None
    return norm.training and tracks and not norm.affine


def form_of(op: nn.Module) -> Form:
    """Return the present form of an operation."""
    return [(awake(m), attributes(m)) for m in _modules(op)]


def holds(op: nn.Module, form: Form) -> bool:
    """Return whether an operation has its form still."""
    return _hold(_modules(op), form)


def _hold(modules: Sequence[nn.Module], form: Form) -> bool:
    return len(modules) == len(form) and all(
        awake(m) is cls and len(attributes(m)) == len(were) and as_they_are(m, were)
        for m, (cls, were) in zip(modules, form, strict=True)
    )


def _agrees(op: nn.Module) -> bool:
    """Return whether a copy returns what its layers return."""
    device = next(op.parameters()).device
    token = LATE.set(None)  # the copy's statistics are nobody's
    try:
        twin = copy.deepcopy(op).double()
        blocks = _blocks(_modules(twin))
        generator = torch.Generator().manual_seed(0)
        shape = TRIAL[0], blocks[0].depthwise.in_channels, *TRIAL[1:]
        x = torch.randn(shape, generator=generator, dtype=torch.float64).to(device)
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            torch.autocast(device.type, enabled=False),
            torch.no_grad(),
            in_force(backends=("torch",)),  # which wakes no module that rests
        ):
            wanted, found = twin(x.clone()), x
            for block in blocks:
                for layer in block:
                    found = layer(found)
        return isinstance(wanted, Tensor) and torch.allclose(found, wanted, rtol=1e-9, atol=1e-12)
    except FOREIGN:
        return False
    finally:
        LATE.reset(token)
