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

from nxcore.errors import FOREIGN
from nxcore.interop import internals
from nxcore.spec.launched import Launched, Noted, noted

_log = logging.getLogger("nxcore")

ALIGNED = 16  # bytes: the widest load of a kernel
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


PART = 2**20
"""The most bytes of a gradient that is allocated together with others; torch's allocator splits blocks too."""

APART = 512
"""Parts of an allocation begin at multiples of so many bytes, as torch's allocations do."""


class Fresh(NamedTuple):
    """A tensor that a plan makes.

    Attributes
    ----------
    dtype, sizes, strides
        Its own.
    whole : int, optional
        The number of the tensor in whose memory it is; None for memory of its own.
    place : int
        Where it begins there, in elements.
    """

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    whole: int | None = None
    place: int = 0


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

    Parameters
    ----------
    call : callable
        The plan; takes the operator's arguments, all positional.
    again : callable
        Returns the same plan with launches that are noted instead of made.

    Attributes
    ----------
    direct : object
        The extension's object, which calls this one where none of its programs fits.
    """

    def __init__(self, call: Callable[..., Any], again: Callable[[], Callable[..., Any]]) -> None:
        self.direct: Any = None
        self._call, self._again, self._left = call, again, MOST

    def __call__(self, *args: Any) -> Any:
        """Record the call if it can be repeated, and make it."""
        if self._left and _plain(args):
            self._left -= 1
            try:
                self.direct.add(record(self._again(), args))
            except FOREIGN as why:  # whatever is wrong with a recording, calls go on without
                _log.debug("%s isn't recorded: %s", self._call, why)
            else:
                return self.direct(*args)
        return self._call(*args)


def _plain(args: tuple[Any, ...]) -> bool:
    """Return whether a program can be told from this call: where its tensors lie, and by which numbers.

    Two tensors at one address can't be told apart, and neither can 0 and -0.
    """
    if internals.dispatch_modes() or any(isinstance(a, float) and a == 0 for a in args):
        return False
    tensors = _tensors(args)
    places = [t.data_ptr() for t in tensors if type(t) is Tensor or type(t) is torch.nn.Parameter]
    if len({t.device for t in tensors}) != 1 or len(places) != len(tensors):
        return False
    if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return len(set(places)) == len(places) and not any(place == 0 or place % ALIGNED for place in places)


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
    """Return all that a call does.

    Parameters
    ----------
    call : callable
        The plan, with launches that are noted.
    args : tuple
        The operator's arguments; tensors at 16 bytes, each at another address.

    Raises
    ------
    ValueError
        If it does more than to allocate and to launch.
    """
    launches = _Launches()
    token = noted.set(launches)
    try:
        with _Made() as made:
            result = call(*args)
    finally:
        noted.reset(token)
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
    together = _together(result, made.fresh) if on_gpu else []
    made.fresh[:0] = [torch.empty(0) for _ in together]  # in place of the allocations
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
        fresh=_laid(made.fresh, together),
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


def _together(result: Any, fresh: list[Tensor]) -> list[list[Tensor]]:
    """Return tensors that a plan makes for one sequence in its result: the gradients of many candidates.

    To allocate each takes the host longer than the launch. One allocation for all lives as long as any of
    them, as with the gradients of torch's own ``stack``.
    """
    found = []
    for items in result if isinstance(result, (tuple, list)) else ():
        if isinstance(items, (tuple, list)):
            numbers = {_number(item, fresh) for item in items if isinstance(item, Tensor)} - {None}
            small = [t for i, t in enumerate(fresh) if i in numbers and 0 < _bytes(t) <= PART]
            found += [small] if len(small) > 1 else []
    return found


def _bytes(tensor: Tensor) -> int:
    begin, end = _span(tensor)
    return end - begin


def _laid(fresh: list[Tensor], together: list[list[Tensor]]) -> tuple[Fresh, ...]:
    """Return how tensors are made, of which the first are the allocations of those that are made together."""
    places, sizes = {}, [0] * len(together)
    for whole, parts in enumerate(together):
        for part in parts:
            places[id(part)] = whole, sizes[whole] // part.element_size()
            sizes[whole] += -(-_bytes(part) // APART) * APART
    wholes = [Fresh(torch.uint8, (size,), (1,)) for size in sizes]
    others = fresh[len(together) :]
    return (*wholes, *[Fresh(t.dtype, tuple(t.shape), t.stride(), *places.get(id(t), ())) for t in others])


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
            if arg.numel() == result.numel() and _place(arg.view(result.shape)) == _place(result):
                self.append((place, tuple(result.shape)))
                return self._first + len(self) - 1
        raise ValueError("a result is neither a whole tensor that the plan made nor a view of an argument")


def _form(result: Any, fresh: list[Tensor], views: _Views) -> Any:
    """Return numbers of fresh tensors and views in the form of a result."""
    if isinstance(result, (tuple, list)):
        return type(result)(_form(r, fresh, views) for r in result)
    if result is None:
        return None
    number = _number(result, fresh)
    return views.number(result) if number is None else number


def _number(result: Tensor, fresh: list[Tensor]) -> int | None:
    """Return which of the tensors that a plan makes a result is: torch's modes may give it another object."""
    same = (t is result or (t.numel() and _place(t) == _place(result)) for t in fresh)
    return next((i for i, is_one in enumerate(same) if is_one), None)


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


class _Places:
    """The number of a tensor, and the distance from its beginning, by an address."""

    def __init__(self, tensors: list[Tensor], fresh: list[Tensor]) -> None:
        self._given = {t.data_ptr(): i for i, t in enumerate(tensors)}
        self._spans = [(*_span(t), i) for i, t in enumerate([*tensors, *fresh])]

    def of(self, address: int) -> tuple[int, int] | None:
        """Return both, or None for memory of something else."""
        if address in self._given:
            return self._given[address], 0
        found = [(i, address - begin) for begin, end, i in self._spans if begin <= address < end]
        if len(found) > 1:
            raise ValueError("a launch gets the address of an element that several arguments share")
        return found[0] if found else None


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return where a tensor's elements begin and end."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size() if tensor.numel() else begin


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
