"""Chains: operations that are separable convolutions with their norms, one behind the other.

An operation is known by its layers, and by a trial of a copy: its result must be that of these layers.
"""

import copy
import functools
import weakref
from collections.abc import Callable, Sequence
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
from nxcore.measure.collection import unprofiled
from nxcore.nas import proof
from nxcore.nas.proof import IMAGE
from nxcore.nas.reading import Reads, Unclear
from nxcore.nas.watch import Watch, before
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

LayersOf = Callable[[nn.Module], Any]
"""Returns the layers of an operation as ``Row`` has them, or None."""


class Row(NamedTuple):
    """Layers one behind the other."""

    all: Sequence[nn.Module]

    @property
    def form(self) -> Any:
        """The form that they compute, as of ``nxcore.nas.symbols``."""
        form: Any = IMAGE
        for i in range(len(self.all)):
            form = "call", i, form
        return form

    def run(self, x: Tensor) -> Tensor:
        """Return the result of the layers, one by one."""
        return functools.reduce(lambda y, layer: layer(y), self.all, x)


Form = list[tuple[type, list[tuple[str, Any]]]]
"""The classes of an operation's modules, with the attributes of those that aren't torch's or ours."""

_tried: weakref.WeakKeyDictionary[nn.Module, tuple[Form, Watch]] = weakref.WeakKeyDictionary()
"""Operation -> its form when a trial agreed, and a watch over what its code reads."""

_agreed: dict[Any, Reads | None] = {}
"""Kind of layers and structure -> what its code reads, if its trial agreed."""


def chain_of(op: nn.Module) -> Chain:
    """Return the blocks that an operation consists of now; none if it is no chain, or was never tried."""
    form, watch = _tried.get(op, (None, None))
    if form is None or watch is None or not _hold(modules := _modules(op), form) or not watch.holds():
        return ()
    return _blocks(modules)


def try_out(op: nn.Module) -> None:
    """Find out whether an operation in training is a chain, unless that is known or can't be tried now."""
    (form, _), modules = _tried.get(op, (None, None)), _modules(op)
    if form is None or not _hold(modules, form):
        with unprofiled():
            _try_out(op, modules)


def _try_out(op: nn.Module, modules: Sequence[nn.Module]) -> None:
    if not _blocks(modules) or unusual():
        return
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return
    if (reads := agreed(op, _row_of)) is not None:
        _tried[op] = form_of(op), reads.watch(op)


def agreed(op: nn.Module, layers_of: LayersOf) -> Reads | None:
    """Return what an operation's code reads, if it computes what its layers do; None if it may not.

    Operations of one structure share what was found. ``layers_of`` returns an operation's layers.
    """
    key = structure(op)
    known = key is not None and (layers_of, key) in _agreed
    reads = _agreed[layers_of, key] if known else None
    if not known or (reads is not None and not reads.watch(op).holds()):
        reads = _proven(op, layers_of(op)) if _agrees(op, layers_of) else None
        if key is not None:
            if len(_agreed) >= MOST:
                _agreed.clear()
            _agreed[layers_of, key] = reads
    return reads


def _proven(op: nn.Module, layers: Any) -> Reads | None:
    reads = Reads()
    try:
        if layers is not None:
            proof.layers(op, layers.all, layers.form, reads)
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


def _row_of(op: nn.Module) -> Row | None:
    """Return the layers of an operation that may be a chain."""
    layers = [layer for block in _blocks(_modules(op)) for layer in block]
    return Row(layers) if layers else None


def _agrees(op: nn.Module, layers_of: LayersOf) -> bool:
    """Return whether results and gradients of a copy in training are those of its layers.

    The copy is on the CPU if its code can run there: in float64, a device's libraries would load kernels that
    nothing else needs.
    """
    own = next(op.parameters()).device
    with unprofiled():
        return any(_agrees_on(device, op, layers_of) for device in dict.fromkeys((torch.device("cpu"), own)))


def _agrees_on(device: torch.device, op: nn.Module, layers_of: LayersOf) -> bool:
    token = LATE.set(None)  # the copy's statistics are nobody's
    try:
        twin = copy.deepcopy(op).to(device, torch.float64).train()
        layers, first = layers_of(twin), next(m for m in twin.modules() if isinstance(m, nn.Conv2d))
        if layers is None:
            return False
        generator = torch.Generator().manual_seed(0)
        shape = TRIAL[0], first.in_channels, *TRIAL[1:]
        x = torch.randn(shape, generator=generator, dtype=torch.float64).to(device).requires_grad_()
        leaves = [x, *(t for t in twin.parameters() if t.requires_grad)]
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            torch.autocast(device.type, enabled=False),
            torch.enable_grad(),
            in_force(backends=("torch",)),  # which wakes no module that rests
        ):
            wanted = _outcome(functools.partial(before, twin), x, leaves)
            found = _outcome(layers.run, x, leaves)
        return all(torch.allclose(f, w, rtol=1e-9, atol=1e-12) for f, w in zip(found, wanted, strict=True))
    except FOREIGN:
        return False
    finally:
        LATE.reset(token)


def _outcome(call: Callable[[Tensor], Tensor], x: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Return the result of a call, and the gradients of a weighted sum of it."""
    out = call(x.clone())  # which it may write into
    wave = torch.arange(out.numel(), device=out.device).mul(0.7).sin().to(out.dtype).view(out.shape)
    return [out.detach(), *torch.autograd.grad((out * wave).sum(), leaves)]
