"""Operators and backends by name; rejects duplicates and kernels of unknown operators, naming both sides."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from nxcore.errors import (
    BackendUnavailableError,
    PluginError,
    UnknownBackendError,
    UnknownOperatorError,
)
from nxcore.plugin import API_VERSION
from nxcore.registry.waiting import waiting
from nxcore.spec.composed import composed
from nxcore.spec.exits import RAISED, blamed
from nxcore.spec.kernel import Backend, Check, Code, Kernel, Verdict
from nxcore.spec.shortage import shortage
from nxcore.spec.spec import OpSpec

Status = Literal["ready", "unavailable", "failed", "disabled"]


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a plugin.

    Attributes
    ----------
    plugin : str
        The name of the entry point.
    distribution : str
        Name and version of the distribution, as ``"nxcore-triton 0.1.0"``.
    file : str
        The file of the module, once it is imported.
    """

    plugin: str
    distribution: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.plugin!r} of {self.distribution}"


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """The status of a backend on this machine.

    Attributes
    ----------
    name : str
        The backend's name, or the entry point's where the plugin failed to load.
    status : str
        ``ready``, ``unavailable`` (it can't run on this machine), ``failed`` (the plugin is broken) or
        ``disabled`` (by ``NXCORE_BACKENDS`` or ``NXCORE_DISABLE``).
    reason : str
        The reason, if it isn't simply ready.
    hint : str
        The command or setting that changes it.
    source : Source
        The origin of its plugin.
    operators : tuple of str
        The operators with kernels of this backend.
    simulated : bool
        Ready, but run by an interpreter: verified, never timed or chosen.
    """

    name: str
    status: Status
    reason: str
    hint: str
    source: Source
    operators: tuple[str, ...] = ()
    simulated: bool = False

    @property
    def error(self) -> str:
        """The last line of the reason: the error, where the reason is a traceback."""
        return self.reason.strip().rpartition("\n")[2]

    def to_dict(self) -> dict[str, Any]:
        """Return the status as plain data."""
        return asdict(self)


def printed(backend: Backend, specs: Iterable[OpSpec]) -> tuple[Kernel, ...]:
    """Return the kernels that a backend's printers give for those of ``specs`` that have an expression.

    >>> from nxcore.plugin import YES
    >>> mine = Backend("mine", lambda: YES, printers=[Kernel("pointwise", "mine.pointwise:plan")])
    >>> [kernel.op for kernel in printed(mine, [nxcore.pointwise("x + 1", name="shifted").spec])]
    ['shifted']
    """
    made = [spec for spec in specs if spec.expression is not None]
    return tuple(replace(printer, op=spec.name) for printer in backend.printers for spec in made)


class Registry:
    """All operators and backends, and the status of plugins that failed.

    Attributes
    ----------
    ops : dict
        Name -> operator.
    latent : dict
        Name -> a function that adds the operator, and its backward operator, when it is first requested.
    """

    def __init__(self) -> None:
        self.ops: dict[str, OpSpec] = {}
        self.backends: dict[str, Backend] = {}
        self.sources: dict[str, Source] = {}
        self.refused: list[BackendStatus] = []
        self.checks: list[Check] = []
        self.op_sources: dict[str, Source] = {}
        self.latent: dict[str, Callable[[], object]] = {}
        self._kernels: dict[str, tuple[tuple[Backend, Kernel], ...]] = {}
        self._verdicts: dict[str, Verdict] = {}

    def add_ops(self, specs: Iterable[OpSpec], source: Source) -> None:
        """Add the operators of a plugin: all of them, or none.

        Raises
        ------
        PluginError
            If one isn't an ``OpSpec``, or there is one of its name.
        """
        staged: dict[str, OpSpec] = {}
        for spec in specs:
            if not isinstance(spec, OpSpec):
                raise PluginError(f"nxcore_ops must yield OpSpec, got {type(spec).__name__}")
            if spec.name in self.ops or spec.name in staged:
                owner = self.op_sources.get(spec.name, source)
                raise PluginError(f"operator {spec.name!r} comes from {source} and from {owner}; remove one")
            staged[spec.name] = spec
        self.ops.update(staged)
        self.op_sources.update(dict.fromkeys(staged, source))

    def add_backend(self, backend: Backend, source: Source) -> None:
        """Add a backend, with the kernels composed of others: see ``OpSpec.parts``.

        Raises
        ------
        PluginError
            If it isn't a ``Backend`` of this contract's version, its name is taken, two of its kernels have
            the same label, or a kernel is for an unknown operator.
        """
        if not isinstance(backend, Backend):
            raise PluginError(f"nxcore_backend must return a Backend, got {type(backend).__name__}")
        if backend.api != API_VERSION:
            raise PluginError(
                f"backend {backend.name!r} was written for version {backend.api} of the plugin contract, "
                f"this core has version {API_VERSION}"
            )
        if backend.name in self.backends:
            owner = self.sources[backend.name]
            raise PluginError(f"backend {backend.name!r} comes from {source} and from {owner}; remove one")
        unknown = next((k.op for k in backend.kernels if self.known(k.op) is None), None)
        if unknown is not None:
            raise PluginError(str(UnknownOperatorError(unknown, {*self.ops, *self.latent})))
        backend = replace(backend, kernels=(*backend.kernels, *printed(backend, self.ops.values())))
        seen: set[tuple[str, str]] = set()
        for kernel in backend.kernels:
            if (kernel.op, kernel.variant) in seen:
                raise PluginError(f"two kernels of {kernel.op!r} have the label {backend.label(kernel)!r}")
            seen.add((kernel.op, kernel.variant))
        more = composed(backend.kernels, self.ops.values())
        backend = replace(backend, kernels=(*backend.kernels, *more)) if more else backend
        self.backends[backend.name], self.sources[backend.name] = backend, source
        self._kernels.clear()

    def add_kernels(self, name: str, kernels: Iterable[Kernel]) -> None:
        """Add kernels to a backend: those of operators that were made since it was added."""
        backend = self.backends[name]
        self.backends[name] = replace(backend, kernels=(*backend.kernels, *kernels))
        self._kernels.clear()

    def spec(self, name: str) -> OpSpec:
        """Return the operator of that name.

        Raises
        ------
        UnknownOperatorError
            If there is none of that name; the message names the nearest.
        """
        found = self.known(name)
        if found is None:
            raise UnknownOperatorError(name, {*self.ops, *self.latent})
        return found

    def known(self, name: str) -> OpSpec | None:
        """Return the operator of that name; None if there is none. A latent one is added now."""
        if name not in self.ops and name in self.latent:
            self.latent[name]()
        return self.ops.get(name)

    def backend(self, name: str) -> Backend:
        """Return the backend of that name.

        Raises
        ------
        BackendUnavailableError
            If its plugin is broken or was disabled.
        UnknownBackendError
            If there is none of that name; the message names the nearest.
        """
        if name in self.backends:
            return self.backends[name]
        for r in self.refused:
            if r.name == name:
                message = f"backend {name!r} is {r.status}: {r.error} ({r.hint})"
                raise BackendUnavailableError(message, backend=name, reason=r.reason)
        raise UnknownBackendError(name, {*self.backends, *(r.name for r in self.refused)})

    def kernels(self, op: str) -> Iterable[tuple[Backend, Kernel]]:
        """Return every kernel of ``op`` with its backend, torch's own first."""
        if op not in self._kernels:
            owned = ((b, k) for b in self.backends.values() for k in b.kernels)
            self._kernels[op] = tuple((b, k) for b, k in owned if k.op == op)
        return self._kernels[op]

    def probe(self, backend: Backend, kernel: Kernel | None = None) -> Verdict:
        """Return the probe's verdict for a backend, or for one kernel of it; cached."""
        label = backend.name if kernel is None else f"{backend.label(kernel)}:{kernel.op}"
        if label not in self._verdicts:
            ask = backend.probe if kernel is None else kernel.probe
            with self.waiting(backend, "the probe"):
                verdict = _asked(ask) if ask else Verdict(True)
            if verdict.code is not Code.MEMORY:  # a shortage passes
                self._verdicts[label] = verdict
        else:
            verdict = self._verdicts[label]
        if kernel is not None and verdict:
            machine = self.probe(backend)
            return machine if not machine or machine.simulated else verdict
        return verdict

    def waiting(self, backend: Backend, what: str) -> contextlib.AbstractContextManager[None]:
        """Have a line say that ``what`` of a backend's plugin is waited for, if it takes long."""
        return waiting(self.sources[backend.name], what)

    def statuses(self) -> dict[str, BackendStatus]:
        """Return name -> status of every backend, failed and disabled ones included."""
        found: dict[str, BackendStatus] = {}
        for name, backend in self.backends.items():
            verdict = self.probe(backend)
            found[name] = BackendStatus(
                name=name,
                status="ready" if verdict else "unavailable",
                reason=verdict.reason
                or (f"only on request: {backend.on_request}" if backend.on_request else ""),
                hint=verdict.hint,
                source=self.sources[name],
                operators=tuple(sorted({k.op for k in backend.kernels})),
                simulated=verdict.simulated,
            )
        for status in self.refused:
            key = status.name if status.name not in found else f"{status.name} ({status.source.distribution})"
            found[key] = status
        return found


def _asked(probe: Any) -> Verdict:
    """Call a probe, which must never raise; an exception counts as unavailable."""
    try:
        verdict = probe()
    except RAISED as raised:
        error = blamed(raised)
        code = Code.MEMORY if shortage(error) else Code.OTHER
        return Verdict(False, code=code, reason=f"its probe raised {type(error).__name__}: {error}")
    if not isinstance(verdict, Verdict):
        return Verdict(False, f"its probe must return a Verdict, got {type(verdict).__name__}")
    return verdict
