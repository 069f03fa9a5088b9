"""Operators in torch's library, for the graphs of ``torch.compile`` and ``torch.export``.

``torch.ops.nxcore.<name>`` is made from the spec alone. To a compiler it is opaque: one node for all sizes.
The kernel is chosen when the node runs. The spec also gives its fake implementation (shapes, dtypes and
strides without data), its gradient (the backward operator's own node), its batching rule and its autocast
rule.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from dataclasses import replace
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor

from nxcore import context
from nxcore.context import Preferring, Requested
from nxcore.errors import UnsupportedProblemError
from nxcore.interop import autocast, internals
from nxcore.interop.autograd import Differentiable, flatten
from nxcore.interop.held import Held, held
from nxcore.interop.schema import Signature, Unfit
from nxcore.spec.gradient import Gradient
from nxcore.spec.problem import Problem, tensors_of
from nxcore.spec.spec import OpSpec

NAMESPACE = "nxcore"

ANYTHING = Requested()

KNOWN = 1024
"""The most kinds of calls of which an operator keeps what torch saves."""

TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)

Run = Callable[[tuple[Any, ...], Requested], Any]


class Shell:
    """An operator in torch's library, made from a spec.

    Parameters
    ----------
    spec : OpSpec
        Its reference's annotations give the types of static parameters and of the result.
    run : callable
        ``run(args, requested)`` computes the result; ``args`` all positional.
    namespace : str
        Its namespace in ``torch.ops``.

    Raises
    ------
    Unfit
        If torch has no schema for it.
    """

    def __init__(self, spec: OpSpec, run: Run, namespace: str = NAMESPACE) -> None:
        self.spec, self._run, self.signature = spec, run, Signature(spec)
        self.result = self.signature.result
        library = torch.library.Library(namespace, "FRAGMENT")
        try:
            library.define(f"{spec.name}{self.signature}", tags=TAGS)
        except RuntimeError as error:  # raised by torch's parser
            raise Unfit(str(error)) from error
        self.overload = getattr(getattr(torch.ops, namespace), spec.name).default
        library.impl(spec.name, self._compute, "CompositeExplicitAutograd")
        library.impl(spec.name, self._differentiate, "Autograd")
        library.impl(spec.name, self._batched, "FuncTorchBatched")
        for key in ("AutocastCPU", "AutocastCUDA"):
            library.impl(spec.name, self._autocast, key)
        torch.library.register_fake(f"{namespace}::{spec.name}", self._fake, lib=library)
        self._known: dict[Any, Held] = {}
        self._library = library  # its operators exist as long as it does

    def __call__(self, args: tuple[Any, ...], requested: Requested = ANYTHING) -> Any:
        """Call the operator of torch's library with the spec's arguments, all positional."""
        return self.result.restored(self.leaves(args, requested))

    def leaves(self, args: tuple[Any, ...], requested: Requested = ANYTHING) -> Any:
        """Call it and return its raw result."""
        backend, prefer, policy = requested
        return self.overload(**self.signature.given(args), backend=backend, prefer=prefer, policy=policy)

    def close(self) -> None:
        """Remove it from ``torch.ops``."""
        self._library._destroy()  # noqa: SLF001  no public way

    def _compute(self, *args: Any, **named: Any) -> Any:
        bound, requested = self.signature.bound(args, named)
        with torch.no_grad():
            return self._returned(self._run(bound, requested), bound)

    def _fake(self, *args: Any, **named: Any) -> Any:
        bound, _ = self.signature.bound(args, named)
        with torch.no_grad():
            self.spec.check(*bound)
            told = self.spec.outputs(*Problem.of(self.spec, bound).args)
            return self._returned(self.spec.reference(*bound) if told is None else _built(told), bound)

    def _batched(self, *args: Any, **named: Any) -> Any:
        return self._referred(*self.signature.bound(args, named), "torch.func transforms the reference")

    def _referred(self, bound: tuple[Any, ...], requested: Requested, reason: str) -> Any:
        """Return the reference's result, unless one backend was requested."""
        if requested.backend not in (None, "torch"):
            raise UnsupportedProblemError(self.spec.name, str(requested.backend), [reason])
        return self._returned(self.spec.reference(*bound), bound)

    def _autocast(self, *args: Any, **named: Any) -> Any:
        bound, requested = self.signature.bound(args, named)
        given = autocast.cast(self.spec, bound)
        if given is None:
            return self._referred(bound, requested, "autocast is on, and only torch applies its casts")
        with autocast.disabled():
            return self.leaves(given, requested)

    def _differentiate(self, *args: Any, **named: Any) -> Any:
        bound, requested = self.signature.bound(args, named)
        needed = torch.is_grad_enabled() and any(t.requires_grad for t in tensors_of(bound))
        if internals.in_forward_mode() or (needed and internals.transformed()):
            return self._referred(bound, requested, "torch.func transforms the reference")
        if not needed:
            with internals.below_autograd():  # as torch's own custom operators do
                return self.overload(*args, **named)
        gradient = self.spec.gradient
        joined = self._joined(bound, gradient, requested) if gradient and gradient.covers(*bound) else None
        if joined is None:
            return self._referred(
                bound, requested, "a gradient is needed, and only torch's autograd computes it"
            )
        return self._returned(joined(*bound), bound)

    def _joined(
        self, args: tuple[Any, ...], gradient: Gradient, requested: Requested
    ) -> Differentiable | None:
        """Return this operator joined with its backward, each as a node; None if one can't be a node."""
        backward, forward = of(gradient.op), of(gradient.forward) if gradient.forward else self
        if backward is None or forward is None:
            return None
        count = len(forward.signature.places)
        return Differentiable(
            spec=self.spec,
            described=Problem.of(self.spec, args).args,
            gradient=replace(gradient, args=lambda *all_of_it: all_of_it),
            forward=lambda *args: forward(args[:count], requested),
            backward=functools.partial(_backward, gradient, backward, requested),
            reference=lambda *all_of_it: backward.spec.reference(*gradient.args(*all_of_it)),
            held=self._held(args),
        )

    def _held(self, args: tuple[Any, ...]) -> Held | None:
        """Return what torch saves of such calls; None in a compiler's trace, whose graphs hold no writes."""
        if internals.dispatch_modes():
            return None
        tensors = tensors_of(args)
        key = Problem.of(self.spec, args).args, tuple(t.requires_grad for t in tensors)
        if key not in self._known:
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[key] = held(self.spec.reference, args)
        return self._known[key]

    def _returned(self, result: Any, args: tuple[Any, ...]) -> Any:
        """Return ``result`` in the schema's form; tensors that share memory with an argument are copied."""
        if self.spec.views:
            inputs = {internals.storage(t) for t in tensors_of(args)}
            result = _apart(result, inputs)
        return self.result.packed(result)


def _backward(
    gradient: Gradient, shell: Shell, requested: Requested, grad: Tensor, mask: tuple[bool, ...], *args: Any
) -> list[Tensor | None]:
    """Compute gradients: views by the reference, the others by one node."""
    found: list[Tensor | None] = [None] * len(mask)
    rest = list(mask)
    for i, wanted in enumerate(mask):
        alone = gradient.args(grad, tuple(wanted and i == j for j in range(len(mask))), *args)
        if wanted and shell.spec.view(*alone):
            rest[i] = False
            found[i] = flatten(shell.spec.reference(*alone))[i]
    if any(rest):
        leaves = shell.result.unpacked(shell.leaves(gradient.args(grad, tuple(rest), *args), requested))
        for i, leaf in enumerate(leaves[: len(mask)]):  # there may be more, for omitted tensors
            found[i] = leaf if rest[i] else found[i]
    return found


def _built(told: Any) -> Any:
    return tuple(_built(t) for t in told) if isinstance(told, tuple) else told and told.empty()


def _apart(result: Any, storages: set[int]) -> Any:
    if isinstance(result, tuple | list):
        return tuple(_apart(r, storages) for r in result)
    shared = isinstance(result, Tensor) and internals.storage(result) in storages
    return result.clone() if shared else result


_LOCK = threading.Lock()

SHELLS: dict[str, Shell | None] = {}
"""The operators in ``torch.ops.nxcore``; None where torch has no schema for a spec."""


def define(spec: OpSpec) -> Shell | None:
    """Add an operator to ``torch.ops.nxcore``, once a process; None if torch has no schema for it.

    It calls the default session's operator of that name.
    """
    with _LOCK:
        if spec.name not in SHELLS:
            try:
                SHELLS[spec.name] = Shell(spec, functools.partial(_served, spec.name))
            except Unfit:
                SHELLS[spec.name] = None
    found = SHELLS[spec.name]
    return found if found is None or found.spec is spec else None


def define_all() -> tuple[str, ...]:
    """Add every operator to ``torch.ops.nxcore``; return the names of those with a schema.

    A process that loads files of ``torch.export`` calls this first.
    """
    specs = context.default().registry.ops.values()
    return tuple(spec.name for spec in specs if define(spec))


def check(spec: OpSpec, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Run ``torch.library.opcheck`` on ``call`` as an operator: the tests that concern a kernel.

    Raises
    ------
    Unfit
        If torch has no schema for ``spec``.
    torch.testing._internal.optests.OpCheckError
        If ``call`` is wrong. The class isn't public, and its import takes a second.
    """
    parts = ("test_schema", "test_faketensor")  # gradients and traces don't depend on the kernel
    with contextlib.closing(Shell(spec, lambda args, _: call(*args), "nxcore_opcheck")) as shell:
        torch.library.opcheck(shell.overload, (), shell.signature.given(args), test_utils=parts)


def compiled(spec: OpSpec, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return the result of ``call`` as a node of a graph of ``torch.compile``; may raise ``Unfit``."""
    with contextlib.closing(Shell(spec, lambda args, _: call(*args), "nxcore_opcheck")) as shell:
        # Dynamo compiles one code for a few callers alone.
        code = (lambda: shell(args)).__code__.replace()
        own: Callable[[], Any] = FunctionType(code, globals(), closure=(CellType(args), CellType(shell)))
        graph: Callable[[], Any] = torch.compile(own, backend="eager", fullgraph=True, dynamic=False)
        return graph()


def of(name: str) -> Shell | None:
    """Return the shell of the default session's operator ``name``."""
    return define(context.default().op(name).spec)


def _served(name: str, args: tuple[Any, ...], requested: Requested) -> Any:
    operator = context.default().op(name, backend=requested.backend)
    if torch.compiler.is_compiling():  # in another thread: the operator would add a node
        return operator.spec.reference(*args)
    if requested.prefer is None and requested.policy is None:
        return operator.run(*args)
    prefer = None if requested.prefer is None else tuple(requested.prefer)
    with Preferring(prefer, requested.policy):
        return operator.run(*args)
