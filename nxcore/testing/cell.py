"""Cell: one kernel in one dtype, possibly on one sample; and the exceptions by which a rule reports."""

# ruff: noqa: N818  an outcome of a rule, raised to end it, is named as the outcome

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nxcore.errors import VerificationError
from nxcore.registry.discovery import discover
from nxcore.registry.registry import Registry
from nxcore.settings import Settings
from nxcore.spec.device import synchronize
from nxcore.spec.exits import RAISED, blamed
from nxcore.spec.kernel import Backend, Code, Kernel, Verdict
from nxcore.spec.precision import class_of, coarser, precision_class
from nxcore.spec.problem import Problem, leaves
from nxcore.spec.sample import EXACT, Sample
from nxcore.spec.spec import OpSpec
from nxcore.testing.memory import in_form, poisoned
from nxcore.trust.state import UNCHANGED, State
from nxcore.trust.truth import Agreement, Truth, without_out

LARGE = 1e30
"""Numbers from here on aren't ordinary: their products may not be finite."""


class Broken(VerificationError):
    """A kernel broke a rule.

    Attributes
    ----------
    rule : str
        Name of the rule.
    message : str
        The expected and the actual result.

    Examples
    --------
    >>> print(nxcore.testing.Broken("agrees_with_float64", "relative error 0.1"))
    agrees_with_float64: relative error 0.1
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule, self.message = rule, message


class Declined(Exception):
    """The kernel refused the call, or doesn't claim the property that the rule is about.

    Attributes
    ----------
    code : Code
        The code of the refusal.
    reason : str
        The kernel's own reason, or the missing claim.

    Examples
    --------
    >>> nxcore.testing.Declined("needs float32, got int64").code
    <Code.CLAIM: 'claim'>
    """

    def __init__(self, reason: str, code: Code = Code.CLAIM) -> None:
        super().__init__(reason)
        self.reason, self.code = reason, code


class Inapplicable(Exception):
    """A rule doesn't apply here: a device or parameter is missing, or there is nothing to run.

    Attributes
    ----------
    reason : str
        Why it doesn't apply.

    Examples
    --------
    >>> nxcore.testing.Inapplicable("no CUDA device").reason
    'no CUDA device'
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Cell:
    """One kernel in one dtype, and a sample if the rule is about one.

    Attributes
    ----------
    registry : Registry
        The registry of the kernel.
    backend : Backend
    kernel : Kernel
    dtype : torch.dtype
    sample : Sample, optional
        None if the rule chooses its own.
    fixed : torch.device, optional
        The device. By default the one on which the kernel takes a smoke sample, CUDA first.

    Examples
    --------
    >>> registry = nxcore.Session().registry
    >>> backend = registry.backend("torch")
    >>> nxcore.testing.Cell(registry, backend, backend.kernels[0], torch.float32).type
    'float32'
    """

    registry: Registry
    backend: Backend
    kernel: Kernel
    dtype: torch.dtype
    sample: Sample | None = None
    fixed: torch.device | None = None

    @property
    def spec(self) -> OpSpec:
        """The operator."""
        return self.registry.spec(self.kernel.op)

    @property
    def label(self) -> str:
        """The kernel's label in tables."""
        return self.backend.label(self.kernel)

    @property
    def type(self) -> str:
        """Name of the dtype."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def name(self) -> str:
        """A unique name: operator, kernel, dtype and sample."""
        parts = (self.kernel.op, self.label, self.type, *([self.sample.name] if self.sample else ()))
        return "-".join(parts)

    @property
    def machine(self) -> Verdict:
        """Whether this machine can run it."""
        return self.registry.probe(self.backend, self.kernel)

    @property
    def device(self) -> torch.device:
        """The device that it runs on."""
        return self.fixed or _home(self.registry, self.kernel, self.dtype)

    @property
    def leads(self) -> bool:
        """Whether rules that are checked once for each kernel use this dtype: float32, else the first."""
        dtypes = self.kernel.dtypes
        return self.dtype is (torch.float32 if torch.float32 in dtypes else dtypes[0])

    @property
    def exact(self) -> bool:
        """Whether nothing rounds on its sample."""
        return self.sample is not None and EXACT in self.sample.tags

    def on(self, sample: Sample) -> Cell:
        """Return the same kernel and dtype on ``sample``."""
        return replace(self, sample=sample)

    def build(self) -> tuple[Any, ...]:
        """Return the sample's arguments: equal numbers at every call, in new memory."""
        if self.sample is None:
            raise ValueError(f"{self.name} has no sample")
        return self.sample.build(self.spec, self.device, self.dtype)

    def problem(self) -> Problem:
        """Return a new problem of the sample's call, without building its data."""
        if self.sample is None:
            raise ValueError(f"{self.name} has no sample")
        return replace(_described(self.registry, self.kernel.op, self.sample.name, self.dtype, self.device))

    def ask(self, problem: Problem) -> Verdict:
        """Return the verdict of ``accepts``. A refusal must have a reason.

        Raises
        ------
        Broken
            ``raises_nothing`` or ``gives_reasons``.
        """
        try:
            verdict = self.kernel.takes(problem)
        except RAISED as error:
            raise Broken("raises_nothing", f"accepts raised {_brief(error)} on {problem}") from error
        if not isinstance(verdict, Verdict):
            raise Broken("gives_reasons", f"accepts must return a Verdict, got {type(verdict).__name__}")
        if not verdict and not verdict.reason:
            raise Broken("gives_reasons", f"{problem} was refused without a reason")
        return verdict

    def plan(
        self, args: tuple[Any, ...], *, aliased: bool = False, waits: bool = True, anew: bool = False
    ) -> Callable[..., Any]:
        """Return the planned kernel for ``args``; ``anew``: a new plan, else one shared by all rules.

        Plans are shared because some are compiled. The plan runs in ``state``. If it ``waits``, a call
        returns when the device is done, so that errors of the device are raised there.

        Raises
        ------
        Declined
            If the kernel refuses the call.
        Broken
            ``raises_nothing`` or ``gives_reasons``.
        """
        planned = self.planned(args, aliased=aliased, anew=anew)
        return functools.partial(self._run, planned, waits)

    def planned(
        self, args: tuple[Any, ...], *, aliased: bool = False, anew: bool = False
    ) -> Callable[..., Any]:
        """Return the plan of the kernel's own planner for ``args``; see ``plan``."""
        problem = Problem.of(self.spec, args, aliased=aliased)
        verdict = self.ask(problem)
        if not verdict and problem.idle:
            raise Inapplicable(problem.idle)
        if not verdict:
            raise Declined(verdict.reason, verdict.code)
        before = State.own(self.device)
        try:
            planned = (self.kernel.plan if anew else functools.partial(_planned, self.kernel))(problem)
        except RAISED as error:
            raise Broken("raises_nothing", f"its planner raised {_brief(error)} on {problem}") from error
        if why := before.left(self.device):
            raise Broken("leaves_the_process_alone", f"{UNCHANGED} by its planner: {why}")
        return planned

    @contextlib.contextmanager
    def state(self) -> Iterator[None]:
        """Enter the state of a rule's calls: ``no_grad``, and new memory filled with NaN."""
        with torch.no_grad(), poisoned(warn_only=not self.kernel.deterministic):
            yield

    def _run(self, planned: Callable[..., Any], waits: bool, *args: Any) -> Any:
        try:
            with self.state():
                before = State.own(self.device)
                result = planned(*args)
                why = before.left(self.device)
            if waits:
                synchronize(self.device)
        except RAISED as error:
            raise Broken("raises_nothing", f"raised {_brief(error)}") from error
        if why:
            raise Broken("leaves_the_process_alone", f"{UNCHANGED}: {why}")
        return result

    def taken(self) -> list[Cell]:
        """Return this cell on every smoke sample that the kernel takes."""
        return [self.on(s) for s in _taken(self.registry, self.kernel, self.dtype, self.device)]

    def first(self) -> Cell:
        """Return this cell on its own sample, or on the first smoke sample that the kernel takes."""
        return self._chosen(lambda samples: samples[0])

    def smallest(self) -> Cell:
        """Return this cell on its own sample, or on its smallest smoke sample of ordinary numbers."""
        return self._chosen(lambda samples: min(samples, key=self._size))

    def _chosen(self, choose: Callable[[Sequence[Sample]], Sample]) -> Cell:
        if self.sample is not None:
            return self
        if not (found := [cell.sample for cell in self.taken() if cell.sample]):
            raise Inapplicable("the kernel takes no smoke sample")
        return self.on(choose(found))

    def _size(self, sample: Sample) -> tuple[bool, int]:
        tensors = list(leaves(self.on(sample).build()))
        # NaN may hide a wrong result, and results of large numbers may not be finite.
        odd = any(not bool((t.double().abs() < LARGE).all()) for t in tensors)
        return odd, sum(t.numel() for t in tensors)

    def inputs(self, args: tuple[Any, ...]) -> list[Tensor]:
        """Return the tensors in ``args`` that are read, which are all but ``out``."""
        return list(leaves(without_out(self.spec, args)))

    def excused(self, found: Agreement) -> bool:
        """Return whether a disagreement is within the precision class that the kernel claims in float32."""
        coarse = self.dtype is torch.float32 and self.kernel.precision != "ieee32"
        return coarse and not coarser(precision_class(found.error), self.kernel.precision)

    def judge(self, rule: str, truth: Truth, result: Any, *, laid_out: bool = True, about: str = "") -> float:
        """Check a result against the reference and return its error.

        Raises
        ------
        Broken
            Of rule ``rule``, or of ``has_torchs_layout``.
        """
        with torch.no_grad():
            found = truth.judge(result, laid_out=laid_out)
        if found.ok or self.excused(found):
            return found.error
        named = rule if in_form(truth, result, laid_out=laid_out) else "has_torchs_layout"
        raise Broken(named, f"{about}: {found.reason}" if about else found.reason)


def modest(spec: OpSpec, kernel: Kernel) -> tuple[Sample, ...]:
    """Return a kernel's samples of little time and memory: no real workloads, no huge samples."""
    return tuple(s for s in spec.samples if not s.tags & {"bench", "huge"} and meant(kernel, s))


def meant(kernel: Kernel, sample: Sample) -> bool:
    """Return whether a sample is for a kernel: it needs no finer precision class than the kernel's."""
    given = sample.kwargs.get("precision")
    return given is None or not coarser(kernel.precision, class_of(given))


def huge(spec: OpSpec) -> tuple[Sample, ...]:
    """Return the samples of gigabytes, which need a GPU's memory."""
    return spec.tagged("huge")


def installed(*, strict: bool = False) -> Registry:
    """Return the installed backends that the environment allows; a broken plugin raises if ``strict``."""
    settings = Settings.from_environment()
    return discover(allow=settings.backends, disable=settings.disable, strict=strict or settings.strict)


def cells(registry: Registry, *, backends: Sequence[str] = (), ops: Sequence[str] = ()) -> Iterator[Cell]:
    """Yield a cell for each kernel and dtype, without torch's own kernels, which are the reference.

    Parameters
    ----------
    registry : Registry
    backends : sequence of str
        Only these backends; all if empty.
    ops : sequence of str
        Only these operators; all if empty.

    Raises
    ------
    UnknownBackendError, BackendUnavailableError, UnknownOperatorError
        If a name is unknown. The message suggests the nearest.
    """
    wanted = [registry.backend(name) for name in backends] or [
        b for name, b in registry.backends.items() if name != "torch"
    ]
    names = {registry.spec(name).name for name in ops} or set(registry.ops)
    for backend in wanted:
        for kernel in backend.kernels:
            if kernel.op in names:
                for dtype in kernel.dtypes:
                    yield Cell(registry, backend, kernel, dtype)


@functools.cache
def _planned(kernel: Kernel, problem: Problem) -> Any:
    return kernel.plan(problem)


@functools.cache
def _described(registry: Registry, op: str, name: str, dtype: torch.dtype, device: torch.device) -> Problem:
    spec = registry.spec(op)
    sample = next(s for s in spec.samples if s.name == name)
    return Problem.of(spec, sample.build(spec, device, dtype))


@functools.cache
def _home(registry: Registry, kernel: Kernel, dtype: torch.dtype) -> torch.device:
    """Return the device on which a kernel takes a smoke sample, CUDA first."""
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    return cuda if torch.cuda.is_available() and _taken(registry, kernel, dtype, cuda) else cpu


@functools.cache
def _taken(
    registry: Registry, kernel: Kernel, dtype: torch.dtype, device: torch.device
) -> tuple[Sample, ...]:
    """Return the smoke samples that a kernel takes on a device, without those whose result is a view."""
    spec, found = registry.spec(kernel.op), []
    for sample in spec.tagged("smoke"):
        problem = replace(_described(registry, spec.name, sample.name, dtype, device))
        try:
            if meant(kernel, sample) and kernel.takes(problem) and not problem.view:
                found.append(sample)
        except RAISED as error:
            blamed(error)  # a rule reports it
    return tuple(found)


def _brief(error: BaseException) -> str:
    error = blamed(error)
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"
