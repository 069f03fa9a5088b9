"""Programs: what a plan does as data for the extension, recorded from a call."""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nxcore.context import REGIME
from nxcore.errors import FOREIGN
from nxcore.interop import internals
from nxcore.interop.fresh import Fresh, apart, laid, number, place_of, span, together
from nxcore.spec.launched import Launched, Noted
from nxcore.spec.layout import WIDEST
from nxcore.spec.planning import planning

_log = logging.getLogger("nxcore")

MOST = 4
"""The most recordings of a plan, each for other numbers among the arguments."""

FUNCTIONS = (
    "cuLaunchKernel",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuStreamIsCapturing",
)
"""The driver's functions that a launch needs."""

aten = torch.ops.aten
MAKES = frozenset({aten.empty_strided.default, aten.empty.memory_format})
VIEWS = frozenset(getattr(aten, name).default for name in ("alias", "as_strided", "detach", "view")) | {
    aten.unbind.int,
    aten.select.int,
    aten.slice.Tensor,
}
ZEROS = frozenset({aten.zeros.default})  # for a ticket
"""A plan may do these besides launching. Anything else would be left out of a recording."""

TENSOR, MANY, EQUAL, ANY = "tmea"
"""The kinds of arguments, as the extension names them."""

ITSELF = 2**32 - 1
"""The number that stands for a step's own block, among those of addresses."""


class Step(NamedTuple):
    """One function and its arguments; see ``program.h`` of the extension."""

    function: int
    block: bytes
    holes: tuple[tuple[int, int, int], ...]
    shape: tuple[int, ...]
    parameters: tuple[int, ...]
    floats: bytes


class Program(NamedTuple):
    """All that a plan does; see ``program.h`` of the extension."""

    arguments: tuple[tuple[str, Any, bool], ...]
    fresh: tuple[Fresh, ...]
    tickets: tuple[int, ...]
    steps: tuple[Step, ...]
    views: tuple[tuple[int, tuple[int, ...]], ...]
    results: Any
    device: torch.device
    aligned: bool
    context: int
    driver: tuple[int, ...]
    team: tuple[int, ...]
    keep: object


class Recorder:
    """A plan whose calls are recorded until the extension can repeat them.

    ``again`` returns the same plan with launches that are noted instead of made. ``direct`` is the object of
    the extension, which calls this one where none of its programs fits.
    """

    def __init__(self, call: Callable[..., Any], again: Callable[[], Callable[..., Any]]) -> None:
        self.direct: Any = None
        self._call, self._again, self._left = call, again, MOST

    def __call__(self, *args: Any) -> Any:
        """Record the call if it can be repeated, and make it.

        A run for a capture, and the capture itself, make it alone: a replay repeats no program.
        """
        if self._left and not REGIME.captured and _plain(args):
            self._left -= 1
            try:
                program = record(self._again(), args)
                self.direct.add(program)  # with parts of an allocation, it fits the calls of a node alone
                if any(one.whole is not None for one in program.fresh):
                    self.direct.add(program._replace(fresh=apart(program.fresh)))
            except FOREIGN as why:  # whatever is wrong with a recording, calls go on without
                _log.debug("%s isn't recorded: %s", self._call, why)
            else:
                return self.direct(*args)
        return self._call(*args)


def _plain(args: tuple[Any, ...]) -> bool:
    """Return whether a program can be recorded from this call: by the places of its tensors, and its numbers.

    It can't where two tensors have one address, nor with 0, which looks like -0.
    """
    if internals.dispatch_modes() or any(isinstance(a, float) and a == 0 for a in args):
        return False
    tensors = _tensors(args)
    places = [t.data_ptr() for t in tensors if type(t) is Tensor or type(t) is torch.nn.Parameter]
    if len({t.device for t in tensors}) != 1 or len(places) != len(tensors):
        return False
    if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return len(set(places)) == len(places) and not any(place == 0 or place % WIDEST for place in places)


def _tensors(args: Sequence[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for arg in args:
        if isinstance(arg, Tensor):
            found.append(arg)
        elif isinstance(arg, (tuple, list)):
            found.extend(a for a in arg if isinstance(a, Tensor))
    return found


class _Launches(Noted):
    """The launches of a recording, each with its context."""

    def append(self, launch: Launched) -> None:
        """Add a launch; without a context it has that of this thread, which may be another's device later."""
        here = launch.shape and not launch.context
        super().append(launch._replace(context=_context()) if here else launch)


class _Made(TorchDispatchMode):
    """Notes the tensors that are made in a block, and whether anything else is done."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # which would import the compiler: seconds of a process's first call

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.fresh: list[Tensor] = []
        self.others: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in MAKES:
            self.fresh.append(result)
        elif func not in VIEWS | ZEROS:
            self.others.append(str(func))
        return result


def record(call: Callable[..., Any], args: tuple[Any, ...]) -> Program:
    """Return all that a call does; the plan notes launches, and tensors lie apart at multiples of 16 bytes.

    Raises
    ------
    ValueError
        If it does more than to allocate and to launch.
    """
    launches = _Launches()
    with planning(noted=launches), _Made() as made:
        result = call(*args)
    contexts, drivers = {n.context for n in launches}, {n.driver for n in launches}
    teams = {n.team for n in launches if n.team}
    tensors = _tensors(args)
    known = all(any(weight is tensor for tensor in tensors) for weight in launches.weights)
    if not known or any(weight.grad_fn is not None for weight in launches.weights):
        raise ValueError("it may leave sums to a captured call")
    if made.others or len(contexts) != 1 or len(drivers) != 1 or len(teams) > 1:
        raise ValueError(
            f"it makes {len(launches)} launches, and calls {', '.join(made.others) or 'nothing'}"
        )
    on_gpu = any(n.shape for n in launches)
    groups = together(result, made.fresh) if on_gpu else []
    made.fresh[:0] = [torch.empty(0) for _ in groups]  # in place of the allocations
    places = _Places(tensors, made.fresh)
    tickets: list[int] = []
    steps = []
    for launch in launches:
        holes = []
        for at, address in launch.pointers:
            if (place := places.of(address)) is not None:
                holes.append((at, *place))
            elif launch.shape:
                raise ValueError("a launch gets the address of something else")
        for at, count in launch.tickets:
            holes.append((at, len(tensors) + len(made.fresh) + len(tickets), 0))
            tickets.append(count)
        holes += [(at, ITSELF, to) for at, to in launch.inside]
        about = launch.shape, launch.parameters, launch.floats
        steps.append(Step(launch.function, launch.block, tuple(holes), *about))
    (context,), (driver,) = contexts, drivers
    views = _Views(args, len(made.fresh) + len(tickets))
    results = _form(result, made.fresh, views)
    return Program(
        arguments=tuple([_argument(arg, launches.weights) for arg in args]),
        fresh=laid(made.fresh, groups),
        tickets=tuple(tickets),
        steps=tuple(steps),
        views=tuple(views),
        results=results,
        device=tensors[0].device,
        aligned=on_gpu,
        context=context,
        driver=driver or (_driver() if on_gpu else ()),
        team=next(iter(teams), ()),
        keep=(call, [n.keep for n in launches]),
    )


def _argument(value: Any, weights: Sequence[Tensor]) -> tuple[str, Any, bool]:
    """Return what an argument must be; one of ``weights`` may have no node, which may take sums."""
    tensors = _tensors((value,))
    leaf = any(tensor is weight for tensor in tensors for weight in weights)
    if isinstance(value, Tensor):
        return TENSOR, 1, leaf
    if tensors and len(tensors) == len(value):
        return MANY, len(value), leaf
    if tensors:
        raise ValueError("a sequence has tensors and others")
    return (EQUAL, value, False) if value is None or isinstance(value, (int, float)) else (ANY, None, False)


class _Views(list[tuple[int, tuple[int, ...]]]):
    """Results that are views of an argument, of other sizes perhaps: its place and their sizes.

    Parameters
    ----------
    args : sequence
        The arguments.
    first : int
        The number of the first view, among those of all results.
    """

    def __init__(self, args: Sequence[Any], first: int) -> None:
        super().__init__()
        self._args, self._first = args, first

    def number(self, result: Tensor) -> int:
        """Note a result, and return its number.

        An argument itself is no view: a plan that returns it has written to it.
        """
        for place, arg in enumerate(self._args):
            if not isinstance(arg, Tensor) or arg is result or arg.data_ptr() != result.data_ptr():
                continue
            if arg.numel() == result.numel() and place_of(arg.view(result.shape)) == place_of(result):
                self.append((place, tuple(result.shape)))
                return self._first + len(self) - 1
        raise ValueError("a result is neither a whole tensor that the plan made nor a view of an argument")


def _form(result: Any, fresh: list[Tensor], views: _Views) -> Any:
    """Return numbers of fresh tensors and views in the form of a result."""
    if isinstance(result, (tuple, list)):
        return type(result)(_form(r, fresh, views) for r in result)
    if result is None:
        return None
    at = number(result, fresh)
    return views.number(result) if at is None else at


class _Places:
    """The number of a tensor, and the distance from its beginning, by an address."""

    def __init__(self, tensors: list[Tensor], fresh: list[Tensor]) -> None:
        self._given = {t.data_ptr(): i for i, t in enumerate(tensors)}
        self.spans = [(*span(t), i) for i, t in enumerate([*tensors, *fresh])]

    def of(self, address: int) -> tuple[int, int] | None:
        """Return both, or None for memory of something else."""
        if address in self._given:
            return self._given[address], 0
        found = [(i, address - begin) for begin, end, i in self.spans if begin <= address < end]
        if len(found) > 1:
            raise ValueError("a launch gets the address of an element that several arguments share")
        return found[0] if found else None


@functools.cache
def _library() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _driver() -> tuple[int, ...]:
    """Return the addresses of the driver's functions."""
    return tuple(ctypes.cast(getattr(_library(), name), ctypes.c_void_p).value or 0 for name in FUNCTIONS)


def _context() -> int:
    """Return the calling thread's context."""
    found = ctypes.c_void_p()
    _library().cuCtxGetCurrent(ctypes.byref(found))
    return found.value or 0
