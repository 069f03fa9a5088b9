"""Kernel, Backend, Verdict, Refusal, Check: the data that a plugin provides and returns."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import torch

from nxcore.spec.launched import repeating
from nxcore.spec.precision import Precision, coarser
from nxcore.spec.problem import Problem
from nxcore.spec.process import imported


class Code(StrEnum):
    """Why a kernel is rejected, for programs: messages may change, codes do not.

    >>> Code("device")
    <Code.DEVICE: 'device'>
    >>> Code("unknown to this version")
    <Code.OTHER: 'other'>
    """

    MACHINE = "machine"
    """The machine lacks the device or the toolkit."""
    DEVICE = "device"
    """The tensors are on another device."""
    DTYPE = "dtype"
    LAYOUT = "layout"
    """The strides, or elements that share memory."""
    SIZE = "size"
    """The shape, or another number that is too large or too small."""
    ARGUMENT = "argument"
    """An argument that is not a tensor, or an ``out``."""
    CLAIM = "claim"
    """The kernel lacks a claim that the call requires, such as determinism."""
    IDLE = "idle"
    """There is nothing to compute."""
    WRONG = "wrong"
    """It disagrees with the reference; in quarantine where a call or its verification found it."""
    CRASHED = "crashed"
    """In quarantine: it ended the process or the device's context."""
    QUARANTINED = "quarantined"
    """In quarantine: it raised on several problems."""
    RAISED = "raised"
    """It raised in this process."""
    MEMORY = "memory"
    """Memory, disk or stack was short for a moment; it is tried again."""
    UNMEASURED = "unmeasured"
    """It was not timed in this process."""
    UNVERIFIED = "unverified"
    """It accepts no sample on which it could be verified."""
    ON_REQUEST = "on_request"
    """Its backend takes part only where it is requested by name."""
    SIMULATED = "simulated"
    """An interpreter or simulator runs it."""
    UNCOMPILED = "uncompiled"
    """It would have to be compiled, and ``NXCORE_NO_JIT`` is set."""
    PRUNED = "pruned"
    """Other kernels promise more, so it was neither compiled nor timed."""
    POLICY = "policy"
    """The caller's preference or the policy rejects it."""
    BROKEN = "broken"
    """The plugin broke its contract; its ``accepts`` raised, for example."""
    OTHER = "other"
    """The plugin gave no code, or a later version wrote it."""

    @classmethod
    def _missing_(cls, value: object) -> Code:  # noqa: ARG003  a later version's record may hold any code
        return cls.OTHER


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a kernel is rejected for a call.

    Attributes
    ----------
    code : Code
        For programs.
    reason : str
        The message for users: what was expected and what came.
    hint : str
        What to type to change it; empty where nothing would.

    Examples
    --------
    >>> print(Refusal(Code.SIZE, "takes at most 4 rows, got 5"))
    takes at most 4 rows, got 5
    """

    code: Code
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """Yes, or no with a reason. Its truth value is the answer.

    Attributes
    ----------
    ok : bool
        The answer.
    reason : str
        The reason for a no; the condition of a yes that has one.
    hint : str
        What to type to change the answer; empty where nothing would.
    simulated : bool
        A yes from an interpreter or simulator: the kernel is verified, never timed.
    code : Code
        The reason for a no, for programs.

    Examples
    --------
    >>> no("needs float32, got int64", code=Code.DTYPE).refusal
    Refusal(code=<Code.DTYPE: 'dtype'>, reason='needs float32, got int64', hint='')
    >>> bool(YES)
    True
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
        """The no as a ``Refusal``; None for a yes."""
        reason = self.reason or "declined without a reason"
        return None if self.ok else Refusal(self.code, reason, self.hint)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        return asdict(self)


YES = Verdict(True)


def no(reason: str, *, hint: str = "", code: Code = Code.OTHER) -> Verdict:
    """Return a no; the reason names what was expected and what came.

    >>> no("needs CUDA tensors, got cpu", code=Code.DEVICE).ok
    False
    """
    return Verdict(False, reason, hint, code=code)


def simulated(reason: str) -> Verdict:
    """Return a yes from an interpreter or simulator: such a kernel is verified, never timed.

    >>> simulated("TRITON_INTERPRET=1").simulated
    True
    """
    return Verdict(True, reason, simulated=True)


def accept_all(problem: Problem) -> Verdict:  # noqa: ARG001  every accepts has this signature
    """Accept every call.

    >>> accept_all(Problem.of(nxcore.ops.sum.spec, (torch.ones(3), None, False))).ok
    True
    """
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
        ``"module:attribute"`` of a planner, imported on first use: ``plan(problem) -> callable``, which takes
        the operator's arguments, all positional, with defaults filled in.
    accepts : callable
        ``accepts(problem) -> Verdict``: whether it takes the call, by shapes, dtypes, layout and device.
    probe : callable, optional
        ``probe() -> Verdict``: whether it runs on this machine, where it needs more than its backend.
    variant : str
        Distinguishes kernels of one backend, such as ``"cuda"``; empty for a backend's only kernel.
    dtypes : tuple of torch.dtype
        The element types that the kernel claims.
    precision : str
        The precision class of its float32 results, as ``"ieee32"``. It takes no call that needs a finer one.
    deterministic, graph_safe, in_place_safe : bool
        Claims, False by default. The conformance suite checks each one that is made.
    branch : str
        ``"module:attribute"`` of ``branch(problem)``: a hashable value, which differs between problems whose
        code paths cost the host differently. A size between two measured ones is served by their winner only
        if all have the same value. Empty where there is one path.
    uses : tuple of str
        ``"module:attribute"`` of what the planner reaches other than by names: its change makes a new kernel.
    replay : str
        ``"module:attribute"`` of ``replay(kernel, problem, *tile)``, which plans again, with launches that
        call ``nxcore.plugin.note`` instead: the compiled call path repeats them. Empty where Python launches.
    announces : bool
        Whether it calls ``compiling`` before it compiles, or compiles nothing: it can be verified from disk.
    verified_on, verified_for : tuple of str, str
        Samples besides the smoke samples, for code that these don't reach: names, and ``"module:attribute"``
        of ``names(problem)``.

    Examples
    --------
    >>> Kernel("add", "nxcore_numba.add:plan", deterministic=True).dtypes
    (torch.float32,)
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
    uses: tuple[str, ...] = ()
    replay: str = ""
    announces: bool = False
    verified_on: tuple[str, ...] = ()
    verified_for: str = ""

    def takes(self, problem: Problem) -> Verdict:
        """Return the answer of ``accepts``; it is not called where there is nothing to compute."""
        return no(problem.idle, code=Code.IDLE) if problem.idle else self.accepts(problem)

    def suits(self, problem: Problem) -> Verdict:
        """Return whether its precision class is as fine as a call needs."""
        if problem.dtype is not torch.float32 or not coarser(self.precision, problem.precision):
            return YES
        why = f"its precision class is {self.precision}, and the call needs {problem.precision}"
        return no(why, code=Code.CLAIM)

    @functools.cached_property
    def planner(self) -> Callable[..., Callable[..., Any]]:
        """The function that ``target`` names, imported on first use."""
        return imported(self.target)  # type: ignore[no-any-return]  # what a name leads to

    @functools.cached_property
    def plan(self) -> Callable[..., Callable[..., Any]]:
        """The planner; its plans' launches are repeated without the interpreter where that is possible."""
        if not self.replay:
            return self.planner
        return repeating(self.planner, lambda *given: imported(self.replay)(self, *given))

    @functools.cached_property
    def sweep(self) -> Callable[[Problem], Iterable[Any]] | None:
        """The generator of tiles for ``plan(problem, tile)``: ``sweep`` beside ``plan``; None without one."""
        module, _, planner = self.target.partition(":")
        return getattr(importlib.import_module(module), planner.replace("plan", "sweep"), None)

    @functools.cached_property
    def source(self) -> Callable[[Problem], str] | None:
        """The function that prints the code for a problem: ``source`` beside ``plan``; None without one."""
        module, _, planner = self.target.partition(":")
        return getattr(importlib.import_module(module), planner.replace("plan", "source"), None)

    @functools.cached_property
    def branch_of(self) -> Callable[[Problem], Hashable]:
        """The function that ``branch`` names, imported on first use."""
        found: Callable[[Problem], Hashable] = imported(self.branch)
        return found


Row = Accepts | Mapping[str, Any]


def kernels(package: str, rows: Mapping[str, Row], **every: Any) -> tuple[Kernel, ...]:
    """Return a backend's kernels from a table.

    Parameters
    ----------
    package : str
        The package of the planners. An operator's planner is ``plan`` in the module of the operator's name.
    rows : Mapping
        Operator -> ``accepts``, or operator -> a mapping with ``accepts`` and other attributes of ``Kernel``.
        Its ``target`` omits the package, such as ``"softmax_sum:plan"`` for a planner in another file.
    **every
        Attributes of all kernels; a row's own take precedence.

    Returns
    -------
    tuple of Kernel

    Examples
    --------
    >>> made = kernels("nxcore_numba", {"add": accept_all, "sum": accept_all}, deterministic=True)
    >>> [kernel.target for kernel in made]
    ['nxcore_numba.add:plan', 'nxcore_numba.sum:plan']
    """
    made = []
    for op, row in rows.items():
        own = dict(row) if isinstance(row, Mapping) else {"accepts": row}
        target = own.pop("target", f"{op}:plan")
        made.append(Kernel(op, f"{package}.{target}", **(every | own)))
    return tuple(made)


@dataclass(frozen=True)
class Backend:
    """A toolkit and its kernels.

    Attributes
    ----------
    name : str
        The value of ``backend="name"`` in calls.
    probe : callable
        ``probe() -> Verdict``: whether toolkit, version and device fit on this machine. It never raises.
    kernels : sequence of Kernel
        All its kernels.
    api : int
        The ``nxcore.plugin.API_VERSION`` that the plugin was written for.
    toolkit : callable, optional
        ``toolkit() -> Mapping``: name -> version of tools that pip does not install, such as a compiler. A
        kernel is verified again where one changes.
    on_request : str
        Why it takes part only where it is requested by name, such as compile times of seconds; empty if it
        always takes part.
    runtime : sequence of str
        The plugin's modules, or packages of them, that load and launch kernels and decide nothing of what
        they compute. After a change in one, kernels are verified again, and recorded times remain valid.
    ahead : callable, optional
        ``ahead(kernel, problem, capability)`` compiles to disk what a plan of the problem needs on a CUDA
        device of that capability, ``(9, 0)`` for one. It is called in a process without a GPU.
    printers : sequence of Kernel
        Kernels that take every operator made of an expression, whatever its name; their planners read
        ``problem.spec.expression``.

    Examples
    --------
    >>> kernel = Kernel("add", "mine.add:plan", variant="simd")
    >>> Backend("mine", probe=lambda: YES, kernels=[kernel]).label(kernel)
    'mine-simd'
    """

    name: str
    probe: Callable[[], Verdict]
    kernels: Sequence[Kernel] = field(default=())
    api: int = 0
    on_request: str = ""
    toolkit: Callable[[], Mapping[str, str]] | None = None
    runtime: Sequence[str] = ()
    ahead: Callable[[Kernel, Problem, tuple[int, int]], None] | None = None
    printers: Sequence[Kernel] = ()

    def label(self, kernel: Kernel) -> str:
        """Return the kernel's name in tables: the backend's name and the kernel's variant."""
        return f"{self.name}-{kernel.variant}" if kernel.variant else self.name


@dataclass(frozen=True, slots=True)
class Check:
    """One line of ``nxcore doctor``.

    Attributes
    ----------
    name : str
        The subject of the check.
    ok : bool
        Whether the check passed.
    detail : str
        What was found.
    fix : str
        What to type if the check failed.

    Examples
    --------
    >>> Check("compiler", False, "nvcc is missing", fix="pip install nvidia-cuda-nvcc").ok
    False
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the line as plain data."""
        return asdict(self)
