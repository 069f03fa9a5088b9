"""Operator: the hot path, one look-up and one call.

``__call__`` is generated from the spec's signature: see ``generated``. Its key has everything that a plan may
be specialised on: class, shape, strides, dtype and device of every tensor and whether it requires a gradient,
static parameters, and the context of the call (grad mode, determinism, autocast, a mode, a transform, a
preference). A call with a new key goes to ``Operator.miss``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nxcore import context
from nxcore.call import ages, ending, unusual
from nxcore.call.generated import guards
from nxcore.call.rare import ORDINARY, RARE, Families, Tables, make_room
from nxcore.call.unusual import PLAIN, untraced, unusual_tensor
from nxcore.context import Preference, requested
from nxcore.errors import NxcoreError, UnsupportedProblemError, present
from nxcore.interop import autocast, internals, sharding
from nxcore.interop.library import Shell, define
from nxcore.observe.counted import leads_to
from nxcore.registry import made
from nxcore.spec.compiling import unseen
from nxcore.spec.exits import RAISED, blamed
from nxcore.spec.problem import tensors_of
from nxcore.spec.spec import OpSpec

CAPACITY = 4096
"""Half of the most plans of an operator, and the most that are near; see ``ages``."""

ALIKE = 8
"""The most plans with one near key, each behind its guards."""

TORCH_CASTS = "autocast is on, and only torch applies its casts"
"""Why torch serves a call under autocast."""

NUMBERS = frozenset({int, float, bool, complex})


@dataclass(frozen=True, slots=True)
class Plan:
    """A callable that serves a problem.

    Attributes
    ----------
    call : callable
        Takes the operator's arguments, all positional.
    label : str
        The kernel's name.
    keep : bool
        Whether it may be kept for later calls.
    """

    call: Callable[..., Any]
    label: str
    keep: bool = True


Near = dict[Any, tuple[tuple[Any, ...], ...]]
"""Near key -> guards, key and plan of calls with that near key."""

Resolver = Callable[["Operator", tuple[Any, ...], int], Plan]
"""Takes the operator, the arguments, and the number of earlier calls that torch served without a plan."""
Postpones = Callable[[Preference, OpSpec, tuple[Any, ...]], Tables | None]
"""Takes preference, operator and arguments; returns the shapes on record if a plan may wait until such a call
comes back, else None."""
Recoverer = Callable[["Operator", Any, Callable[..., Any], BaseException, tuple[Any, ...]], Any]


class Operator:
    """One operator, callable with the signature of its spec. Made by a session; see ``nxcore.op``.

    Attributes
    ----------
    spec : OpSpec
        Its specification.
    backend : str, optional
        The only backend that may serve it; None for the fastest verified kernel.
    shelled : bool
        Whether compilers see an operator of ``torch.ops.nxcore``; otherwise they trace the reference.
    """

    def __init__(
        self,
        spec: OpSpec,
        resolve: Resolver,
        backend: str | None = None,
        recover: Recoverer | None = None,
        postpones: Postpones | None = None,
    ) -> None:
        self.spec, self.backend, self._resolve, self._recover = spec, backend, resolve, recover
        self._postpones = postpones if backend is None else None
        self.shelled = False
        self.shell: Shell | None = None
        self.plans: dict[Any, Callable[..., Any]] = ending.table()
        self._older: dict[Any, Callable[..., Any]] = {}
        self._new = 0  # plans since all became older
        self.near: Near = ending.table()
        self.rare: dict[Any, int] = {}  # how often torch served calls with a key, which were checked
        self._shapes: Tables | None = None  # the shapes on record when a call was last postponed
        self.families = Families()
        self.__name__, self.__doc__ = spec.name, spec.reference.__doc__

    def __repr__(self) -> str:
        return f"<nxcore operator {self.spec.name!r}{f' on {self.backend!r}' if self.backend else ''}>"

    def __deepcopy__(self, memo: Any) -> Operator:  # so that a module with an operator can be copied
        return self

    def __reduce__(self) -> tuple[Any, ...]:  # and pickled, by name and backend, with its expression
        return _named, (self.spec.name, self.backend, made.plain(self.spec))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator; generated from the spec, with its parameters and docstring."""
        raise NotImplementedError(f"{type(self).__name__} was not made by make_operator")

    run: Callable[..., Any]
    """Run the operator, with all arguments positional. This and the following are generated."""
    by_kernel: Callable[..., Any]
    """Run the operator; None if torch serves the call or it is invalid, for a caller that has torch's own."""
    key: Callable[..., Any]
    """Return the key of a call."""
    near_key: Callable[..., Any]
    """Return the near key of a call."""
    family: Callable[..., Any]
    """Return the family of a call with a key; None where it has none."""

    def source(self, backend: str = "torch") -> str:
        """Return the code that a backend makes of an expression's operator; see ``nxcore.pointwise``."""
        return made.source(context.default().registry, self.spec, backend)

    def frozen(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return ``args`` with sequences as tuples, so that they can be part of a key."""
        if not any([isinstance(a, list) for a in args]):  # noqa: C419  half the time of a generator
            return args
        kinds = (p.kind for p in self.spec.params)
        return tuple(
            tuple(a) if isinstance(a, list) and kind in ("tensors", "static", "size") else a
            for kind, a in zip(kinds, args, strict=True)
        )

    def clear(self) -> None:
        """Drop all plans: plugins, policies or quarantine have changed."""
        self.plans, self._older = ending.table(), {}
        self.near = ending.table()  # last, since another thread may still add dropped plans to the old table
        context.announce()

    def forget(self) -> None:
        """Drop all plans and counts: what a call may wait for has changed."""
        self.rare, self.families = {}, Families()
        self.drop_counts()
        self.clear()

    def drop_counts(self) -> None:
        """Drop the extension's counts; nothing without the extension, whose base overrides this."""

    def approach(self, near: Near, key: Any, plan: Callable[..., Any], *args: Any) -> None:
        """Add ``plan`` to the table ``near``, which was read before the plan was found."""
        found = guards(self.spec, args)
        if found is None:
            return
        leads = self.near_key(*args)
        try:
            others = [entry for entry in near.get(leads, ()) if entry[-2] != key]
        except TypeError:
            return  # a static value is a list, which is a tuple in the key
        if len(near) >= CAPACITY and not others:
            near.clear()
        near[leads] = ((*found, key, plan), *others)[:ALIKE]
        self.admit(near, key, plan, args, *autocast.bare(plan))

    def admit(self, near: Near, key: Any, plan: Any, args: tuple[Any, ...], *bare: Any) -> None:
        """Add ``plan`` to the extension's table; nothing without the extension, whose base overrides this.

        ``bare`` is what is called in its place; see ``autocast.bare``.
        """

    def raised(self, key: Any, plan: Callable[..., Any], error: BaseException, *args: Any) -> Any:
        """Handle a plan that raised, for the extension: as the generated ``__call__`` does."""
        try:
            raise error
        except RAISED:
            return self.failed(key, plan, error, *args)

    def replan(self, key: Any, plan: Callable[..., Any]) -> None:
        """Replace the plan of ``key`` by ``plan``."""
        self.plans[key] = plan
        self.near = ending.table()

    def miss(self, key: Any, *args: Any, kernels: bool = False) -> Any:
        """Serve a call that isn't in the table: check it, find a plan, keep it, run it.

        Without a key, as under ``torch.compile``, no plan is kept: the checks raise, or the reference serves
        the call. With ``kernels``, it returns None if the plan is the reference, or there can be none.
        """
        if torch.compiler.is_compiling():  # the key reads what dynamo can't trace
            # What is exported runs where there may be no kernels.
            return None if kernels and torch.compiler.is_exporting() else self._traced(self.frozen(args))
        ending.halt()
        plan = None if key is None else self._older.get(key)
        if plan is None and key is not None and self._is_rare(key, args):
            self._count(key, args)
            key, plan = None, self.spec.reference
        args = self.frozen(args)
        if key is None and (found := unusual.stand_ins(args)):
            return None if kernels else unusual.recorded(self, self.spec.params, args, found)
        if sharding.is_sharded(args):  # each rank calls with its own shards
            return sharding.divided(self.spec, self.run, args)
        if plan is None:
            reason = self.unusual(args)
            if reason == TORCH_CASTS and self.backend in (None, "torch"):
                self.spec.check(*args)
                plan = self.spec.reference
            elif reason:
                return None if kernels else self._serve_unusual(args, reason)
            elif autocast.concerns(args):
                return self._serve_uncast(key, args, kernels=kernels)
            else:
                self.spec.check(*args)
                made = self._resolve(self, args, self._met(key, args))
                plan, key = made.call, key if made.keep else None
        if key is not None:
            self._remember(key, plan)
        if kernels and leads_to(plan, self.spec.reference):
            return None
        try:
            return plan(*args)
        except RAISED as error:
            return self.failed(key, plan, error, *args)

    def _serve_uncast(self, key: Any, args: tuple[Any, ...], *, kernels: bool) -> Any:
        """Serve a call under autocast as one outside it, with the arguments cast; keep its plan too."""
        given = present(autocast.cast(self.spec, args), "cast")
        with autocast.disabled():
            result = self.by_kernel(*given) if kernels else self.run(*given)
            plan = None if key is None else self.plans.get(self.key(*given))
        if plan is not None:
            self._remember(key, autocast.uncast(self.spec, args, plan))
        return result

    def _met(self, key: Any, args: tuple[Any, ...]) -> int:
        return self.rare.get(key, 0) + self.rarely(None, args)

    def rarely(self, shapes: Tables | None, args: tuple[Any, ...]) -> int:  # noqa: ARG002  the extension reads them
        """Return how often the extension counted this call; 0 without it. Its base overrides this.

        With the shapes on record, it counts this call, and from now on those of its family: calls that differ
        in the sizes and strides of tensors alone.
        """
        return 0

    def _count(self, key: Any, args: tuple[Any, ...]) -> None:
        """Check and count a call; others of its family are, by the extension or ``far``."""
        self.spec.check(*self.frozen(args))
        if self.rarely(self._shapes, args):
            return
        self.families.add(self.family(key, *args), present(self._shapes, "shapes"))
        make_room(self.rare)
        self.rare[key] = 1

    def _is_rare(self, key: Any, args: tuple[Any, ...]) -> bool:
        """Return whether torch may serve a call without a plan, since such calls were met rarely."""
        if self._postpones is None or key[-1 - len(ORDINARY) : -1] != ORDINARY:
            return False
        if met := self._met(key, args):
            return met < RARE
        shapes = self._postpones(key[-1], self.spec, args)
        if shapes is None:
            return False
        self._shapes = shapes
        return not sharding.is_sharded(args)

    def waited(self, args: tuple[Any, ...]) -> int:
        """Return how many calls like this one torch served without a plan, if the next may be one; else 0."""
        try:
            with untraced():  # which ends where torch refuses to record a size
                key = self.key(*args)
            return 0 if key in self.plans else min(self._met(key, args), RARE)
        except (TypeError, AttributeError, RuntimeError):
            return 0  # such a call has no key

    def acquaint(self, *args: Any) -> None:
        """Make the plan of calls like this one now, however rarely they were met."""
        args = self.frozen(args)
        if self.unusual(args) or autocast.concerns(args):
            return
        found = self._resolve(self, args, 0)
        if found.keep:
            key = self.key(*args)
            self.rare[key] = RARE
            self._remember(key, found.call)

    def _traced(self, args: tuple[Any, ...]) -> Any:
        """Add one node to a compiler's graph, or the nodes of the reference."""
        # An exporter's tensors are subclasses.
        plain = all([type(t) in PLAIN for t in tensors_of(args)]) or not torch.compiler.is_dynamo_compiling()  # noqa: C419  dynamo reads a list
        shelled = self.shelled and plain and _has_shell(self.spec.name, self.backend)
        if shelled and self.shell is not None and self.shell.signature.takes(args):
            viewed = self.spec.view(*args)  # which can't be a node: it shares memory with an argument
            return self.spec.reference(*args) if viewed else self.shell(args, requested(self.backend))
        return self.unserved(args)

    def _remember(self, key: Any, plan: Callable[..., Any]) -> None:
        if key not in self.plans and key not in self._older:
            self._new += 1
            if ages.make_room(self.plans, self._older, self._new, CAPACITY):
                self._new, self.plans, self.near = 0, ending.table(), ending.table()
        self.plans[key] = plan
        self._older.pop(key, None)

    def _forget(self, key: Any) -> None:
        self.plans.pop(key, None)
        self._older.pop(key, None)
        self.near = ending.table()

    def settled(self, *args: Any) -> bool:
        """Return whether torch serves such calls until plans are dropped."""
        inner = self.planned(*args)
        if inner is None or not leads_to(inner, self.spec.reference):
            return False
        # The owner of a switch, such as an exploration, knows whether it is over.
        return inner is self.spec.reference or bool(getattr(getattr(inner, "of", None), "over", False))

    def planned(self, *args: Any) -> Any:
        """Return the plan of such calls, without autocast's part; None where there is none."""
        plan = self.plans.get(self.key(*self.frozen(self.spec.bind(*args))))
        return plan and (autocast.outside(plan) or plan)

    def unusual(self, args: tuple[Any, ...]) -> str:
        """Return why only torch can serve this call; empty if kernels can."""
        if torch.compiler.is_compiling():
            return "torch.compile traces the reference"
        if reason := unusual.unusual():
            return reason
        if autocast.concerns(args) and autocast.cast(self.spec, args) is None:
            return TORCH_CASTS
        for value in args:
            for tensor in value if isinstance(value, tuple) else (value,):
                if isinstance(tensor, Tensor) and (why := unusual_tensor(tensor)):
                    return why
        return ""

    def unserved(self, args: tuple[Any, ...]) -> Any:
        """Serve a call that only torch can serve."""
        return self._serve_unusual(args, self.unusual(args))

    def _serve_unusual(self, args: tuple[Any, ...], reason: str) -> Any:
        if not torch.compiler.is_compiling():
            with untraced():
                self.spec.check(*args)
        if self.backend not in (None, "torch"):
            _refuse(self.spec.name, str(self.backend), reason)
        return self.spec.reference(*args)

    def failed(self, key: Any, plan: Callable[..., Any], error: BaseException, *args: Any) -> Any:
        """Handle a plan that raised: the session takes the next candidate, unless the call is invalid."""
        blamed(error)  # or it is raised again: from outside
        if isinstance(error, NxcoreError) or internals.raised_by_hook(error):
            raise error
        args = self.frozen(args)
        self.spec.check(*args)  # checks more than the key contains, such as the size of a number
        if reason := self.unusual(args):
            return self._serve_unusual(args, reason)
        if self._recover is None:
            raise error
        if inner := autocast.outside(plan):
            self._forget(key)
            given = present(autocast.cast(self.spec, args), "cast")
            with autocast.disabled():
                return self._recover(self, self.key(*given), inner, error, given)
        return self._recover(self, key, plan, error, args)


@unseen  # dynamo can't trace the constructors of our errors
def _refuse(name: str, backend: str, reason: str) -> None:
    raise UnsupportedProblemError(name, backend, [reason])


@unseen
def _has_shell(name: str, backend: str | None) -> bool:
    """Return whether an operator exists in ``torch.ops.nxcore``; it is created if it is missing.

    It takes a name, since torch before 2.13 accepts no object of ours as a constant. Under a transform of
    ``torch.func`` there is none: the reference is transformed.
    """
    operator = _named(name, backend)
    operator.shell = define(operator.spec)
    return operator.shell is not None and not internals.transformed()


def _named(name: str, backend: str | None, expression: Any = None) -> Operator:
    made.restore(context.default().registry, expression)
    found: Operator = context.default().op(name, backend=backend)
    return found
