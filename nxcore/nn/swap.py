"""accelerate and restore: change the modules of a model to nxcore's classes and back.

Only a module's class changes. Its parameters, buffers, hooks, flags and references to it stay as they are.
Torch itself is not patched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from nxcore.errors import of_type
from nxcore.nn import activations, watching
from nxcore.nn import whole as of_models
from nxcore.nn.embedding import Embedding
from nxcore.nn.exchange import EXCHANGING, MARK, PATCHED, RESTING, awake, kind
from nxcore.nn.lookups import PREPARED, prepared
from nxcore.nn.modules import (
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    MaxPool2d,
)
from nxcore.nn.norms import GroupNorm, LayerNorm, RMSNorm
from nxcore.nn.prepare import shown
from nxcore.nn.programs import program_for
from nxcore.nn.sequential import Sequential
from nxcore.nn.served import Served, give_back, look
from nxcore.nn.softmaxes import CrossEntropyLoss, LogSoftmax, Softmax
from nxcore.program.compilers.beside import checked

OURS: dict[type[nn.Module], Any] = {
    nn.MaxPool2d: MaxPool2d,
    nn.AvgPool2d: AvgPool2d,
    nn.AdaptiveAvgPool2d: AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d: AdaptiveMaxPool2d,
    nn.Conv2d: Conv2d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.Sequential: Sequential,
    nn.Softmax: Softmax,
    nn.LogSoftmax: LogSoftmax,
    nn.CrossEntropyLoss: CrossEntropyLoss,
    nn.Embedding: Embedding,
    nn.LayerNorm: LayerNorm,
    nn.RMSNorm: RMSNorm,
    nn.GroupNorm: GroupNorm,
}
OURS |= {ours.__bases__[0]: ours for ours in activations.FUNCTIONS if ours in RESTING}
TORCHS = {ours: torchs for torchs, ours in OURS.items()}


@dataclass(frozen=True, slots=True)
class Swap:
    """The modules of a model that have nxcore's classes, and why the others don't.

    Attributes
    ----------
    replaced : dict of str to str
        The name of a module whose class is nxcore's -> torch's class. A shared module has one name. Of
        ``restore``, the modules that have torch's class again.
    left : dict of str to str
        The name of another module that has no children, or is of a kind that nxcore has -> why it is so.
    replays : str
        Whether calls of the model may be replayed; if not, why.
    gains : dict of str to float or None, optional
        Of ``accelerate(model, dry_run=True)`` alone: the name of each module that would be replaced -> how
        many times as fast as torch's its calls are by the records of its device; 1 where torch won; None
        where there is no record.

    Examples
    --------
    >>> print(nxcore.accelerate(torch.nn.Sequential(torch.nn.MaxPool2d(2), torch.nn.ReLU6())))
    replaced 1, left 1
      0: MaxPool2d
      left 1: no operator for ReLU6
    """

    replaced: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    replays: str = ""
    gains: dict[str, float | None] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        dry = self.gains is not None
        lines = [f"{'would replace' if dry else 'replaced'} {len(self.replaced)}, left {len(self.left)}"]
        lines += [f"  {n or '(the model)'}: {cls}{self._gain(n)}" for n, cls in self.replaced.items()]
        lines += [f"  {line}" for line in self.reasons]
        lines += [f"  steps: {self.replays}"] if self.replays else []
        return "\n".join(lines)

    @property
    def reasons(self) -> list[str]:
        """A line for each reason why modules were left, with their number, the most frequent first."""
        like: dict[str, list[str]] = {}
        for text in self.left.values():  # texts that differ in numbers alone are one line
            like.setdefault(text.partition(": ")[0], []).append(text)
        found = sorted(like.items(), key=lambda item: -len(item[1]))
        return [f"left {len(texts)}: {head if len(set(texts)) > 1 else texts[0]}" for head, texts in found]

    def _gain(self, name: str) -> str:
        if self.gains is None:
            return ""
        gain = self.gains[name]
        return ", gain unknown" if gain is None else f", {gain:.2f} times as fast"


def accelerate(
    model: nn.Module,
    prepare: tuple[Any, ...] | None = None,
    *,
    watch: bool = True,
    graphs: bool = True,
    entrants: Iterable[str] = (),
) -> Swap:
    """Make the modules of ``model`` run nxcore's operators; see ``nxcore.accelerate``.

    >>> nxcore.nn.accelerate(torch.nn.Sequential(torch.nn.MaxPool2d(2))).replaced
    {'0': 'MaxPool2d'}
    """
    names = checked(entrants)
    swap = exchanged(model)
    if prepare is not None:
        shown(model, prepare)
    found = program_for(watching.stepped(model), names) if graphs and of_models.available() else None
    if isinstance(found, str):
        swap = replace(swap, replays=f"are not replayed: {found}")
    elif found is not None:
        swap = replace(swap, replays="may be replayed as CUDA graphs")
    whole = None if isinstance(found, str) else found
    if watch or whole is not None:
        watching.watch(model, whole=whole, compares=watch)
    return swap


def exchanged(model: nn.Module) -> Swap:
    """Exchange the classes of modules that an operator can serve; end watches over steps."""
    watching.unwatch(model)
    for module in model.modules():
        with EXCHANGING:
            if _able(module):
                module.__class__ = OURS[kind(module)]
                vars(module)[MARK] = True
            look(module)
    return standing(model)


def restore(model: nn.Module) -> Swap:
    """Undo ``accelerate``; see ``nxcore.restore``.

    >>> model = torch.nn.Sequential(torch.nn.MaxPool2d(2))
    >>> nxcore.nn.accelerate(model).replaced == nxcore.nn.restore(model).replaced
    True
    """
    watching.unwatch(model)
    swap = Swap()
    for name, module in model.named_modules():
        with EXCHANGING:
            cls = awake(module)
            if MARK not in vars(module):
                continue
            if give_back(module):
                swap.replaced[name] = cls.__name__
            else:
                swap.left[name] = f"its class was changed since, to {cls.__name__}"
    return swap


def standing(model: nn.Module, *, would: bool = False) -> Swap:
    """Return which modules have nxcore's classes now, or ``would`` have them after ``accelerate``."""
    swap = Swap()
    for name, module in of_type(model, nn.Module, "a torch.nn.Module", "model").named_modules():
        cls = kind(module)
        if PATCHED in vars(cls):
            swap.replaced[name] = vars(cls)[PATCHED].__name__
        elif isinstance(module, Served):
            if module.concerns(module):
                swap.replaced[name] = TORCHS.get(awake(module), cls).__name__
        elif _able(module):
            (swap.replaced if would else swap.left)[name] = cls.__name__ if would else "not accelerated"
        elif why := _refusal(module):
            swap.left[name] = why
    return swap


def _able(module: nn.Module) -> bool:
    """Return whether ``accelerate`` exchanges the class of ``module``."""
    cls = kind(module)
    return cls in OURS and not _refusal(module) and bool(OURS[cls].concerns(module))


def _refusal(module: nn.Module) -> str:
    """Return why ``module``, of torch's class or the user's, is not changed.

    Empty if it can be, or only contains others.
    """
    cls = kind(module)
    if cls in OURS:
        if prepared(module) and OURS[cls].concerns(module):
            return PREPARED
        return "its forward was replaced" if "forward" in vars(module) else str(OURS[cls].refusal(module))
    base = next((b for b in cls.__mro__ if b in OURS), None)
    if base and OURS[base].concerns(module):
        if parametrize.is_parametrized(module):
            return "it has parametrizations"
        return f"{cls.__name__} is a subclass of {base.__name__}: its forward may differ"
    return "" if next(module.children(), None) else f"no operator for {cls.__name__}"
