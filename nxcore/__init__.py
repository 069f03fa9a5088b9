"""nxcore: a registry of compute kernels for torch tensors.

Every call is served by the fastest kernel that agreed with a float64 reference on this machine, by
torch's own where nothing is measurably faster, and ``explain`` says why.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nxcore import context

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from torch import Tensor
    from torch.nn import Module

    from nxcore import errors, ops
    from nxcore.call.operator import Operator
    from nxcore.choose.explanation import Explanation
    from nxcore.nn.swap import Swap
    from nxcore.observe.profiling import Profile
    from nxcore.offline.survey import Status
    from nxcore.registry.registry import BackendStatus
    from nxcore.session import Session

__version__ = "0.1.0"

__all__ = [
    "Session",
    "__version__",
    "accelerate",
    "backends",
    "distributed",
    "errors",
    "explain",
    "graphed",
    "nas",
    "nn",
    "op",
    "ops",
    "policy",
    "profile",
    "profile_op",
    "record",
    "restore",
    "status",
    "use",
]


def accelerate(model: Module) -> Swap:
    """Have nxcore's operators serve the modules of ``model`` that they can.

    Such a module becomes an instance of the class of the same name in ``nxcore.nn``. It stays the same
    object, with its parameters, hooks and names in a ``state_dict``, in every model that it is part of.

    Parameters
    ----------
    model : torch.nn.Module
        Any; itself included. Done twice, nothing more happens.

    Returns
    -------
    Swap
        ``replaced``: name -> class; ``left``: name -> reason, of every module that holds no other.
    """
    from nxcore.nn import swap

    return swap.accelerate(model)


def backends() -> dict[str, BackendStatus]:
    """Return name -> status of every backend: ready, unavailable, failed or disabled, and why.

    Returns
    -------
    dict of str to BackendStatus
        With ``status``, ``reason``, ``hint``, ``source`` and ``operators``.
    """
    return _session().backends()


def explain(
    name: str, *args: Any, backend: str | None = None, decide: bool = True, **kwargs: Any
) -> Explanation:
    """Return who would run a call of the operator ``name`` with these arguments, and why.

    Parameters
    ----------
    name : str
        The operator.
    *args, **kwargs
        The call's arguments.
    backend : str, optional
        As in ``op``.
    decide : bool
        Under the policies ``measure`` and ``online``, measure a problem that is new, or that calls take turns
        on, now. If not, tell what serves it as things are.

    Returns
    -------
    Explanation
        ``str()`` of it is a short text, ``to_dict()`` plain data.

    Raises
    ------
    UnknownOperatorError, UnknownBackendError, BackendUnavailableError, UnsupportedProblemError
        As the call itself would.
    InvalidInputError
        If the arguments break the operator's contract.
    """
    return _session().explain(name, *args, backend=backend, decide=decide, **kwargs)


def graphed(
    fn: Callable[..., Any] | None = None,
    *,
    backward: bool = False,
    clone: bool = False,
    warmup: int = 3,
    limit: int = 16,
    state: Iterable[Tensor] = (),
) -> Any:
    """Return a function or module as CUDA graphs: captured at the first call of a signature, then replayed.

    A replay costs the host one launch, however many kernels it holds, and each problem in it is served by the
    winner of the device's time. A signature is shapes, strides, dtypes, device and values of what isn't a
    tensor, with all that is in force around the call; a module's parameters may change in place. Before a
    capture ``fn`` is run ``warmup`` times on the arguments given, with all that it does, and what would be
    learnt from calls is measured; a module's buffers, and ``state``, are then put back as they were.
    Arguments are copied into memory of the graph's own. On the CPU, and while another graph is captured,
    ``fn`` itself is run.

    Parameters
    ----------
    fn : callable, optional
        Takes and returns tensors, nested as you like, with hashable values beside them. It must not wait for
        the device. It may be a whole step of training, with ``backward`` and an optimizer, that returns what
        is detached. Without it, a decorator is returned.
    backward : bool
        Let gradients through: the backward pass is a graph too (``torch.cuda.make_graphed_callables``).
    clone : bool
        Return copies. Otherwise a result lies in memory that the next call of its signature writes into.
    warmup : int
        Calls before the capture; at least one.
    limit : int
        Graphs to hold; of more, the one that was called longest ago is forgotten.
    state : iterable of Tensor
        What ``fn`` holds and writes into, and warm-ups must leave alone: running statistics, for example.

    Returns
    -------
    Graphed
        A callable; ``len()`` counts its graphs, ``clear()`` forgets them.

    Raises
    ------
    InvalidInputError
        If ``fn``, ``warmup`` or ``limit`` is none.
    CaptureError
        At a call: the argument, the result or the line that can't be captured.
    """
    from nxcore.graphs import graphed as capture

    return capture.graphed(fn, backward=backward, clone=clone, warmup=warmup, limit=limit, state=state)


def op(name: str, *, backend: str | None = None) -> Operator:
    """Return the operator ``name``, callable with its own signature; the same object at every call.

    Parameters
    ----------
    name : str
        See ``nxcore ops``, or the attributes of ``nxcore.ops``.
    backend : str, optional
        Strict: this backend serves every call, or an error says why it can't. By default each call
        goes to the fastest kernel that is verified for it.

    Returns
    -------
    Operator
        Its docstring gives shapes, dtypes and errors.

    Raises
    ------
    UnknownOperatorError, UnknownBackendError
        Naming the nearest.
    """
    return _session().op(name, backend=backend)


def policy(name: str) -> AbstractContextManager[None]:
    """Decide by another policy in the calls of a ``with`` block of this thread or task.

    Parameters
    ----------
    name : str
        ``online``, the default: torch serves a new problem, then its calls take turns, each timed in place,
        until it is clear which kernel is best. ``measure``: all is measured at its first call. ``estimate``:
        nothing is measured; torch serves what isn't known. ``frozen``: only what the lock holds; see
        ``nxcore wisdom lock``.

    Raises
    ------
    InvalidInputError
        Naming the nearest.
    """
    return _session().policy(name)


def profile() -> AbstractContextManager[Profile]:
    """Tell what the calls of a ``with`` block took, by operator and by who served them.

    Calls of this thread or task, and their gradients where the backward pass runs within the block. Those
    that only torch serves are in the trace alone. What a new problem's first call measures isn't counted.

    Returns
    -------
    context manager
        Gives a ``Profile``: printed, a table of count, mean, total, the device's time and peak memory; with
        ``rows``, ``to_dict()`` and ``export_chrome_trace(path)``. Regions of one's own: ``profile_op``.

    Notes
    -----
    It is torch's profiler, with a region around each call: while it runs, all takes longer.
    """
    return _session().profile()


def record(path: str | os.PathLike[str]) -> AbstractContextManager[None]:
    """Write the distinct problems that the calls of a ``with`` block meet, for ``nxcore tune --from-trace``.

    Calls of this thread or task, and their gradients where the backward pass runs within the block; one that
    torch's autograd computes by itself counts as often as its forward call. Calls that only torch serves
    aren't problems to tune. Within another recording, this one alone takes notes. ``nxcore explain
    --from-trace`` shows what serves them, and what a step saves.

    Parameters
    ----------
    path : str or path
        The file, written anew when the block ends: one JSON object a line, operator, shapes, strides, dtypes,
        static parameters, and how often it was met.

    Raises
    ------
    OSError
        If it can't be written; before any call.
    """
    return _session().record(path)


def restore(model: Module) -> Swap:
    """Undo ``accelerate``: the modules that it replaced are torch's again.

    Parameters
    ----------
    model : torch.nn.Module
        One that ``accelerate`` was given, or a copy of it.

    Returns
    -------
    Swap
        ``replaced``: name -> class; ``left``: name -> reason, where another has changed the class since.
    """
    from nxcore.nn import swap

    return swap.restore(model)


def status(model: Module, *args: Any, **kwargs: Any) -> Status:
    """Return what an accelerated model does: problems, kernels chosen, what is being learnt, what to do next.

    Parameters
    ----------
    model : torch.nn.Module
        Any; ``accelerate`` has nxcore's operators serve its modules.
    *args, **kwargs
        What the model is called with. Given these, one step is run, forward and, where gradients are on,
        backward: its calls are counted, so that what a step saves can be told. No ``.grad`` is written;
        buffers and random numbers are as before. Without, all problems are told that this process has met.

    Returns
    -------
    Status
        ``str()`` of it is a table, ``to_dict()`` plain data; ``rows``, ``saved_ms``, ``next``.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.MaxPool2d(2))
    >>> nxcore.accelerate(model)
    >>> print(nxcore.status(model, torch.randn(8, 16, 32, 32)))
    """
    from nxcore.offline import survey

    return survey.of_model(model, *args, **kwargs)


def use(*backends: str) -> AbstractContextManager[None]:
    """Prefer some backends, in order, in the calls of a ``with`` block of this thread or task.

    A call goes to the first of them that is verified for it; where none is, it is chosen as always.

    Parameters
    ----------
    *backends : str
        Names, first choice first. ``use("torch")`` keeps torch's own.

    Raises
    ------
    UnknownBackendError
        Naming the nearest.
    """
    return _session().use(*backends)


def _session() -> Session:
    from nxcore import session

    return session.default()


context.serve_by(_session)


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): ``nxcore --help`` needs no torch."""
    if name == "Session":
        from nxcore.session import Session

        return Session
    if name == "profile_op":
        from nxcore.observe.profiling import profile_op

        return profile_op
    if name in ("distributed", "errors", "nas", "nn", "ops"):
        return importlib.import_module(f"nxcore.{name}")
    raise AttributeError(f"module 'nxcore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
