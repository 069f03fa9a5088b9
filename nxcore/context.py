"""The context of a call, as ``nxcore.use``, ``policy``, ``record`` and ``profile`` set it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, Token
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from nxcore.spec.planning import PLANNING, planning

if TYPE_CHECKING:
    from nxcore.spec.problem import Problem


class Observer(Protocol):
    """Observes the calls of a ``with`` block; see ``nxcore.record`` and ``nxcore.profile``.

    Attributes
    ----------
    sees_both_ways : bool
        Whether ``paired`` is called for a call's gradient too, which torch's autograd may compute.
    """

    sees_both_ways: bool

    def observing(self, problem: Problem, label: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of ``call``, a plan of the kernel ``label`` for ``problem``."""

    def paired(self, forward: Problem, backward: Problem, *, guessed: bool = False) -> None:
        """Note that ``backward`` is the gradient of ``forward``; called where it ``sees_both_ways``."""


class Purpose(StrEnum):
    """The purpose of a call: how a problem is met that is new to the process.

    It is a string, since each call's key is hashed with it.
    """

    RUN = "run"
    """The program's own call: the policy says. Nothing sets it."""
    SHOW = "show"
    """Report what is known, and neither measure nor learn: ``explain`` without a decision, ``beside``."""
    DECIDE = "decide"
    """Measure a new problem in this call: ``explain``, and a capture that can't come back."""
    CAPTURE = "capture"
    """As ``DECIDE``, or beside the program: a capture that is tried again at a later call."""
    FIND = "find"
    """As ``CAPTURE``, where a problem that is being measured counts as a kernel's: it is found, no more."""
    WAIT = "wait"
    """Torch serves what is on record or would be measured here: a capture will take the call's place."""


class Preference(NamedTuple):
    """The context of a call.

    Attributes
    ----------
    backends : tuple of str
        The backends of ``nxcore.use``, in order of preference.
    policy : str
        The policy of ``nxcore.policy``; empty for the session's own.
    observers : tuple of Observer
        The observers of ``nxcore.record`` and ``nxcore.profile``.
    purpose : Purpose
        What the calls are for.
    """

    backends: tuple[str, ...] = ()
    policy: str = ""
    observers: tuple[Observer, ...] = ()
    purpose: Purpose = Purpose.RUN


NOTHING = Preference()

PREFERENCE: ContextVar[Preference] = ContextVar("nxcore_preference", default=NOTHING)


LISTENERS: list[Callable[[], None]] = []
"""Called when a preference comes into force, or plans are dropped: what was decided before may not hold."""


def announce() -> None:
    """Call the listeners."""
    for listener in LISTENERS:
        listener()


@contextlib.contextmanager
def in_force(**changes: Any) -> Iterator[None]:
    """Apply ``changes`` to the preference within this block."""
    token = PREFERENCE.set(PREFERENCE.get()._replace(**changes))
    try:
        yield
    finally:
        PREFERENCE.reset(token)


class Requested(NamedTuple):
    """The requests that were in force where a compiler's graph was traced; None leaves them to the call.

    Attributes
    ----------
    backend : str, optional
        The only backend that may serve the call.
    prefer : sequence of str, optional
        The backends of ``nxcore.use``.
    policy : str, optional
        The policy of ``nxcore.policy``.
    """

    backend: str | None = None
    prefer: Sequence[str] | None = None
    policy: str | None = None


class Traced:
    """The context of a call that dynamo traces, since dynamo can't trace a ``ContextVar``.

    Dynamo reads its attributes as those of any object. Outside of a trace they are None.
    """

    def __init__(self) -> None:
        self.prefer: tuple[str, ...] | None = None
        self.policy: str | None = None


TRACED = Traced()


def _traced() -> bool:
    import torch  # not at the top: ``import nxcore`` loads this module, and no torch

    return torch.compiler.is_dynamo_compiling()


class Preferring(contextlib.ContextDecorator):
    """A ``with`` block that sets preferred backends, a policy, or both.

    Parameters
    ----------
    prefer : tuple of str, optional
        Names of backends, in order of preference; None leaves them unchanged.
    policy : str, optional
        The policy; None leaves it unchanged.
    """

    def __init__(self, prefer: tuple[str, ...] | None = None, policy: str | None = None) -> None:
        self.prefer, self.policy = prefer, policy

    def _recreate_cm(self) -> Preferring:  # a decorated function may call itself
        return Preferring(self.prefer, self.policy)

    def __enter__(self) -> None:
        if _traced():
            self._before = TRACED.prefer, TRACED.policy
            if self.prefer is not None:
                TRACED.prefer = self.prefer
            if self.policy is not None:
                TRACED.policy = self.policy
            return
        now = PREFERENCE.get()
        if self.prefer is not None:
            now = now._replace(backends=self.prefer)
        if self.policy is not None:
            now = now._replace(policy=self.policy)
        self._token: Token[Preference] = PREFERENCE.set(now)
        announce()

    def __exit__(self, *error: object) -> None:
        if _traced():
            TRACED.prefer, TRACED.policy = self._before
        else:
            PREFERENCE.reset(self._token)


def requested(backend: str | None) -> Requested:
    """Return what is requested of a node that is traced now."""
    if _traced():
        return Requested(backend, TRACED.prefer, TRACED.policy)
    now = PREFERENCE.get()  # an exporter's trace is a call like any other
    return Requested(backend, now.backends or None, now.policy or None)


class KernelWarning(UserWarning):
    """A kernel failed at run time. Another one serves this and all further calls of the problem."""


def capturing(problem: Problem) -> bool:
    """Return whether the call is being captured in a CUDA graph."""
    import torch  # as in ``_traced``

    return problem.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class _Regime:
    """Which of two choices eager calls take, where captured calls have another."""

    runs = False

    @property
    def captured(self) -> bool:
        """Whether they take that of captured calls, in this thread."""
        return self.runs and not PLANNING.get().eager


REGIME = _Regime()
"""One for all threads: a gradient's kernels are chosen in a thread of autograd's."""


@contextlib.contextmanager
def as_captured() -> Iterator[None]:
    """Have eager calls take the choices of captured ones, so that a run can be compared with a replay.

    Kernels may differ by what torch's settings permit, such as TF32. Blocks must not overlap.
    """
    REGIME.runs = True
    try:
        yield
    finally:
        REGIME.runs = False


def as_eager() -> contextlib.AbstractContextManager[None]:
    """Have this thread's calls be eager ones within a run of ``as_captured``: a verdict counts for all."""
    return planning(eager=True)


class Operators(Protocol):
    """An object that returns operators by name: a session."""

    registry: Any

    def op(self, name: str, *, backend: str | None = None) -> Any:
        """Return the operator ``name``."""


_sources: list[Callable[[], Operators]] = []


def serve_by(source: Callable[[], Operators]) -> None:
    """Set the function that ``default`` calls; ``nxcore`` calls this once, when it is imported.

    Modules below the session get the default session this way and import nothing above them. When an
    operator is unpickled, or a compiled graph runs, there may be no session yet.
    """
    _sources[:] = [source]


def default() -> Operators:
    """Return the default session, created at first use."""
    return _sources[0]()
