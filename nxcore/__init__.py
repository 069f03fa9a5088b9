"""nxcore: a registry of compute kernels for torch tensors.

The fastest kernel that agreed with a float64 reference on this machine serves each call. Where no kernel is
measurably faster, torch's own serves it. ``explain`` gives the reason.
"""

from __future__ import annotations

import importlib
import typing
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
    from nxcore.offline.models import ModelExplanation
    from nxcore.offline.status import Status
    from nxcore.registry.registry import BackendStatus
    from nxcore.session import Session

    Inputs = tuple[Any, ...] | None

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
    "pointwise",
    "policy",
    "profile",
    "profile_op",
    "record",
    "restore",
    "status",
    "use",
]


def accelerate(
    model: Module,
    prepare: Inputs = None,
    *,
    watch: bool = True,
    graphs: bool = True,
    entrants: Iterable[str] = (),
    dry_run: bool = False,
) -> Swap:
    """Let nxcore's operators serve the supported modules of ``model``, which get classes of ``nxcore.nn``.

    Parameters
    ----------
    model : torch.nn.Module
        Any module. Its modules stay the same objects with the same state.
    prepare : tuple, optional
        Arguments of a call, whose kernels, forward and backward, are compiled and measured now.
    watch : bool
        Compare steps with a few plain ones, and give modules back to torch where those are faster.
    graphs : bool
        On a CUDA device, replay the model's calls in training as two CUDA graphs, if its code allows that.
    entrants : iterable of str
        Modes or backends of ``torch.compile`` to race against replays; InvalidInputError if one is unknown.
    dry_run : bool
        Change and measure nothing: return what would be replaced, with gains by the device's records.

    Returns
    -------
    Swap
        ``replaced``: name -> class; ``left``: name -> reason, of other modules; and ``replays``.

    >>> nxcore.accelerate(torch.nn.Sequential(torch.nn.MaxPool2d(2))).replaced
    {'0': 'MaxPool2d'}
    """
    if dry_run:
        return importlib.import_module("nxcore.offline.gains").dry_run(model, prepare)  # type: ignore[no-any-return]
    from nxcore.nn import swap

    return swap.accelerate(model, prepare, watch=watch, graphs=graphs, entrants=entrants)


def backends() -> dict[str, BackendStatus]:
    """Return name -> ``BackendStatus``: ready, unavailable, failed or disabled, the reason and a hint.

    >>> nxcore.backends()["torch"].status
    'ready'
    """
    return _session().backends()


@typing.overload
def explain(
    name: str | Operator, *args: Any, backend: str | None = ..., decide: bool = ..., **kw: Any
) -> Explanation: ...
@typing.overload
def explain(name: Module, *args: Any, **kwargs: Any) -> ModelExplanation: ...
def explain(name: Any, *args: Any, backend: str | None = None, decide: bool = True, **kwargs: Any) -> Any:
    """Return which kernel would run a call of the operator ``name``, and why; or what serves a model.

    Parameters
    ----------
    name : str, Operator or torch.nn.Module
        The operator, or its name; or a model, whose modules are explained one by one.
    *args, **kwargs
        The call's arguments. A model runs one step on them, as in ``status``, and nothing is measured.
    backend : str, optional
        As in ``op``.
    decide : bool
        Whether a problem that is new or in exploration is measured now, under ``measure`` and ``auto``.

    Returns
    -------
    Explanation or ModelExplanation
        ``str()`` gives a short text or a table, ``to_dict()`` plain data.

    Raises
    ------
    UnknownOperatorError, UnknownBackendError, BackendUnavailableError, UnsupportedProblemError
        As the call itself would, and ``InvalidInputError``.

    Examples
    --------
    >>> with nxcore.policy("frozen"):
    ...     nxcore.explain("add", torch.ones(2), 1, backend="torch").decision.chosen
    'torch'
    >>> nxcore.explain(torch.nn.Sequential(nxcore.nn.MaxPool2d(2))).rows[0].state
    'operator'
    """
    from torch import nn

    if isinstance(name, nn.Module):
        from nxcore.offline import models

        return models.explain(name, *args, **kwargs)
    name = getattr(name, "__name__", name)  # of an operator
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

    A replay costs the host one launch, and each problem in it is served by the kernel with the least device
    time. A signature is the shapes, strides, dtypes and device of the tensors, the values of all other
    arguments, and the context of the call; a module's parameters may change in place. Before a capture ``fn``
    runs ``warmup`` times on the given arguments, side effects included, and problems that calls would explore
    are measured. Then a module's buffers, and ``state``, are restored. Arguments are copied into the graph's
    own memory. On the CPU, and during another capture of any thread, ``fn`` itself runs.

    Parameters
    ----------
    fn : callable, optional
        Takes and returns tensors, in any nesting, and hashable values. It must not wait for the device. It
        may be a whole step of training that returns detached tensors. Without ``fn``: a decorator.
    backward : bool
        Support gradients: the backward pass is a graph too.
    clone : bool
        Return copies. Otherwise the next call of the same signature overwrites the result.
    warmup : int
        Calls before the capture; at least one.
    limit : int
        The most graphs to keep; beyond it, the least recently called one is dropped.
    state : iterable of Tensor
        Tensors that ``fn`` writes into and that warm-ups must not change, such as running statistics.

    Returns
    -------
    Graphed
        A callable; ``len()`` counts its graphs, ``clear()`` drops them.

    Raises
    ------
    InvalidInputError, CaptureError
        The latter at a call; it names the argument, the result or the line that can't be captured.

    Examples
    --------
    >>> nxcore.graphed(lambda x: 2 * x)(torch.ones(2))
    tensor([2., 2.])
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
        Strict: this backend serves every call, or an error gives the reason. By default the fastest
        verified kernel serves each call.

    Returns
    -------
    Operator
        Its docstring describes shapes, dtypes and errors.

    Raises
    ------
    UnknownOperatorError, UnknownBackendError
        If there is none of that name; the message names the nearest.

    Examples
    --------
    >>> nxcore.op("sum")(torch.ones(2, 3), 1)
    tensor([3., 3.])
    """
    return _session().op(name, backend=backend)


def policy(name: str) -> AbstractContextManager[None]:
    """Use another policy for the calls of a ``with`` block, in this thread or task.

    Parameters
    ----------
    name : str
        ``auto``, the default: a new problem is measured once, where that costs least; torch serves it until
        then. ``measure``: its first call measures all candidates. ``frozen``: nothing is measured; the lock
        alone counts, see ``nxcore wisdom lock``, or the records alone where there is none.

    Raises
    ------
    InvalidInputError
        If there is no such policy; the message names the nearest, or the one in place of a former one.

    >>> with nxcore.policy("frozen"):
    ...     out = nxcore.ops.add(torch.ones(2), 1)
    """
    return _session().policy(name)


def profile() -> AbstractContextManager[Profile]:
    """Measure the calls of a ``with`` block, by operator and by the kernel that served them.

    It covers the calls of this thread or task, and their gradients where the backward pass runs within the
    block. Calls that only torch may serve appear in the trace alone. Measurements in the first call of a
    problem aren't counted. Torch's profiler runs, with a region around each call, and slows all calls.

    Returns
    -------
    context manager
        Gives a ``Profile``. Printed, it is a table of count, mean, total, device time and peak memory. It has
        ``rows``, ``to_dict()`` and ``export_chrome_trace(path)``. ``profile_op`` adds regions of your own.

    >>> with nxcore.profile() as profile:
    ...     out = nxcore.ops.add(torch.ones(2), 1)
    >>> [(row.name, row.count) for row in profile.rows]
    [('add', 1)]
    """
    return _session().profile()


def record(path: str | os.PathLike[str]) -> AbstractContextManager[None]:
    """Write the distinct problems of the calls in a ``with`` block, for ``nxcore tune --from-trace``.

    Calls of this thread or task count, and gradients of a backward pass within the block; those by torch's
    autograd as often as their forward call. Calls for torch alone are left out. Of blocks the inner records.

    Parameters
    ----------
    path : str or path
        The file, overwritten when the block ends: of each problem a line of JSON, and its number of calls.

    Raises
    ------
    OSError
        If the file can't be written; raised before any call.

    >>> with nxcore.record(folder / "problems.jsonl"):
    ...     out = nxcore.ops.add(torch.ones(2), 1)
    >>> (folder / "problems.jsonl").read_text()[:13]
    '{"op": "add",'
    """
    return _session().record(path)


def restore(model: Module) -> Swap:
    """Undo ``accelerate``: give the replaced modules torch's classes again.

    Parameters
    ----------
    model : torch.nn.Module
        A model that was passed to ``accelerate``, or a copy of it.

    Returns
    -------
    Swap
        ``replaced``: name -> class; ``left``: name -> reason, where other code has changed the class since.

    >>> model = torch.nn.Sequential(torch.nn.MaxPool2d(2))
    >>> nxcore.accelerate(model).replaced == nxcore.restore(model).replaced
    True
    """
    from nxcore.nn import swap

    return swap.restore(model)


def status(model: Module | None = None, *args: Any, **kwargs: Any) -> Status:
    """Return the state of an accelerated model: problems, kernels, explorations, and what to do next.

    Parameters
    ----------
    model : torch.nn.Module, optional
        Any module, usually one that was passed to ``accelerate``. Without one, all problems of this process.
    *args, **kwargs
        Its arguments: a step is run and its calls are counted; it leaves ``.grad``, buffers and dice alone.

    Returns
    -------
    Status
        ``str()`` gives tables; it has ``parts``, ``rows``, ``saved_ms``, ``next`` and ``to_dict()``.

    >>> model = torch.nn.Sequential(torch.nn.MaxPool2d(2))
    >>> swap = nxcore.accelerate(model)
    >>> [row.calls for row in nxcore.status(model, torch.ones(1, 1, 4, 4)).rows]
    [1]
    """
    from nxcore.offline import status

    return status.of_model(model, *args, **kwargs)


def use(*backends: str) -> AbstractContextManager[None]:
    """Prefer some backends, in order, for the calls of a ``with`` block, in this thread or task.

    A call goes to the first of them that is verified for it. Where none is, the choice is made as usual.

    Parameters
    ----------
    *backends : str
        Names, in order of preference. ``use("torch")`` selects torch's own.

    Raises
    ------
    UnknownBackendError
        If there is none of that name; the message names the nearest.

    Examples
    --------
    >>> with nxcore.use("torch"):
    ...     nxcore.ops.add(torch.ones(2), 1)
    tensor([2., 2.])
    """
    return _session().use(*backends)


def _session() -> Session:
    from nxcore import session  # torch.compile traces no import_module

    return session.default()


context.serve_by(_session)
ELSEWHERE = {"Session": "session", "pointwise": "call.pointwise", "profile_op": "observe.profiling"}


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562), so that ``nxcore --help`` loads no torch."""
    if name in ELSEWHERE:
        return getattr(importlib.import_module(f"nxcore.{ELSEWHERE[name]}"), name)
    if name in ("distributed", "errors", "nas", "nn", "ops"):
        return importlib.import_module(f"nxcore.{name}")
    raise AttributeError(f"module 'nxcore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
