"""Kernel, Backend, Verdict, Refusal, Check: what a plugin hands over, and the answers it gives."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

import torch

from nxcore.errors import PluginError
from nxcore.spec.problem import Problem
from nxcore.spec.process import preserved
from nxcore.spec.spec import OpSpec

Precision = Literal["ieee32", "tf32", "half"]


class Code(StrEnum):
    """Why a kernel is left out, for programs: texts may change, these don't."""

    MACHINE = "machine"
    """The machine lacks the device or the toolkit."""
    DEVICE = "device"
    """The tensors lie elsewhere."""
    DTYPE = "dtype"
    LAYOUT = "layout"
    """The strides, or memory that elements share."""
    SIZE = "size"
    """The shape, or how much there is of something."""
    ARGUMENT = "argument"
    """An argument that is no tensor, or an ``out``."""
    CLAIM = "claim"
    """The kernel doesn't claim what the call needs: determinism, say."""
    IDLE = "idle"
    """There is nothing to compute."""
    WRONG = "wrong"
    """It disagrees with the reference; in quarantine, if it was a call or its verification that showed it."""
    CRASHED = "crashed"
    """In quarantine: the process or the device's context ended inside it."""
    QUARANTINED = "quarantined"
    """In quarantine: it raised on several problems."""
    RAISED = "raised"
    """It raised, here and now."""
    MEMORY = "memory"
    """There was too little memory, here and now."""
    UNMEASURED = "unmeasured"
    """It wasn't timed, here and now."""
    UNVERIFIED = "unverified"
    """It takes no sample that it could be held to."""
    ON_REQUEST = "on_request"
    """Its backend takes part only where it is asked for."""
    SIMULATED = "simulated"
    """An interpreter or simulator runs it."""
    POLICY = "policy"
    """The caller's preference or the policy leaves it out."""
    BROKEN = "broken"
    """The plugin broke its contract: its ``accepts`` raised, say."""
    OTHER = "other"
    """The plugin named none, or a later version did."""

    @classmethod
    def _missing_(cls, value: object) -> Code:  # noqa: ARG003  a record of a later version may hold any
        return cls.OTHER


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a kernel is left out of a call.

    Attributes
    ----------
    code : Code
        For programs.
    reason : str
        For readers: what was expected and what came.
    hint : str
        What to type to change it, if anything would.
    """

    code: Code
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """Yes, or no with a reason. True or false as a condition.

    Attributes
    ----------
    ok : bool
        The answer.
    reason : str
        Why not; for a yes that carries a condition, the condition.
    hint : str
        What to type to change the answer, if anything would.
    simulated : bool
        Yes, but by an interpreter or simulator: right, and never worth timing.
    code : Code
        Why not, for programs.
    """

    ok: bool
    reason: str = ""
    hint: str = ""
    simulated: bool = False
    code: Code = Code.OTHER

    def __bool__(self) -> bool:
        return self.ok

    @property
    def refusal(self) -> Refusal | None:
        """The no as data, None if it is a yes."""
        reason = self.reason or "declined without a reason"
        return None if self.ok else Refusal(self.code, reason, self.hint)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        return asdict(self)


YES = Verdict(True)


def no(reason: str, *, hint: str = "", code: Code = Code.OTHER) -> Verdict:
    """Return a no; the reason names what was expected and what came."""
    return Verdict(False, reason, hint, code=code)


def simulated(reason: str) -> Verdict:
    """Return a yes from an interpreter or simulator: such a kernel is verified, never timed."""
    return Verdict(True, reason, simulated=True)


def accept_all(problem: Problem) -> Verdict:  # noqa: ARG001  the shape every accepts has
    """Take every call."""
    return YES


Accepts = Callable[[Problem], Verdict]


@dataclass(frozen=True)
class Kernel:
    """One implementation of one operator.

    Attributes
    ----------
    op : str
        The operator's name.
    target : str
        ``"module:attribute"``, imported on first use. The attribute is a planner,
        ``plan(problem) -> callable``: it may specialise (grid, compiled handle, strides), and what
        it returns is called with the operator's arguments, all positional, defaults filled in.
    accepts : callable
        ``accepts(problem) -> Verdict`` answers for the call: shapes, dtypes, layout, device.
    probe : callable, optional
        ``probe() -> Verdict`` answers for the machine where this kernel needs more than its backend.
    variant : str
        Tells kernels of one backend apart, such as ``"cuda"``; empty for a backend's only kernel.
    dtypes : tuple of torch.dtype
        The element types that the kernel claims.
    precision : str
        The precision class of a float32 call: ``"ieee32"``, ``"tf32"`` or ``"half"``.
    deterministic, graph_safe, in_place_safe : bool
        Claims, False unless made; the conformance suite holds a kernel to each.
    branch : str
        ``"module:attribute"`` of ``branch(problem)``. It returns something hashable, which differs where the
        kernel goes another way that costs the host more or less: whether blocks share an output, say. A
        size that was never measured is then predicted from those alone that go its way. Empty where there
        is one way.
    """

    op: str
    target: str
    accepts: Accepts = accept_all
    probe: Callable[[], Verdict] | None = None
    variant: str = ""
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    precision: Precision = "ieee32"
    deterministic: bool = False
    graph_safe: bool = False
    in_place_safe: bool = False
    branch: str = ""

    def takes(self, problem: Problem) -> Verdict:
        """Return what ``accepts`` answers, which is asked only where there is something to compute."""
        return no(problem.idle, code=Code.IDLE) if problem.idle else self.accepts(problem)

    @functools.cached_property
    def plan(self) -> Callable[[Problem], Callable[..., Any]]:
        """The planner, imported now."""
        found: Callable[[Problem], Callable[..., Any]] = _imported(self.target)
        return found

    @functools.cached_property
    def sweep(self) -> Callable[[Problem], Iterable[Any]] | None:
        """What yields the tiles that ``plan(problem, tile)`` takes: ``sweep`` beside ``plan``, if any."""
        module, _, planner = self.target.partition(":")
        return getattr(importlib.import_module(module), planner.replace("plan", "sweep"), None)

    @functools.cached_property
    def branch_of(self) -> Callable[[Problem], Hashable]:
        """What ``branch`` names, imported now."""
        found: Callable[[Problem], Hashable] = _imported(self.branch)
        return found


Row = Accepts | Mapping[str, Any]


def kernels(package: str, rows: Mapping[str, Row], **every: Any) -> tuple[Kernel, ...]:
    """Return a backend's kernels from a table.

    Parameters
    ----------
    package : str
        Where the planners are: that of an operator is ``plan`` in the module of its name.
    rows : Mapping
        The operator -> ``accepts``, or a mapping with ``accepts`` and other attributes of ``Kernel``.
        ``target`` is without the package there: ``"softmax_sum:plan"``, say, where another file has the
        planner.
    **every
        Attributes of all of them, where a row has no other.

    Returns
    -------
    tuple of Kernel
    """
    made = []
    for op, row in rows.items():
        own = dict(row) if isinstance(row, Mapping) else {"accepts": row}
        target = own.pop("target", f"{op}:plan")
        made.append(Kernel(op, f"{package}.{target}", **(every | own)))
    return tuple(made)


@dataclass(frozen=True)
class Composed(Kernel):
    """A kernel made of one backend's kernels for the parts of an operator.

    Attributes
    ----------
    halves : tuple of Kernel
        One a part.
    """

    halves: tuple[Kernel, ...] = ()

    @property
    def plan(self) -> Callable[[Problem], Callable[..., Any]]:
        """Plan each part that there is, and join them."""
        return self._plan

    def _plan(self, problem: Problem) -> Callable[..., Any]:
        pairs = zip(self.halves, problem.parts, strict=True)
        calls = (None if part is None else half.plan(part) for half, part in pairs)
        assert problem.spec.parts is not None  # noqa: S101  it was composed by them
        return problem.spec.parts.join(problem, *calls)


def composed(kernels: Iterable[Kernel], specs: Iterable[OpSpec]) -> tuple[Kernel, ...]:
    """Return what a backend's kernels make together for operators that it has no kernel of its own for."""
    own = {(kernel.op, kernel.variant): kernel for kernel in kernels}
    made: list[Kernel] = []
    for spec in specs:
        for variant in dict.fromkeys(variant for _, variant in own) if spec.parts else ():
            halves = [own.get((op, variant)) for op in spec.parts.ops] if spec.parts else []
            found = tuple(half for half in halves if half)
            if (spec.name, variant) not in own and len(found) == len(halves):
                made.append(_compose(spec, found))
    return tuple(made)


def _compose(spec: OpSpec, halves: tuple[Kernel, ...]) -> Kernel:
    def accepts(problem: Problem) -> Verdict:
        answers = (h.takes(part) for h, part in zip(halves, problem.parts, strict=True) if part is not None)
        return next((answer for answer in answers if not answer), YES)

    first = halves[0]
    common = (d for d in spec.parts.dtypes if all(d in h.dtypes for h in halves)) if spec.parts else ()
    return Composed(
        spec.name,
        first.target,
        accepts,
        first.probe,
        first.variant,
        tuple(common),
        deterministic=all(half.deterministic for half in halves),
        graph_safe=all(half.graph_safe for half in halves),
        halves=halves,
    )


def _imported(target: str) -> Any:
    """Return whatever a plugin wrote; verified before use."""
    module, _, attribute = target.partition(":")
    try:
        with preserved():  # a toolkit may come with it
            return getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        raise PluginError(f"kernel target {target!r}: {error}") from error


@dataclass(frozen=True)
class Backend:
    """A toolkit and its kernels.

    Attributes
    ----------
    name : str
        What a user writes in ``backend="name"``.
    probe : callable
        ``probe() -> Verdict`` answers for the machine: toolkit, version, device. It never raises.
    kernels : sequence of Kernel
        The whole backend at a glance.
    api : int
        The ``nxcore.plugin.API_VERSION`` that the plugin was written for.
    toolkit : callable, optional
        ``toolkit() -> Mapping``: name -> version of what its kernels are made with and pip doesn't know,
        such as a compiler. Where one changes, the kernels are verified anew.
    on_request : str
        Why it takes part only where it is asked for by name, such as compiling for seconds; empty if it
        always does.
    """

    name: str
    probe: Callable[[], Verdict]
    kernels: Sequence[Kernel] = field(default=())
    api: int = 0
    on_request: str = ""
    toolkit: Callable[[], Mapping[str, str]] | None = None

    def label(self, kernel: Kernel) -> str:
        """Return what tables call this kernel: the backend's name and the kernel's variant."""
        return f"{self.name}-{kernel.variant}" if kernel.variant else self.name


@dataclass(frozen=True, slots=True)
class Check:
    """One line of ``nxcore doctor``.

    Attributes
    ----------
    name : str
        What was looked at.
    ok : bool
        Whether it is as it should be.
    detail : str
        What was found.
    fix : str
        What to type if it isn't as it should be.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the line as plain data."""
        return asdict(self)
