"""What is in force around a call: what ``nxcore.use``, ``policy``, ``record`` and ``profile`` put there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from nxcore.spec.problem import Problem


class Observer(Protocol):
    """Watches the calls of a block; see ``nxcore.record`` and ``nxcore.profile``.

    Attributes
    ----------
    sees_both_ways : bool
        Whether it is told of a call's gradient too, which torch's autograd may compute.
    """

    sees_both_ways: bool

    def observing(self, problem: Problem, label: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return what is to serve in place of ``call``, a plan of the kernel ``label`` for ``problem``."""

    def paired(self, forward: Problem, backward: Problem, *, guessed: bool = False) -> None:
        """Hear that ``backward`` is the gradient of ``forward``, where it ``sees_both_ways``."""


class Preference(NamedTuple):
    """What is in force around a call.

    Attributes
    ----------
    backends : tuple of str
        Those that ``nxcore.use`` put in force, first choice first.
    policy : str
        What ``nxcore.policy`` put in force; empty for the session's own.
    observers : tuple of Observer
        What ``nxcore.record`` and ``nxcore.profile`` put around calls.
    at_once : bool
        Measure what is new now, where it would be learnt from calls.
    as_is : bool
        Neither measure nor learn: tell who would serve by what is known.
    """

    backends: tuple[str, ...] = ()
    policy: str = ""
    observers: tuple[Observer, ...] = ()
    at_once: bool = False
    as_is: bool = False


PREFERENCE: ContextVar[Preference] = ContextVar("nxcore_preference", default=Preference())  # noqa: B039  a tuple


@contextlib.contextmanager
def in_force(**changes: Any) -> Iterator[None]:
    """Put ``changes`` of the preference in force in this block."""
    token = PREFERENCE.set(PREFERENCE.get()._replace(**changes))
    try:
        yield
    finally:
        PREFERENCE.reset(token)


class Asked(NamedTuple):
    """What a node of a compiler's graph was asked for where it was traced; None leaves it to the call.

    Attributes
    ----------
    backend : str, optional
        The only one that may serve it.
    prefer : sequence of str, optional
        Those of ``nxcore.use``.
    policy : str, optional
        That of ``nxcore.policy``.
    """

    backend: str | None = None
    prefer: Sequence[str] | None = None
    policy: str | None = None


class Traced:
    """What the blocks around a call that dynamo traces put in force; dynamo can't trace a ``ContextVar``.

    Dynamo follows its attributes as it does any object's: outside of a trace they are None.
    """

    def __init__(self) -> None:
        self.prefer: tuple[str, ...] | None = None
        self.policy: str | None = None


TRACED = Traced()


def _traced() -> bool:
    import torch  # not at the top: ``import nxcore`` loads this module, and no torch

    return torch.compiler.is_dynamo_compiling()


class Preferring(contextlib.ContextDecorator):
    """A ``with`` block whose calls prefer some backends, or decide by another policy; or both.

    Parameters
    ----------
    prefer : tuple of str, optional
        Names of backends, first choice first; None leaves them as they are.
    policy : str, optional
        Likewise.
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

    def __exit__(self, *error: object) -> None:
        if _traced():
            TRACED.prefer, TRACED.policy = self._before
        else:
            PREFERENCE.reset(self._token)


def asked(backend: str | None) -> Asked:
    """Return what a node that is traced now is asked for."""
    if _traced():
        return Asked(backend, TRACED.prefer, TRACED.policy)
    now = PREFERENCE.get()  # an exporter's trace is a call like any other
    return Asked(backend, now.backends or None, now.policy or None)


class KernelWarning(UserWarning):
    """A kernel failed at run time; another one took the call, and takes all like it from now on."""


def capturing(problem: Problem) -> bool:
    """Tell whether a CUDA graph is being captured around this call."""
    import torch  # as in ``_traced``

    return problem.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class Operators(Protocol):
    """Where an operator is found by its name: a session."""

    registry: Any

    def op(self, name: str, *, backend: str | None = None) -> Any:
        """Return the operator ``name``."""


_sources: list[Callable[[], Operators]] = []


def serve_by(source: Callable[[], Operators]) -> None:
    """Have ``default`` return what ``source`` does; ``nxcore`` calls this once, when it is imported.

    What lies below the session finds the default one so, and imports nothing that lies above it: where an
    operator is unpickled, or a compiled graph runs, there may be no session yet.
    """
    _sources[:] = [source]


def default() -> Operators:
    """Return the default session, made at first use."""
    return _sources[0]()
