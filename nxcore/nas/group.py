"""Group: the separable convolutions of all edges that leave a state, computed by one call for each level.

In a captured call of a cell, the first edge that reads a state has them computed for all: the first halves of
separable convolutions and the dilated ones, then the second halves. Each edge gets its own results. Which
operations read one state is known from an earlier call.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nxcore import session
from nxcore.call.unusual import PLAIN
from nxcore.errors import InvalidInputError
from nxcore.graphs.branches import differentiated, reader_of
from nxcore.graphs.hooks import saving
from nxcore.graphs.late import LATE, Late
from nxcore.interop import internals
from nxcore.nas.casts import Widened, alike, half_of, rounded
from nxcore.nas.chains import Block, Chain, chain_of, try_out
from nxcore.nas.level import Convolution, convolved
from nxcore.nas.pending import version
from nxcore.nn.modules import track
from nxcore.nn.sequential import run_block
from nxcore.spec.problem import TensorMeta

Raw = Callable[[nn.Module, nn.Module], bool]
"""Whether an operation's last norm, its second argument, is to be left to the sum of its edge."""

States = tuple[tuple[weakref.ref[nn.Module], ...], ...]
"""The operations that read each state."""

_known: weakref.WeakKeyDictionary[nn.Module, States] = weakref.WeakKeyDictionary()
"""Cell -> the states of its last call, as far as chains read them."""


class Given(NamedTuple):
    """The result of an operation, and the norm that it is still to be normalised by."""

    out: Tensor
    norm: Any


class _Result:
    """The result of an operation that waits for its edge.

    Parameters
    ----------
    op : Module
    chain : tuple of Block
        What it consists of.
    x : Tensor
        The state.
    """

    def __init__(self, op: nn.Module, chain: Chain, x: Tensor) -> None:
        self.op, self.chain, self.out = op, chain, x
        self.done = 0
        self.norm: Any = None
        self._statistics: list[tuple[Any, Tensor, Tensor]] = []
        self._versions = self._written()

    @property
    def rest(self) -> Sequence[Block]:
        """The blocks that are still to run."""
        return self.chain[self.done :]

    def advance(self, out: Tensor, statistics: tuple[Tensor, Tensor] | None) -> None:
        """Note the result of the next block; without statistics, it isn't normalised."""
        norm = self.chain[self.done].norm
        if statistics is None:
            self.norm = norm
        else:
            self._statistics.append((norm, *statistics))
        self.out, self.done = out, self.done + 1

    def valid(self) -> bool:
        """Return whether the operation would compute the same now."""
        return chain_of(self.op) == self.chain and self._written() == self._versions

    def given(self) -> Given:
        """Return the result for the edge, and update the running statistics of its norms."""
        for norm, mean, var in self._statistics:
            track(norm, mean, var)
        out = self.out
        for block in self.rest:
            out = run_block(block, out)
        return Given(out, self.norm)

    def _written(self) -> list[int]:
        return [version(w) for block in self.chain for w in block.weights]


class _Scope:
    """A call of a cell: the operations that read each state, and the results that wait for their edges.

    Parameters
    ----------
    cell : Module
    """

    def __init__(self, cell: nn.Module) -> None:
        self.cell, self._before, self.wide = cell, _known.get(cell), Widened()
        self._asked: set[nn.Module] = set()
        self._reads: dict[Any, tuple[Tensor, list[nn.Module]]] = {}
        self._results: dict[Any, dict[nn.Module, _Result]] = {}

    @property
    def notes(self) -> bool:
        """Whether the call's readers are noted: of the first, and of those that precede a capture."""
        return self._before is None or LATE.get() is not None

    @property
    def states(self) -> States:
        """The operations that read each state in this call."""
        return tuple(tuple(map(weakref.ref, ops)) for _, ops in self._reads.values())

    def outputs(
        self, ops: Sequence[nn.Module], x: Tensor, raw: Raw | None, *, wide: bool
    ) -> dict[nn.Module, Given]:
        """Return the results of some operations on a state; under autocast in float32 where ``wide``."""
        place = id(x), version(x), torch.is_grad_enabled(), half_of(x)
        for op in ops:
            try_out(op)
        chains = [op for op in ops if chain_of(op)]
        self._reads.setdefault(place, (x, []))[1].extend(chains)  # the tensor too: its id must stay its own
        waiting = LATE.get()
        if waiting is None or not chains:
            return {}
        if why := _refusal():
            waiting.alone = waiting.alone or why
            return {}
        if place not in self._results:
            self._results[place] = self._computed(chains[0], x, raw, waiting, wide=wide)
        self._asked.update(chains)
        results = self._results[place]
        found = [results.pop(op) for op in chains if op in results]
        valid = [result for result in found if result.valid()]
        if (half := half_of(x)) is not None:
            outs = alike([result.out for result in valid], torch.float32 if wide else half)
            for result, out in zip(valid, outs, strict=True):
                result.out = out
        return {result.op: result.given() for result in valid}

    def _computed(
        self, first: nn.Module, x: Tensor, raw: Raw | None, waiting: Late, *, wide: bool
    ) -> dict[nn.Module, _Result]:
        """Return the results of all operations that will read the state of ``first``."""
        states = ([op for ref in state if (op := ref()) is not None] for state in self._before or ())
        ops = next((state for state in states if first in state), [])
        chains = {op: chain for op in ops if op not in self._asked and (chain := chain_of(op))}
        if not chains:
            waiting.alone = waiting.alone or "the readers of a state are not known from an earlier call"
            return {}
        half = half_of(x)
        state = reader_of(x if half is None else self.wide.of(x))
        results = [_Result(op, chain, state) for op, chain in chains.items()]
        level = 0
        while level < max(len(result.chain) for result in results):
            here = [result for result in results if result.done == level < len(result.chain)]
            for members in _alike(here):
                if why := _advance(members, raw, waiting):
                    waiting.alone = waiting.alone or why
            level += 1
        made = [result for result in results if result.done]
        if half is not None and made and not wide:
            for result, out in zip(made, rounded([result.out for result in made], half), strict=True):
                result.out = out
        return {result.op: result for result in made}


SCOPE: ContextVar[_Scope | None] = ContextVar("nxcore_group", default=None)
"""The call in progress of a cell, if its convolutions may be computed together."""


@contextlib.contextmanager
def reading(cell: nn.Module | None) -> Iterator[None]:
    """Let operations within the block be computed together.

    The block is a call of ``cell``; with None, no operations of the block are.
    """
    scope = None
    if cell is not None and not torch.compiler.is_compiling():
        scope = _Scope(cell) if cell.training and torch.is_grad_enabled() else None
    token = SCOPE.set(scope)
    try:
        yield
    finally:
        SCOPE.reset(token)
    if scope is not None and scope.notes:
        _known[scope.cell] = scope.states


def outputs(
    ops: Iterable[nn.Module], x: Tensor, raw: Raw | None = None, *, wide: bool = False
) -> dict[nn.Module, Given]:
    """Return the results of those operations on ``x`` that are computed together with those of other edges.

    The others run by themselves. All edges that leave a state read the same tensor. ``raw`` says whether the
    last norm of an operation is left to the edge's sum, ``wide`` whether results are float32 under autocast,
    as it takes them.
    """
    scope = None if torch.compiler.is_compiling() else SCOPE.get()
    if scope is None or not scope.notes or type(x) not in PLAIN or not torch.is_grad_enabled():
        return {}
    run = list(ops)
    return {} if len(set(run)) < len(run) else scope.outputs(run, x, raw, wide=wide)


def wide_of(x: Tensor) -> Tensor:
    """Return a state of a half type under autocast in float32, for operations whose sum is rounded.

    ``x`` itself where the operations of its readers aren't computed together.
    """
    scope = None if torch.compiler.is_compiling() else SCOPE.get()
    waiting = LATE.get()
    if scope is None or waiting is None or not scope.notes or not differentiated(x):
        return x
    return x if half_of(x) is not x.dtype or _refusal() else scope.wide.of(x)


def rounded_state(wide: Tensor, half: torch.dtype | None) -> Tensor:
    """Return a node in the dtype that the layers return; None is its own. Edges read it as it was."""
    if half is None or wide.dtype is half:
        return wide
    scope = SCOPE.get()
    return wide.to(half) if scope is None else scope.wide.rounded(wide, half)


def _refusal() -> str:
    """Return why operations run by themselves; empty if they needn't."""
    if saving():
        return "there are hooks on saved tensors"
    if internals.transformed() or internals.in_forward_mode() or internals.tracing_state() is not None:
        return "a transform is in force"
    return ""


def _alike(results: Sequence[_Result]) -> Iterator[list[_Result]]:
    """Yield results whose next convolutions one call may compute."""
    groups: dict[Any, list[_Result]] = {}
    for result in results:
        block = result.rest[0]
        try:
            metas = [TensorMeta.of(t) for t in (result.out, *block.weights)]
            shape = session.default().op("sep_conv2d").spec.outputs(*metas, *block.window, True).shape
        except (InvalidInputError, RuntimeError, ValueError):  # the layers raise their own message
            continue
        groups.setdefault((tuple(shape), block.norm.eps), []).append(result)
    yield from groups.values()


def _advance(results: Sequence[_Result], raw: Raw | None, waiting: Late) -> str:
    """Compute the next blocks of some operations; return why they run by themselves, if they do."""
    blocks = [result.rest[0] for result in results]
    left = [
        len(result.rest) == 1 and raw is not None and raw(result.op, block.norm)
        for result, block in zip(results, blocks, strict=True)
    ]
    convolutions = [
        Convolution(result.out, block.weights, block.window, not norm)
        for result, block, norm in zip(results, blocks, left, strict=True)
    ]
    if len(convolutions) < 2:
        return "a separable convolution has another shape or eps than all others"
    try:
        found = convolved(convolutions, blocks[0].norm.eps)
    except InvalidInputError as error:
        return str(error)
    if found is None:
        return "no kernel was chosen for them"
    for result, out, statistics in zip(results, found.outs, found.statistics, strict=True):
        result.advance(out, statistics)
    waiting.grouped += len(results)
    waiting.calls += 1
    return ""
