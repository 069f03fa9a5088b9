"""Makes an operator: the class with its generated methods, and the compiled path's part in it."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch.autograd import forward_ad

from nxcore.call.generated import alike, class_of, defaults, source
from nxcore.call.operator import NUMBERS, Operator, Postpones, Recoverer, Resolver
from nxcore.call.overlap import overlap
from nxcore.call.rare import RARE
from nxcore.call.unusual import PLAIN, only_default_device, stand_ins
from nxcore.context import PREFERENCE
from nxcore.errors import InvalidInputError
from nxcore.interop import autocast, internals, native
from nxcore.observe.counted import leads_to
from nxcore.spec.compiling import unseen
from nxcore.spec.spec import OpSpec
from nxcore.spec.text import execute


def make_operator(
    spec: OpSpec,
    resolve: Resolver,
    backend: str | None = None,
    recover: Recoverer | None = None,
    postpones: Postpones | None = None,
    compiled: bool = True,
    op: Callable[..., Operator] | None = None,
) -> Operator:
    """Return a callable for ``spec`` whose ``__call__`` has its real parameters and defaults.

    If ``compiled``, its calls find their plans in the extension, if there is one. ``op`` returns an operator
    of the session by its name, for the spec's selector.
    """
    text = source(spec)
    scope: dict[str, Any] = {
        "NUMBERS": NUMBERS,
        "RARE": RARE,
        "PLAIN": PLAIN,
        "alike": alike,
        "autocast_state": autocast.state,
        "forward_ad": forward_ad,
        "tracing": internals.tracing_state,
        "autocast": internals.any_autocast,
        "deterministic": internals.deterministic,
        "dispatch_modes": internals.dispatch_modes,
        "function_modes": internals.function_modes,
        "functorch": internals.interpreter,
        "grad_enabled": torch.is_grad_enabled,
        "is_compiling": torch.compiler.is_dynamo_compiling,
        "is_nested": attrgetter("is_nested"),
        "only_default_device": only_default_device,
        "overlap": overlap,
        "preference": PREFERENCE.get,
        "leads_to": leads_to,
        "reference": spec.reference,
        "selected": _selected(spec, op, backend),
        "_InvalidInputError": InvalidInputError,
        "_class_of": class_of,
        "_stand_ins": stand_ins,
    } | defaults(spec)
    execute(text, f"<nxcore operator {spec.name}>", scope)
    methods = {
        name: scope[name] for name in ("__call__", "by_kernel", "run", "far", "key", "near_key", "family")
    }
    methods["__module__"] = "nxcore.ops"  # where torch.fx finds an operator of a graph again
    bases = native.bases(Operator, spec, wanted=compiled)
    if len(bases) > 1:
        methods["by_kernel"] = scope["by_kernel_compiled"]
    cls = type(spec.name, bases, methods)
    scope["__call__"].__doc__, scope["__call__"].__qualname__ = spec.reference.__doc__, spec.name  # in errors
    operator: Operator = cls(spec, resolve, backend, recover, postpones)
    native.adopt(operator, spec)
    return operator


def _selected(spec: OpSpec, op: Callable[..., Operator] | None, backend: str | None) -> Any:
    """Return a function from a value of the spec's selector to the operator that it names."""
    if spec.selector is None or op is None:
        return None
    choose = spec.selector.operator

    @unseen  # a compiler traces no constructor of an error
    def named(value: Any) -> str:
        return choose(value)

    return lambda value: op(named(value), backend=backend)
