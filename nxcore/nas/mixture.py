"""Mixture: a user's mixed operation, which blends its operations by one operator.

Its own code is taken for a weighted sum if it is one on symbols (``nxcore.nas.proof``), and if calls of a
copy agree.
"""

import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nxcore.errors import FOREIGN
from nxcore.graphs.hooks import hooked
from nxcore.graphs.rows import span_of
from nxcore.graphs.structure import structure
from nxcore.nas import group, node, proof, shared_pools
from nxcore.nas.audit import Audit, Count, ours
from nxcore.nas.blend import ENDS, edge_of, ends_of, last_of, state_of
from nxcore.nas.comparison import aside, difference, twin_of
from nxcore.nas.lists import LISTS, WRITES, ZEROS, is_zero, lists_of
from nxcore.nas.pending import version
from nxcore.nas.reading import Reads, Unclear
from nxcore.nas.shared_pools import shared
from nxcore.nas.watch import AUDIT, PART, before
from nxcore.nn import Part, Swap
from nxcore.nn.exchange import PATCHED

TAKES = "_nxcore_takes"
"""The attribute of a mixed operation: what it takes, as of ``Takes``."""

CASES = (
    ("dense", 2, 6, True),
    ("negative", 1, 5, False),
    ("one-hot", 3, 8, True),
    ("zero", 5, 4, False),
    ("tiny", 1, 7, True),
    ("sparse", 4, 4, False),
)
"""The weights, images, side and mode of each trial call. One mixed operation of a class has all of them, the
others the first alone: their code is the same."""


@dataclass(frozen=True, slots=True)
class Takes:
    """The weights that a mixed operation takes, and the names of its operations.

    Attributes
    ----------
    vectors, lists : tuple of int
        The numbers of weights, in a vector and in a list.
    holder : str
        The name of what holds the operations.
    names : tuple of str
    """

    holder: str
    vectors: tuple[int, ...]
    lists: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """The facts of a mixed operation, which are those of all others of its structure.

    Attributes
    ----------
    takes : Takes
    zeros : dict of int to Reads
        The operations that return zeros for every input, as DARTS' ``none`` does, and what their code reads.
    ends : list of int
        The indices of operations that end with a norm.
    written : bool
        Whether one of its operations writes into the input.
    reads : Reads
        What its code reads.
    count : Count
    """

    takes: Takes
    zeros: dict[int, Reads]
    ends: list[int]
    written: bool
    reads: Reads
    count: Count


def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for the ``forward`` of a mixed operation that is taken."""
    if torch.compiler.is_compiling():
        return before(self, *args, **kwargs)  # a compiler tests what this reads by itself
    if args:
        args = node.value_of(args[0]), *args[1:]
    audit: Audit | None = vars(self).get(AUDIT)
    if kwargs or audit is None or not _fits(self, args) or not audit.passes(self, args, kwargs):
        return before(self, *args, **kwargs)
    x, weights = args[0], _vector(args[1])
    part: Part | None = vars(self).get(PART)
    if part is None or not part.alone:
        return blended(self, x, weights) if part is None else part(self, x, weights)
    with (
        shared_pools.sharing(on=False),
        group.reading(None),
        node.waiting(on=False),
    ):  # a capture of this call can't hold what another one computed
        return part(self, x, weights)


def _fits(module: nn.Module, args: Any) -> bool:
    """Return whether arguments are those that the module's code was run on."""
    takes: Takes | None = vars(module).get(TAKES)  # None where another thread has given the class back
    if takes is None or len(args) != 2 or tuple(_children(module, takes)) != takes.names:
        return False
    weights = args[1]
    if isinstance(weights, Tensor):
        return weights.ndim == 1 and weights.is_floating_point() and len(weights) in takes.vectors
    return type(weights) is list and len(weights) in takes.lists and all(map(_is_number, weights))


def _is_number(weight: Any) -> bool:
    return isinstance(weight, Tensor) and weight.ndim == 0 and weight.is_floating_point()


def _vector(weights: Any) -> Tensor:
    found: Tensor = torch.stack(weights) if type(weights) is list else weights
    return found


def blended(self: Any, x: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of the operations; those that only return zeros are skipped."""
    noted = vars(self).copy()  # at once: another thread may give the class back
    takes: Takes | None = noted.get(TAKES)
    if takes is None:
        own: Tensor = before(self, x, weights)
        return own
    operations, zeros = [*_children(self, takes).values()], noted.get(ZEROS, ())
    run = [i for i, op in enumerate(operations) if hooked(op) or not is_zero(op, zeros)]
    if run and len(run) < len(operations):
        ends = [i for i in range(1, len(run)) if run[i] > run[i - 1] + 1]
        spans = [
            span_of(weights, run[i], run[j - 1] + 1) for i, j in itertools.pairwise([0, *ends, len(run)])
        ]
        weights = spans[0] if len(spans) == 1 else torch.cat(spans)
        operations = [operations[i] for i in run]
    else:
        weights = span_of(weights, 0, len(operations))
    written = WRITES in noted
    state = state_of(self, x, written=written)
    known = [None if written else shared(state, op) for op in operations]
    norms = dict(noted.get(ENDS, ()))
    return node.summed(edge_of(self, operations, known, x, weights, norms, written=written))


def looks_mixed(module: nn.Module) -> bool:
    """Return whether a module may be a mixed operation, by what it holds and what its ``forward`` takes."""
    if (
        hasattr(type(module), PATCHED)
        or type(module).__module__.startswith("nxcore.nn.")
        or holder_of(module) is None
    ):
        return False
    required = [
        p
        for p in inspect.signature(type(module).forward).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 3  # self, an image, the weights


def holder_of(module: nn.Module) -> nn.Module | None:
    """Return the list or dictionary of the module's operations; None if that isn't clear."""
    usual = getattr(module, "_ops", None)  # in search networks
    if isinstance(usual, nn.ModuleList):
        return usual
    held = lists_of(module)
    if len(held) != 1 or held[0] not in module.children():
        return None
    return None if any(lists_of(inner) for op in held[0].children() for inner in op.modules()) else held[0]


def _children(module: nn.Module, takes: Takes) -> dict[str, Any]:
    """Return the operations of a module that is taken, by name."""
    held: Any = vars(module)["_modules"].get(takes.holder)
    return vars(held)["_modules"] if isinstance(held, LISTS) else {}


def differs(module: nn.Module, name: str, swap: Swap, trials: dict[Any, Trial]) -> str:
    """Return why a module can't be taken for the weighted sum of its operations; empty if it can.

    Note in the module what is known of it, or of one with the same structure.
    """
    key = structure(module)
    trial = None if key is None else trials.get(key)
    if trial is None:
        cls = type(module)
        found = tried(module, CASES[: 1 if cls in trials or ours(cls) else None])
        if isinstance(found, str):
            return found
        trial = trials[cls] = found
        if key is not None:
            trials[key] = trial
    operations = [*_children(module, trial.takes).values()]
    if len(trial.zeros) < len(operations):
        vars(module)[ZEROS] = tuple(
            (operations[i], reads.watch(operations[i])) for i, reads in trial.zeros.items()
        )
    if trial.written:
        vars(module)[WRITES] = True
    else:
        vars(module)[ENDS] = tuple((operations[i], last_of(operations[i])) for i in trial.ends)
    watch = trial.reads.watch(module)
    vars(module)[TAKES] = trial.takes  # the last that a call reads
    vars(module)[AUDIT] = Audit(name, swap, watch, trial.count, before, _taken, leave)
    return ""


def leave(module: nn.Module) -> None:
    """Take from a module what was noted there."""
    for name in (TAKES, PART, ZEROS, WRITES, ENDS):  # a call that finds the first finds all
        vars(module).pop(name, None)


def _taken(module: nn.Module, x: Tensor, weights: Any) -> Tensor:
    return blended(module, x, _vector(weights))


def tried(module: nn.Module, cases: Sequence[Any] = CASES) -> Trial | str:
    """Return what is known of a module, or why it isn't the weighted sum of its operations.

    Calls are those of a copy on the CPU, if its code can run there: in float64, a device's libraries would
    load kernels that nothing else needs.
    """
    first = next(module.parameters(), next(module.buffers(), None))
    channels = next((_channels(m) for m in module.modules() if _channels(m)), 0)
    if first is None or not channels:
        return "none of its operations shows the number of channels"
    try:
        takes, reads = proven(module)
    except Unclear as why:
        return f"{proof.ANOTHER}: {why}"
    found: Trial | str = ""
    devices = (first.device,) if first.is_meta else (torch.device("cpu"), first.device)
    for device in dict.fromkeys(devices):
        found = tried_on(device, module, channels, takes, reads, cases)
        if not isinstance(found, str):
            break
    return found


def proven(module: nn.Module) -> tuple[Takes, Reads]:
    """Return the weights that a module's code takes, and what it reads.

    Raises
    ------
    Unclear
        If it may do anything else than return the weighted sum of its operations.
    """
    holder: Any = holder_of(module)
    name = next(name for name, m in vars(module)["_modules"].items() if m is holder)
    many, reads, whys = len(holder), Reads(), list[Unclear]()
    found: dict[bool, list[int]] = {False: [], True: []}
    for listed, lengths in found.items():
        for length in (many, many + 1):  # a last one may be there that is not used
            own = Reads()
            try:
                proof.sums(module, holder, length, own, listed=listed)
            except Unclear as why:
                whys.append(why)
            else:
                lengths.append(length)
                reads.add(own)
    if not found[False]:
        raise whys[0]
    return Takes(
        name, tuple(found[False]), tuple(found[True]), tuple(name for name, _ in holder.named_children())
    ), reads


def tried_on(
    device: torch.device,
    module: nn.Module,
    channels: int,
    takes: Takes,
    reads: Reads,
    cases: Sequence[Any],
) -> Trial | str:
    """Return what trial calls of a copy on a device found, or how they differ."""
    try:
        twin = twin_of(module, device)
    except FOREIGN as error:
        return f"a trial call raised {type(error).__name__}: {error}"
    vars(twin)[TAKES] = takes
    operations, generator = [*_children(twin, takes).values()], torch.Generator().manual_seed(0)
    zeros = {i: own for i, op in enumerate(operations) if (own := proof.zeros(op)) is not None}
    if len(zeros) < len(operations):
        vars(twin)[ZEROS] = tuple((operations[i], own.watch(operations[i])) for i, own in zeros.items())
    length, first = takes.vectors[-1], True
    for kind, images, side, training in cases:
        x = torch.randn(images, channels, side, side, generator=generator, dtype=torch.float64).to(device)
        weights = _weights(kind, length, generator).to(device)
        given: Any = ((x.clone().requires_grad_(), weights.requires_grad_()), {})
        twin.train(training)
        if first:
            try:
                written, ends = _ends(twin, operations, x)
            except FOREIGN as error:
                return f"a trial call raised {type(error).__name__}: {error}"
            if written:
                vars(twin)[WRITES] = True
        why = difference(twin, before, _taken, given)
        if why or (why is None and first):
            return f"{proof.ANOTHER}: {why}" if why else "a trial call of its own code raised an error"
        first = False
    return Trial(takes, zeros, ends, written, reads, Count(type(module)))


def _ends(twin: nn.Module, operations: list[nn.Module], x: Tensor) -> tuple[bool, list[int]]:
    """Return whether an operation writes into its input, and the indices of those that end with a norm."""
    with aside(twin), torch.no_grad():
        for op in operations:
            op.eval()(x)
            op.train()(x)
        return version(x) > 0, ends_of(operations, x)


def _weights(kind: str, length: int, generator: torch.Generator) -> Tensor:
    """Return weights of a trial call."""
    dense = torch.rand(length, generator=generator, dtype=torch.float64)
    if kind == "sparse":
        return dense * (torch.arange(length) % 2)
    one = torch.zeros(length, dtype=torch.float64).index_fill(0, torch.tensor([length // 2]), 1.0)
    return {"dense": dense, "negative": -dense, "one-hot": one, "zero": 0 * dense, "tiny": 1e-3 * dense}[kind]


def _channels(module: nn.Module) -> int:
    if isinstance(module, nn.Conv2d):
        return module.in_channels
    return module.num_features if isinstance(module, nn.BatchNorm2d) else 0
