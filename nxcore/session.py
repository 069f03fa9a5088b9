"""Session: a registry, a tuner and their operators. ``nxcore.op`` uses the default session."""

from __future__ import annotations

import atexit
import contextlib
import copy
import itertools
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nxcore.call import ending, maker
from nxcore.call.operator import Operator, Plan
from nxcore.call.overlap import aliased
from nxcore.call.serving import Joiner, from_any_depth
from nxcore.call.wrappers import in_regime
from nxcore.choose import workers
from nxcore.choose.chooser import Chooser
from nxcore.choose.contenders import Choice
from nxcore.choose.explanation import Explanation
from nxcore.choose.learn.exploration import exploration
from nxcore.choose.recall import Recall
from nxcore.choose.tuner import Tuner
from nxcore.context import PREFERENCE, KernelWarning, Observer, Preferring, announce, capturing, in_force
from nxcore.errors import DeviceLostError, UnsupportedProblemError
from nxcore.interop import autocast, sharding
from nxcore.measure.collection import unprofiled
from nxcore.measure.decision import Decision
from nxcore.measure.race import IN_CALL, Effort
from nxcore.observe.profiling import Profile, Regions
from nxcore.observe.record import Trace
from nxcore.registry import discovery
from nxcore.registry.registry import BackendStatus, Registry
from nxcore.settings import Settings, log_to_stderr, require_policy
from nxcore.spec.compiling import unseen
from nxcore.spec.exits import RAISED, ExitError, blamed
from nxcore.spec.problem import Problem, tensors_of
from nxcore.spec.shortage import shortage
from nxcore.store import transfer
from nxcore.store.files import Store
from nxcore.store.lock import Lock
from nxcore.store.wisdom import Wisdom
from nxcore.trust.gate import Gate, brief, lost


class Session:
    """The state that is kept between calls.

    Parameters
    ----------
    settings : Settings, optional
        Replaces the settings of the environment.
    registry : Registry, optional
        Replaces the installed operators and backends.
    effort : Effort
        How much the first call of a new problem may measure.

    Examples
    --------
    >>> session = nxcore.Session()
    >>> session.op("add")(torch.ones(2), 1)
    tensor([2., 2.])
    >>> with session.use("torch"), session.policy("frozen"):
    ...     session.explain("add", torch.ones(2), 1).decision.chosen
    'torch'
    >>> with session.record(folder / "problems.jsonl"), session.profile() as profile:
    ...     out = session.op("add")(torch.ones(2), 1)
    >>> session.backends()["torch"].status, session.learning
    ('ready', False)
    """

    def __init__(
        self, settings: Settings | None = None, registry: Registry | None = None, effort: Effort = IN_CALL
    ) -> None:
        self.settings = settings or Settings.from_environment()
        self.registry = registry or discovery.installed(self.settings)
        store = Store(self.settings.cache)
        self.gate, self.wisdom = Gate(self.registry, store), Wisdom(store, transfer.shipped)
        there = None if registry else workers.of(self.settings, "nxcore.choose.worker")
        self.tuner = Tuner(self.registry, self.gate, effort, there, settings=self.settings)
        beside = None if registry else workers.measuring(self.settings, "nxcore.choose.worker")
        recall = Recall(self.tuner, self.wisdom)
        self.chooser = Chooser(self.settings, recall, self._forget, surveyor=beside)
        self.joiner = Joiner(self.chooser, self.op)
        self._lost: DeviceLostError | None = None
        self._operators: dict[tuple[str, str | None], Operator] = {}
        self._name, self._traced, self._lock = f"session{next(_count)}", _Traced(), threading.RLock()
        _sessions[self._name] = self

    def op(self, name: str, *, backend: str | None = None) -> Operator:
        """Return the operator ``name``: the same object at every call.

        Parameters
        ----------
        name : str
            See ``nxcore ops``.
        backend : str, optional
            Strict: this backend serves the calls, or an error says why not.

        Raises
        ------
        UnknownOperatorError, UnknownBackendError
            If there is none of that name; the message names the nearest.
        """
        if torch.compiler.is_dynamo_compiling():
            traced: Operator = getattr(self._traced, _made(self._name, name, backend))
            return traced
        if (found := self._operators.get((name, backend))) is None:
            spec = self.registry.spec(name)
            if backend is not None:
                self.registry.backend(backend)
            with self._lock:
                how = backend, self._recover, self.chooser.postpones, self.settings.native, self.op
                made = maker.make_operator(spec, from_any_depth(self._resolve), *how)
                made.shelled = self is _default  # the one that torch.ops.nxcore calls
                found = self._operators.setdefault((name, backend), made)
        return found

    def backends(self) -> dict[str, BackendStatus]:
        """Return name -> status of every backend: ready, unavailable, failed or disabled, and why."""
        return self.registry.statuses()

    def use(self, *backends: str) -> Preferring:
        """Prefer ``backends``, in this order, within this block; see ``nxcore.use``."""
        _require_backends(self._name, backends)
        return Preferring(prefer=backends)

    def policy(self, name: str) -> Preferring:
        """Use another policy within this block; see ``nxcore.policy``."""
        return Preferring(policy=_require_policy(name))

    @contextlib.contextmanager
    def record(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Write the problems of the calls within this block to a file; see ``nxcore.record``."""
        trace = Trace(Path(path))
        try:
            with self.observed(trace):
                yield
        finally:
            trace.write()

    @contextlib.contextmanager
    def profile(self) -> Iterator[Profile]:
        """Measure the calls within this block; see ``nxcore.profile``."""
        from torch.profiler import ProfilerActivity, profile  # slow to import, and not needed by a call

        able = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        with self.observed(Regions()), profile(activities=able, profile_memory=True, acc_events=True) as seen:
            yield Profile(seen)

    @contextlib.contextmanager
    def observed(self, observer: Observer) -> Iterator[None]:
        """Pass the calls within this block to ``observer``. Their keys differ, so each problem is a miss."""
        others = tuple(o for o in PREFERENCE.get().observers if type(o) is not type(observer))
        with in_force(observers=(*others, observer)):
            announce()
            yield

    @property
    def decided(self) -> int:
        """The number of problems with a choice in this process, those in exploration included."""
        return len(self.chooser.choices)

    @property
    def learning(self) -> bool:
        """Whether any frequent problem is still in exploration, or is measured beside the program."""
        return bool(self.chooser.survey.open) or any(
            e.known and not e.over for e in self.chooser.explorations()
        )

    def hold(self, lock: Lock, policy: str) -> None:
        """Use ``lock`` from now on, and ``policy`` for problems that the lock doesn't hold."""
        self.settings = replace(self.settings, policy=require_policy(policy))
        self.chooser.hold(lock, self.settings)
        self._forget(Operator.forget)

    def explain(
        self, name: str, *args: Any, backend: str | None = None, decide: bool = True, **kwargs: Any
    ) -> Explanation:
        """Return which kernel would run this call and why; see ``nxcore.explain``."""
        operator = self.op(self.registry.spec(name).named(kwargs), backend=backend)
        return self._explain(operator, operator.frozen(operator.spec.bind(*args, **kwargs)), decide)

    def _explain(self, operator: Operator, bound: tuple[Any, ...], decide: bool) -> Explanation:
        name, backend = operator.spec.name, operator.backend
        reason = operator.unusual(bound)
        if not reason and autocast.concerns(bound):
            given = autocast.cast(operator.spec, bound)
            with autocast.disabled():
                return self._explain(operator, bound if given is None else given, decide)
        operator.spec.check(*bound)
        if sharding.is_sharded(bound) and sharding.ways_of(operator.spec, bound):
            reason, backend = "every rank chooses a kernel for its own shards of the DTensors", None
        if reason and backend not in (None, "torch"):
            raise UnsupportedProblemError(name, str(backend), [reason])
        problem = self._problem(operator, bound)
        if reason:
            return Explanation(problem, Decision("torch", "reference", reason))
        served, inner, inner_args = self.joiner.served(operator, problem, bound)
        with self.chooser.explaining(decide=decide):
            choice = self._choose(served, inner, inner_args)
        found = self.explained(inner, choice, self.chooser.pairs.of(problem))
        return found.after(0 if decide else operator.waited(bound))

    def explained(self, problem: Problem, choice: Choice, pair: Decision | None = None) -> Explanation:
        """Return the explanation of ``choice`` for ``problem``, with the origin of its figures."""
        decision = choice.decision
        if exploring := exploration(choice.call):
            decision = replace(decision, reason=f"{decision.reason}: {exploring.progress}")
        origin = self.chooser.recall.origin(problem, decision)
        return Explanation(problem, decision, origin, self.tuner.fixes(problem), pair, choice.rung)

    def _problem(self, operator: Operator, args: tuple[Any, ...]) -> Problem:
        needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in tensors_of(args))
        return Problem.of(operator.spec, args, needs_grad=needs_grad, aliased=aliased(operator.spec, args))

    def _choose(self, operator: Operator, problem: Problem, args: tuple[Any, ...]) -> Choice:
        try:
            return self.chooser.choose(problem, args, operator.backend)
        except Exception as error:
            ending.halt()
            if isinstance(error, DeviceLostError):
                self._lose(error)
            raise

    def after_fork(self) -> None:
        """Create new locks in a forked child."""
        self._lock = threading.RLock()
        self.chooser.after_fork()

    def _forget(self, drop: Callable[[Operator], None] = Operator.clear) -> None:
        """Drop all plans, since a choice that they depend on has changed."""
        for made in list(self._operators.values()):  # plans of other operators may hold a gradient's forward
            drop(made)

    def _recover(
        self, operator: Operator, key: Any, plan: Any, error: BaseException, args: tuple[Any, ...]
    ) -> Any:
        """Return the next candidate's result after ``plan`` raised; such calls go to it from now on.

        There is no next candidate where the caller requested one backend, where the plan may have changed
        an argument, or where torch itself failed. If torch fails too, the cause is the call, not the kernel.
        """
        problem = self._problem(operator, args)
        served, inner, inner_args = self.joiner.served(operator, problem, args)
        failed = choice = in_regime(self._choose(served, inner, inner_args), inner)
        if reason := lost(problem.device):
            before = sorted({c.decision.chosen for c in self.chooser.choices.values() if not c.native})
            label = choice.decision.chosen
            gone = DeviceLostError(reason, op=problem.op, kernel=label, sure=False, before=before)
            raise self._lose(gone) from error
        # An exploration handles failures of its candidates itself, so this failure is torch's own.
        if choice.native or choice.decision.rule == "exploring":
            raise error
        fault = blamed(error)
        if operator.backend or problem.writes:
            if isinstance(fault, ExitError):
                self._strike(failed, inner, fault)
            raise fault
        # The next call may find enough memory, or run outside of a capture.
        passing = shortage(fault) or capturing(inner)
        if key is not None and (now := operator.plans.get(key)) not in (None, plan):
            return now(*args)  # another thread has already replaced the plan
        why = fault
        while True:
            text = f"{choice.decision.chosen} was chosen before and raised {brief(why)}"
            choice = self.tuner.after(choice, inner, text)
            call = self.joiner.joined(operator, problem, args, choice)
            try:
                result = call(*args)
                break
            except RAISED as again:
                if choice.native:
                    raise
                why = blamed(again)
        with self._lock:
            first = key is None or operator.plans.get(key) in (None, plan)
            if first and not passing:
                self.chooser.keep(inner, served.backend, choice)
                if key is not None:
                    operator.replan(key, call)
                self._strike(failed, inner, fault)
        if first:
            warnings.warn(
                f"{failed.decision.chosen}, a kernel of {problem.op!r}, raised {brief(fault)}; "
                f"{choice.decision.chosen} serves this call"
                f"{'' if passing else ' and all further calls of this problem'}",
                KernelWarning,
                stacklevel=4,
            )
        return result

    def _strike(self, choice: Choice, problem: Problem, error: Exception) -> None:
        """Count a failure; if it puts the kernel into quarantine, drop all of its plans."""
        self.tuner.failed(choice.backend, choice.kernel, problem, error)
        if self.gate.refusal(choice.backend, choice.kernel, problem):
            self.chooser.forget(choice.kernel)
            self._forget()

    def _lose(self, error: DeviceLostError) -> DeviceLostError:
        """Remember that the CUDA context is lost: every further call on CUDA raises this error."""
        self._lost, self.chooser.waits = error, False
        self._forget(Operator.forget)
        return error

    def _resolve(self, operator: Operator, args: tuple[Any, ...], met: int) -> Plan:
        problem = self._problem(operator, args)
        if self._lost and _on_lost_device(problem):
            raise copy.copy(self._lost)
        with unprofiled():
            served, inner, inner_args = self.joiner.served(operator, problem, args)
            choice = self._choose(served, inner, inner_args)
            call = self.joiner.joined(operator, problem, args, choice, met)
        for observer in PREFERENCE.get().observers:
            call = observer.observing(inner, choice.decision.chosen, call)
        return Plan(call, choice.decision.chosen, keep=not capturing(problem))


def _on_lost_device(problem: Problem) -> bool:
    return problem.device.type == "cuda"  # a context lost on one device is lost on all


_default: Session | None = None
_default_lock = threading.RLock()


def default() -> Session:
    """Return the session behind ``nxcore.op``; created at first use."""
    global _default  # noqa: PLW0603  the one session of the process
    if torch.compiler.is_dynamo_compiling():
        _begun()
    if _default is None:
        with _default_lock:
            if _default is None:
                _default = Session()
                log_to_stderr(_default.settings.log)
    return _default


_count = itertools.count()
_sessions: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
atexit.register(lambda: ending.end([s._forget for s in list(_sessions.values())]))  # noqa: SLF001  own


class _Traced:
    """Holds operators that were found inside compiled functions, as attributes.

    Dynamo reads a dict once, so later entries would be missing. It reads an attribute at each use.
    """


# Dynamo can't trace a lock or a registry, so these functions run untraced inside a compiled function. They
# take and return only strings and flags: before 2.13, torch accepts no object of ours as a constant.
@unseen
def _begun() -> bool:
    return default() is not None


@unseen
def _made(session: str, name: str, backend: str | None) -> str:
    """Return the attribute of a session's ``_traced`` that is the operator."""
    held, operator = _sessions[session]._traced, _sessions[session].op(name, backend=backend)  # noqa: SLF001  own
    attributes = vars(held)
    found = next((key for key, value in attributes.items() if value is operator), f"op{len(attributes)}")
    setattr(held, found, operator)
    return found


@unseen
def _require_backends(session: str, names: tuple[str, ...]) -> bool:
    for name in names:
        _sessions[session].registry.backend(name)
    return True


@unseen
def _require_policy(name: str) -> str:
    return require_policy(name)


def _after_fork() -> None:
    """Create new locks in a forked child: another thread may have held them at the fork."""
    global _default_lock  # noqa: PLW0603  the one of the process
    _default_lock = threading.RLock()
    for session in list(_sessions.values()):
        session.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
